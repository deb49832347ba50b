"""Which model families a release supports by which route, found out on a copy of its sources.

The source patch is really applied to the copy, compiled and reverted, one family after the other; the two
other routes are looked for in the release's own source. Nothing of the release is imported or changed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from patches.codemods import FAMILIES, loops_by_file
from patches.errors import NoTree, PatchError
from patches.files import sha256
from patches.manage import apply, revert, verify
from patches.manifest import FOLDER
from patches.tree import Tree, find_tree

ROUTES = ("patch", "plugin", "builtin")
PLUGIN_GROUP = "sglang.srt.plugins"
_VERSIONS = ("__init__.py", "version.py", "_version.py")
_ARGUMENTS = ("srt/server_args.py", "srt/arg_groups")
_PLUGINS = "srt/plugins"
_NEEDED = (*_VERSIONS, *_ARGUMENTS, _PLUGINS, FOLDER)
_FLAGS = ("enable_return_aux_hidden_states", "forward_hooks")
_SETTER = re.compile(rb"^    def set_(?:eagle3|dflash)_layers_to_capture\(", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One family by one route: `ok`, or the reason why not, in one line."""

    family: str
    route: str
    ok: bool
    reason: str = ""


@contextlib.contextmanager
def copy_of_release(source: Tree | Path) -> Iterator[Tree]:
    """A clean copy of the sources that matter, from a tree or from a wheel file. Removed at the end.

    Raises NoTree when the wheel is none of SGLang's, PatchError when the tree carries edits of unknown origin.
    """
    with tempfile.TemporaryDirectory(prefix="hsbench-support-") as folder:
        site = Path(folder)
        if isinstance(source, Tree):
            _copy_tree(source.root, site / "sglang")
            tree = Tree(site / "sglang", source.version, None)
        else:
            _unpack(source, site)
            tree = find_tree(target=site)
        revert(tree)
        yield tree


def support(tree: Tree) -> Iterator[Cell]:
    """Try every family and route on `tree`, a copy that may be changed; it ends as it began."""
    plugin, builtin = _no_plugins(tree), _no_builtin(tree)
    for family in FAMILIES:
        refused = _try_patch(tree, family)
        yield Cell(family, "patch", not refused, refused)
        missing = plugin or refused
        yield Cell(family, "plugin", not missing, missing)
        missing = builtin or _no_setter(tree, family)
        yield Cell(family, "builtin", not missing, missing)


def _wanted(path: PurePosixPath) -> bool:
    """Whether this file, by its path below `sglang/`, is needed; every other is left out to be quick."""
    name = str(path)
    return name in loops_by_file(FAMILIES) or any(name == n or name.startswith(f"{n}/") for n in _NEEDED)


def _copy_tree(root: Path, to: Path) -> None:
    for name in (*_NEEDED, *loops_by_file(FAMILIES)):
        source, target = root / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy2(source, target)


def _unpack(wheel: Path, to: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _is_wanted_member(name)]
            for name in names:
                archive.extract(name, to)
    except (OSError, zipfile.BadZipFile) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise NoTree(f"{wheel} cannot be read as a wheel: {why}", "give --wheel an sglang-*.whl file") from error
    if not (to / "sglang" / "srt" / "models").is_dir():
        raise NoTree(f"{wheel} holds no SGLang", "give --wheel an sglang-*.whl file")


def _is_wanted_member(name: str) -> bool:
    top, _, rest = name.partition("/")
    return (top == "sglang" and _wanted(PurePosixPath(rest))) or (top.startswith("sglang-") and rest == "METADATA")


def _try_patch(tree: Tree, family: str) -> str:
    """Apply, compile, revert. Returns why it does not work, or nothing."""
    before = _hashes(tree.root)
    try:
        apply(tree, [family])
        found = verify(tree, import_modules=False)
        problems = "; ".join(found.problems)
    except PatchError as error:
        problems = error.message
    revert(tree)
    return problems if _hashes(tree.root) == before else f"revert did not restore the sources; {problems}"


def _hashes(root: Path) -> dict[str, str]:
    return {str(path): sha256(path.read_bytes()) for path in sorted(root.rglob("*")) if path.is_file()}


def _no_plugins(tree: Tree) -> str:
    if _any_file(tree.root / _PLUGINS, PLUGIN_GROUP):
        return ""
    return f"the release loads no plug-ins of the group {PLUGIN_GROUP}"


def _no_builtin(tree: Tree) -> str:
    for flag in _FLAGS:
        if not any(_any_file(tree.root / place, flag) for place in _ARGUMENTS):
            return f"the release has no --{flag.replace('_', '-')}"
    return ""


def _any_file(place: Path, word: str) -> bool:
    """Whether a source file, or one below a folder, holds the word."""
    pattern = re.compile(rf"\b{re.escape(word)}\b".encode())
    files = place.rglob("*.py") if place.is_dir() else [place]
    return any(pattern.search(path.read_bytes()) for path in files if path.is_file())


def _no_setter(tree: Tree, family: str) -> str:
    name = f"srt/models/{family}.py"
    path = tree.root / name
    if path.is_file() and _SETTER.search(path.read_bytes()):
        return ""
    return f"{name} cannot be told which blocks to capture"
