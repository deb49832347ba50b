"""Says what the interpreter that runs this file has installed, as one line of JSON.

It runs by its path in the interpreter of the engine, which need not have hsbench, and may be as old as
Python 3.10: standard library only. It imports neither SGLang nor torch, and so takes a tenth of a second.
"""

import glob
import importlib.metadata
import importlib.util
import json
import os
import re
from typing import Any, Optional

FLAG = re.compile(r"[\"'](--[a-z][a-z0-9-]+)[\"']|^    ([a-z][a-z0-9_]+): A\[", re.MULTILINE)
"""How SGLang declares a flag: as a literal, or as an annotated field of its arguments."""


def version(package: str) -> Optional[str]:  # noqa: UP045 - runs on older interpreters too
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_root(package: str) -> Optional[str]:  # noqa: UP045
    """The folder that `import package` would take, or None; a folder without `__init__.py` is not one."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def source_version(root: str) -> Optional[str]:  # noqa: UP045
    """The version that a source tree states about itself."""
    try:
        with open(os.path.join(root, "_version.py"), encoding="utf-8") as file:
            found = re.search(r"version = ['\"]([^'\"]+)", file.read())
    except OSError:
        return None
    return found.group(1) if found else None


def known_flags(root: str) -> "list[str]":
    """Every flag that this SGLang's own source declares."""
    names = set()
    places = ("srt/server_args.py", "srt/arg_groups/*.py", "srt/arg_groups/fields/*.py")
    for path in (path for place in places for path in glob.glob(os.path.join(root, place))):
        with open(path, encoding="utf-8", errors="replace") as file:
            for literal, field in FLAG.findall(file.read()):
                names.add(literal or "--" + field.replace("_", "-"))
    return sorted(names)


def has_cuda(torch: Optional[str]) -> bool:  # noqa: UP045
    """Whether an NVIDIA device is visible to a torch that could use it."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    devices = glob.glob("/dev/nvidia[0-9]*")
    return bool(devices) and not hidden and not (torch or "").endswith("+cpu")


def offers(name: str, group: str) -> bool:
    """Whether SGLang here would find this plug-in of hsbench."""
    try:
        entries = importlib.metadata.distribution("hsbench").entry_points
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(e.name == name and e.group == group for e in entries)


def facts() -> "dict[str, Any]":
    """Everything `workbench.server.engine.Engine` holds."""
    root, torch = package_root("sglang"), version("torch")
    return {
        "root": root,
        "version": (version("sglang") or source_version(root)) if root else None,
        "torch": torch,
        "cuda": has_cuda(torch),
        "has_cpu_platform": offers("hsbench_cpu", "sglang.srt.platforms"),
        "has_plugin": offers("hsbench", "sglang.srt.plugins"),
        "flags": known_flags(root) if root else [],
    }


if __name__ == "__main__":
    os.write(1, json.dumps(facts()).encode() + b"\n")
