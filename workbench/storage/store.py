"""One prefix of an object store, through fsspec: names below it, whole small objects, and files sent and compared."""

import contextlib
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import CheckFailed, Missing
from workbench.storage import s3
from workbench.storage.address import checked_url, protocol_of
from workbench.storage.errors import StorageError, TakenOver, explained, told
from workbench.storage.sums import Sums, sums_of

RANGE_BYTES = 8 << 20
"""Of one read of a large object."""
TRIES = 3
"""To put an object where another job still stores its own: it ends with its next part, or its next try."""


class Store:
    """Objects below a URL. Safe for several threads.

    Args:
        url: Checked.
        fs: fsspec's file system for it.
    """

    def __init__(self, url: str, fs: Any) -> None:
        self.url, self.fs = url, fs
        self.protocol = protocol_of(url)
        self.root = str(fs._strip_protocol(url)).rstrip("/")
        self.exclusive = True
        """Whether it refuses to make an object that there is; `probe` finds out."""

    @classmethod
    def open(cls, url: str) -> "Store":
        """The store of a URL; nothing is asked of it yet.

        Raises:
            UsageError: the URL cannot be used.
            Missing: there is no library for it.
        """
        url = checked_url(url)
        protocol = protocol_of(url)
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if protocol in ("s3", "s3a"):
            options |= s3.OPTIONS
        if protocol in ("file", "local"):
            options["auto_mkdir"] = True
        if protocol == "memory":
            options = {}
        try:
            import fsspec

            return cls(url, fsspec.filesystem(protocol, **options))
        except ImportError as error:
            raise explained(error, url, "opening") from None
        except ValueError as error:
            raise Missing(f"{protocol}:// is not known: {error}", "s3://bucket/prefix needs hsbench[s3]") from None

    @property
    def is_s3(self) -> bool:
        """Whether it speaks the S3 protocol."""
        return self.protocol in ("s3", "s3a")

    def path(self, name: str) -> str:
        """What fsspec calls an object."""
        return f"{self.root}/{name}"

    def below(self, name: str) -> "Store":
        """The store of a prefix below this one."""
        other = Store(f"{self.url}/{name}", self.fs)
        other.exclusive = self.exclusive
        return other

    def _doing(self, what: str, name: str = "") -> contextlib.AbstractContextManager[None]:
        return told(f"{self.url}/{name}" if name else self.url, what)

    # Small objects.

    def read(self, name: str) -> bytes | None:
        """A whole small object; None when there is none."""
        with self._doing("reading", name):
            try:
                return bytes(self.fs.cat_file(self.path(name)))
            except FileNotFoundError:
                return None

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        with self._doing("asking for", name):
            return bool(self.fs.exists(self.path(name)))

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """Whole small objects, several at a time."""
        with self._doing("reading"):
            found = self.fs.cat([self.path(name) for name in names]) if names else {}
            return [bytes(found[self.path(name)]) for name in names]

    def create(self, name: str, data: bytes) -> None:
        """Make an object that there is not.

        Raises:
            FileExistsError: there is, with other bytes. A store that is not `exclusive` may not notice.
        """
        try:
            with self._doing("writing", name), _exists_is_its_own_error():
                self.fs.pipe_file(self.path(name), data, **({"mode": "create"} if self.exclusive else {}))
        except FileExistsError:
            if self.read(name) != data:  # else it is ours, and only its answer was lost
                raise

    def replace(self, name: str, data: bytes) -> None:
        """Make an object, or another of the same name."""
        with self._doing("writing", name):
            self.fs.pipe_file(self.path(name), data)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; those that are gone already do no harm."""
        with self._doing("removing from"):
            for start in range(0, len(names), 1000):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm([self.path(name) for name in names[start : start + 1000]])

    # Names.

    def names(self, prefix: str = "") -> dict[str, int]:
        """Every object below the URL, or below one of its folders, and its size."""
        with self._doing("listing", prefix):
            try:
                found = self.fs.find(self.path(prefix) if prefix else self.root, detail=True)
            except FileNotFoundError:
                return {}
        cut = len(self.root) + 1
        return {path[cut:]: int(about["size"] or 0) for path, about in found.items() if path.startswith(self.root)}

    def top(self) -> list[str]:
        """Names of objects and folders right below the URL."""
        with self._doing("listing"):
            try:
                found = self.fs.ls(self.root, detail=False)
            except FileNotFoundError:
                return []
        names = {str(path).rstrip("/")[len(self.root) + 1 :] for path in found}
        return sorted(names - {""})

    # Files.

    def put(
        self,
        path: Path,
        name: str,
        crc32: str = "",
        *,
        replace: bool = False,
        may_replace: Callable[[str], None] | None = None,
    ) -> None:
        """Send a file, in parts where it is large, and compare what is stored with it.

        Args:
            path: The file.
            name: The object.
            crc32: What the file's checksum must be.
            replace: Whether there may be such an object.
            may_replace: Asked before an object that is something else is removed; raises when it must stay.

        Raises:
            StorageError: it is not there, or not what was sent.
            TakenOver: there is another object of that name.
            CheckFailed: the file is not what it was.
        """
        sums = self._sums(path, crc32)
        for _ in range(TRIES):
            there = self._send(path, name, sums.nbytes, replace)
            if self.holds(name, sums):
                return
            if not there:
                break  # it stays: it may be another job's by now, and the next try finds that out
            if may_replace is None:
                raise TakenOver(
                    f"{self.url}/{name} is there already and is not ours: another job writes to this URL",
                    "end one of the two; hsbench extract --resume URL puts right what is there",
                )
            may_replace(name)
            self.remove([name])
        raise StorageError(f"{self.url}/{name} is not what was sent", "hsbench extract --resume URL sends it again")

    @staticmethod
    def _sums(path: Path, crc32: str) -> Sums:
        try:
            sums = sums_of(path, s3.part_bytes(path.stat().st_size))
        except OSError as error:
            raise CheckFailed(
                f"{path}, which waits to be uploaded, cannot be read: {error.strerror}",
                "hsbench extract --resume URL makes it again",
            ) from None
        if crc32 and sums.crc32 != crc32:
            path.unlink(missing_ok=True)
            raise CheckFailed(
                f"{path} changed while it waited to be uploaded", "hsbench extract --resume URL makes it again"
            )
        return sums

    def _send(self, path: Path, name: str, size: int, replace: bool) -> bool:
        """Whether there is an object already, which must not be replaced."""
        options: dict[str, Any] = {}
        if self.is_s3:
            options["chunksize"] = s3.part_bytes(size)
        if not replace and self.exclusive and self.protocol not in ("file", "local"):
            options["mode"] = "create"
        elif not replace and self.has(name):  # where the store itself cannot refuse
            return True
        try:
            with self._doing("writing", name), _exists_is_its_own_error():
                self.fs.put_file(str(path), self.path(name), **options)
        except FileExistsError:
            return True
        return False

    def holds(self, name: str, sums: Sums) -> bool:
        """Whether an object is the file: by its size, and by its tag or, where that proves nothing, by reading it."""
        with self._doing("asking for", name):
            try:
                about = self.fs.info(self.path(name))
            except FileNotFoundError:
                return False
        if int(about["size"] or 0) != sums.nbytes:
            return False
        tag = str(about.get("ETag") or "").strip('"').lower()
        return tag in sums.etags or self.crc32(name, sums.nbytes) == sums.crc32

    def crc32(self, name: str, size: int) -> str:
        """The checksum of an object of that size, read in ranges."""
        crc = 0
        for data in self.ranges(name, size, at_once=1):
            crc = zlib.crc32(data, crc)
        return f"{crc:08x}"

    def ranges(self, name: str, size: int, at_once: int = 4) -> Iterator[bytes]:
        """An object in ranges, in order, read several at a time."""
        starts = range(0, size, RANGE_BYTES)
        for first in range(0, len(starts), at_once):
            some = list(starts[first : first + at_once])
            with self._doing("reading", name):
                ends = [min(start + RANGE_BYTES, size) for start in some]
                yield from map(bytes, self.fs.cat_ranges([self.path(name)] * len(some), some, ends, on_error="raise"))

    def slice(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        with self._doing("reading", name):
            return bytes(self.fs.cat_file(self.path(name), start=start, end=end))

    def abort_uploads(self) -> int:
        """Give up what was begun and never finished below the URL; nothing where the store has no such thing."""
        if not self.is_s3:
            return 0
        with self._doing("listing uploads of"):
            return s3.abort_uploads(self.fs, self.root)

    def probe(self) -> None:
        """Write, read, list and remove a small object, and find out whether a second job would be noticed.

        Raises:
            UsageError: it will never work; the message says why.
            StorageError: it does not work now.
        """
        name, data = f"index/probe-{secrets.token_hex(6)}", b"hsbench\n"
        with self._doing("writing to"):
            self.fs.pipe_file(self.path(name), data)
        try:
            self.exclusive = self._refuses_second(name)
            if self.read(name) != data or name not in self.names("index"):
                raise StorageError(f"{self.url} does not give back what was written", "is it a store of objects?")
        finally:
            self.remove([name])

    def _refuses_second(self, name: str) -> bool:
        try:
            with _exists_is_its_own_error():
                self.fs.pipe_file(self.path(name), b"other\n", mode="create")
        except FileExistsError:
            return True
        except Exception:  # some stores do not know conditional writes and say so
            return False
        self.replace(name, b"hsbench\n")
        return False


@contextlib.contextmanager
def _exists_is_its_own_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if s3.exists_already(error):
            raise FileExistsError from None
        raise
