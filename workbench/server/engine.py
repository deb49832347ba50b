"""The SGLang that a server runs on: which interpreter, which release, which devices."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import Missing

SCAN_TIMEOUT_S = 30.0
_SCAN = Path(__file__).with_name("scan.py")


class Engine(msgspec.Struct, frozen=True):
    """An installed SGLang and the interpreter it lives in."""

    python: str
    version: str
    root: Path
    """The folder of the package `sglang` itself."""
    torch: str
    cuda: bool
    """An NVIDIA device is visible and torch could use it."""
    has_cpu_platform: bool
    """SGLang there would find the platform `hsbench_cpu`."""
    flags: frozenset[str] = frozenset()
    """Flags that this release declares."""
    has_plugin: bool = False
    """SGLang there would find the capture plug-in of hsbench, and can import its hooks."""


def find_engine(python: str | None = None) -> Engine:
    """Look at an interpreter, without importing SGLang or torch there.

    Args:
        python: Path or name of the interpreter, or the folder of a virtual environment; None means the
            interpreter that runs hsbench.

    Raises:
        Missing: there is no such interpreter, or no SGLang or torch in it.
    """
    interpreter = find_interpreter(python)
    found = _scan(interpreter)
    remedy = "pip install 'hsbench[engine]' there, or name the interpreter that has it with --python PATH"
    if not found["root"] or not found["version"]:
        raise Missing(f"no SGLang in {interpreter}", remedy)
    if not found["torch"]:
        raise Missing(f"SGLang {found['version']} in {interpreter} has no torch", remedy)
    return Engine(
        python=interpreter,
        version=found["version"],
        root=Path(found["root"]),
        torch=found["torch"],
        cuda=found["cuda"],
        has_cpu_platform=found["has_cpu_platform"],
        flags=frozenset(found["flags"]),
        has_plugin=found["has_plugin"],
    )


def find_interpreter(python: str | None) -> str:
    """The absolute path of an interpreter. Links stay: a virtual environment is known by the link's place.

    Raises:
        Missing: nothing executable is there.
    """
    if python is None:
        return sys.executable
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    found = shutil.which(str(path))
    if found is None:
        raise Missing(f"no interpreter at {python}", "give --python the path of a python, or of its environment")
    return os.path.abspath(found)


def neutral_environment(env: dict[str, str] | None = None) -> dict[str, str]:
    """The environment for a program of the engine's interpreter: no folder is importable by accident."""
    return {**os.environ, "PYTHONSAFEPATH": "1", **(env or {})}


def _scan(interpreter: str) -> dict[str, Any]:
    command = [interpreter, str(_SCAN)]
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=neutral_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SCAN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{interpreter} does not run: {error}", "name another one with --python PATH") from error
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Missing(
            f"{interpreter} is not a usable Python (exit code {done.returncode})",
            "name another one with --python PATH",
            done.stderr[-2000:],
        ) from error
    return found
