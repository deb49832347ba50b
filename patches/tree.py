"""Finding the SGLang source tree to work on, without importing SGLang."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from patches.errors import NoTree, PatchError

FIND_TIMEOUT_S = 60
_ANSWER = "hsbench-answer:"
_FIND = f"""
import importlib.metadata, importlib.util, json, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.find_spec("sglang")
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = None
found = spec and {{"origin": spec.origin, "folders": list(spec.submodule_search_locations or [])}}
print({_ANSWER!r} + json.dumps({{"found": found, "version": version}}))
"""
_VERSION = re.compile(r"""^__version__ *(?:= *version *)?= *["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Tree:
    """One SGLang package folder.

    Args:
        root: The folder `sglang/` itself, absolute.
        version: Release, such as "0.5.23", or "unknown".
        python: Interpreter that can import it, or None when none is known.
        by_target: The interpreter does not find this tree by itself; it needs its parent on PYTHONPATH.
    """

    root: Path
    version: str
    python: str | None
    by_target: bool = False


def find_tree(python: str | None = None, target: Path | None = None) -> Tree:
    """The tree in folder `target` (the package or its parent), else the one that `python` would import.

    Without either, the running interpreter's. With both, `python` is the one that `verify` imports with.

    Raises:
        NoTree: There is no SGLang there.
        PatchError: There is one, but not as plain files in a folder.
    """
    if target is None:
        return _from_interpreter(_executable(python or sys.executable))
    root = _package_folder(target)
    _check_plain_folder(root)
    interpreter = _executable(python) if python else _interpreter_beside(root)
    version = _version_beside(root) or _version_inside(root) or "unknown"
    return Tree(root, version, interpreter, by_target=python is not None)


def ask_interpreter(
    python: str, script: str, arguments: tuple[str, ...], timeout: float, env: dict[str, str] | None = None
) -> tuple[list[str], str]:
    """Run `script` there. Returns its answer lines (those after the marker) and its stderr."""
    command = [python, "-c", script, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, env=env, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PatchError(f"{python} did not answer within {timeout:.0f} s") from error
    except OSError as error:
        raise NoTree(f"cannot run {python}: {error.strerror}", "give --python an interpreter") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    return [line.removeprefix(_ANSWER) for line in lines], done.stderr


def answer(expression: str) -> str:
    """Python source that prints the value of `expression` as one answer line."""
    return f"print({_ANSWER!r} + json.dumps({expression}), flush=True)"


def _executable(python: str) -> str:
    """Its absolute path, with symbolic links kept: a virtual environment is known by them."""
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise NoTree(f"{python} is not an executable file", "give --python the path of an interpreter")
    return os.path.abspath(found)


def _from_interpreter(python: str) -> Tree:
    answers, stderr = ask_interpreter(python, _FIND, (), FIND_TIMEOUT_S)
    if not answers:
        last = (stderr.strip().splitlines() or ["no output"])[-1]
        raise NoTree(f"{python} cannot look for sglang: {last}", "give --python an interpreter")
    reply = json.loads(answers[-1])
    found = reply["found"]
    if found is None:
        raise NoTree(f"{python} has no package sglang", "install it there, or name another with --python or --target")
    if found["origin"] is None or not found["folders"]:
        where = ", ".join(found["folders"]) or "a single file"
        raise NoTree(f"{python} finds an sglang that is no package: {where}", "look at its sys.path")
    root = Path(os.path.abspath(found["folders"][0]))
    _check_plain_folder(root)
    version = _version_beside(root) or _version_inside(root) or reply["version"] or "unknown"
    return Tree(root, version, python)


def _package_folder(target: Path) -> Path:
    folder = Path(os.path.abspath(target.expanduser()))
    if not folder.is_dir():
        raise NoTree(f"{folder} is not a folder", "give --target the folder sglang/ or the one around it")
    for root in (folder, folder / "sglang"):
        if _is_package(root):
            return root
    raise NoTree(
        f"{folder} is not an SGLang tree: neither it nor its folder sglang/ has __init__.py and srt/models/",
        "give --target the folder sglang/ or the one around it",
    )


def _is_package(root: Path) -> bool:
    return root.name == "sglang" and (root / "__init__.py").is_file() and (root / "srt" / "models").is_dir()


def _check_plain_folder(root: Path) -> None:
    """Refuse what cannot be edited as files, or what would change another tree with this one."""
    if not root.is_dir():
        raise PatchError(
            f"{root} is not a folder; a package inside an archive cannot be patched",
            "install SGLang unpacked, as pip does",
        )
    if root.is_symlink():
        raise PatchError(
            f"{root} is a symbolic link to {os.path.realpath(root)}",
            f"patch the real tree: --target {os.path.realpath(root)}",
        )
    if not _is_package(root):
        raise NoTree(f"{root} is not an SGLang tree: it lacks __init__.py or srt/models/")


def _interpreter_beside(root: Path) -> str | None:
    """The interpreter of the environment that `root` is installed in: PREFIX/bin/pythonX.Y."""
    site, library = root.parent, root.parents[1]
    if site.name not in ("site-packages", "dist-packages") or not library.name.startswith("python"):
        return None
    return shutil.which(str(library.parents[1] / "bin" / library.name))


def _version_beside(root: Path) -> str | None:
    """From `sglang-VERSION.dist-info` beside the package, unless several releases left theirs."""
    found = [folder.name for folder in root.parent.glob("sglang-*.dist-info")]
    if len(found) != 1:
        return None
    return found[0].removeprefix("sglang-").removesuffix(".dist-info")


def _version_inside(root: Path) -> str | None:
    for name in ("_version.py", "version.py"):
        path = root / name
        if path.is_file() and (match := _VERSION.search(path.read_text("utf-8", errors="replace"))):
            return match[1]
    return None
