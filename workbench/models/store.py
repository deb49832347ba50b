"""A folder made once and checked on use: built aside, written down in a manifest, renamed into place."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

MANIFEST = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True):
    """A file as it was when its hash was taken."""

    size: int
    mtime_ns: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a folder holds, and what it was made from."""

    recipe: str
    """Changes when the same source would be turned into other files."""
    files: dict[str, FileEntry]


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem(folder: Path, recipe: str, full: bool) -> str:
    """Why the folder cannot be used; empty when it can.

    Sizes and times are compared first. A file's hash is taken when they differ, or always when `full`; if it
    is right the manifest learns the new time.
    """
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "it was not made yet" if not folder.exists() else f"{MANIFEST} is missing"
    except (OSError, msgspec.DecodeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    if manifest.recipe != recipe:
        return "it was made by another release of hsbench"
    moved = False
    for name, entry in manifest.files.items():
        try:
            now = (folder / name).stat()
        except OSError:
            return f"{name} is missing"
        same = (now.st_size, now.st_mtime_ns) == (entry.size, entry.mtime_ns)
        if not (same and not full):
            if now.st_size != entry.size or sha256(folder / name) != entry.sha256:
                return f"{name} is damaged"
            moved = moved or not same
    if moved:
        with contextlib.suppress(OSError):  # a cache that only another user may write
            write_manifest(folder, recipe)
    return ""


def write_manifest(folder: Path, recipe: str) -> None:
    """Take the hash of every file and write the manifest, as a whole."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST and path.name[0] != ".")
    files = {name: _entry(folder / name) for name in names}
    unfinished = folder / f".{MANIFEST}.{os.getpid()}"
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(Manifest(recipe, files))))
    os.replace(unfinished, folder / MANIFEST)


def _entry(path: Path) -> FileEntry:
    stat = path.stat()
    return FileEntry(stat.st_size, stat.st_mtime_ns, sha256(path))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, waiting for it if need be. It ends with its process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def building(folder: Path, recipe: str) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block ends well. Call with the lock held.

    Whatever ends the block early, `folder` stays as it was; the next build removes what a killed one left.
    """
    for left in folder.parent.glob(f".{folder.name}.build-*"):
        shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.build-", dir=folder.parent))
    try:
        made = aside / folder.name
        made.mkdir()
        yield made
        write_manifest(made, recipe)
        _settle(made)
        if folder.exists():
            os.rename(folder, aside / "before")
        os.rename(made, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _settle(folder: Path) -> None:
    """On the disk before the rename, so that a power cut leaves no empty files under the final name."""
    for path in folder.iterdir():
        path.chmod(0o644)
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
