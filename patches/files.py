"""File operations of the patch: hashes, atomic replacement, compiled leftovers, one worker at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from patches.errors import PatchError

TEMPORARY = ".hs-tmp"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Give `path` new bytes and mode at once. A hard link elsewhere, as in uv's cache, keeps the old ones."""
    building = temporary_of(path)
    _write(building, data)
    if path.exists() and os.geteuid() == 0:
        os.chown(building, path.stat().st_uid, path.stat().st_gid)
    os.chmod(building, mode)
    os.replace(building, path)


def temporary_of(path: Path) -> Path:
    """Beside the file, and not importable: SGLang imports every module that it finds in srt/models."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file of a folder that is not published yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, data)
    os.chmod(path, mode)


def _write(path: Path, data: bytes) -> None:
    """On the disk when it returns: an original must not be the one thing that a power cut takes."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def set_folder_modes(folder: Path, mode: int) -> None:
    """Whoever may read the tree must be able to import from the new folder, whatever the umask is."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            os.chmod(path, mode)


def remove_compiled(path: Path) -> None:
    """Remove `__pycache__/NAME.*.pyc`: one compiled with an unchecked hash would hide the new source."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it. Nothing there is as good."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_worker(root: Path) -> Iterator[None]:
    """Wait until no other process patches this tree. An error of the system becomes a PatchError."""
    with system_errors("change", root, "make the tree writable for this user, or patch a copy with --target"):
        handle = os.open(root, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


@contextlib.contextmanager
def system_errors(doing: str, root: Path, next_step: str) -> Iterator[None]:
    """Turn an OSError into a PatchError that names the place."""
    try:
        yield
    except OSError as error:
        place = error.filename or root
        raise PatchError(f"cannot {doing} {place}: {error.strerror or error}", next_step) from error
