"""Files that survive a power cut: synced under a temporary name, renamed, and the folder synced too.

A temporary name ends in ``.tmp``: old speculators readers take every file in the tree whose name ends in ``pt``.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp"


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable. A file system that cannot do that is left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no reader takes for data, and that two processes do not share."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")


def publish(building: Path, path: Path) -> None:
    """Rename a synced file to its final name, durably."""
    os.replace(building, path)
    sync_folder(path.parent)


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a whole file atomically and durably."""
    building = temporary_name(path)
    try:
        with open(building, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(building, path)
    except BaseException:
        with contextlib.suppress(OSError):
            building.unlink()
        raise


def replace_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write one JSON value as a whole file, atomically and durably."""
    replace_bytes(path, (json.dumps(value, indent=indent) + "\n").encode())


def leftovers(folder: Path) -> Iterator[Path]:
    """Temporary files that a killed process left anywhere below `folder`."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in names if name.startswith(".") and name.endswith(TEMPORARY))
