"""Whether another sample may be sent: room where dumps wait, room where the data set goes, and nobody who pauses."""

import shutil
import threading
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from workbench.render.text import size

SPARE_BYTES = 1 << 20
"""A dump's description and the file system's own."""


class Closed(msgspec.Struct, frozen=True):
    """Why no sample is sent just now. `back-pressure` passes by itself as samples are written; the others may not."""

    kind: Literal["back-pressure", "dump folder", "disk", "storage", "person"]
    why: str


class Uploads(Protocol):
    """Where samples go on to when the folder of the data set only stages them."""

    @property
    def waiting(self) -> int:
        """Bytes of finished samples that are not there yet."""

    def closed(self, flying: int, nbytes: int) -> Closed | None:
        """Why `nbytes` more must wait while `flying` are on their way here; raises what ends the run."""


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written there; 0 when it cannot be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


class Gate:
    """Counts the bytes that are on their way through the dump folder. Safe for several threads.

    Args:
        out: Where the data set goes.
        dump_dir: Where the server records.
        high_water: Bytes that may wait there.
        min_free: Bytes to leave free where the data set goes.
        pause: A file that is there while a person wants the job to pause.
        uploads: Where samples go on to from `out`, if they do.
    """

    def __init__(
        self,
        out: Path,
        dump_dir: Path,
        *,
        high_water: int,
        min_free: int,
        pause: Path,
        uploads: Uploads | None = None,
    ) -> None:
        self.out, self.dump_dir, self.pause, self.uploads = out, dump_dir, pause, uploads
        self.high_water, self.min_free = high_water, min_free
        self._waiting = 0
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Bytes of samples that were sent and are not in the data set yet."""
        return self._waiting

    def take(self, nbytes: int) -> None:
        """A sample is sent."""
        with self._lock:
            self._waiting += nbytes

    def give(self, nbytes: int) -> None:
        """Its dump is gone."""
        with self._lock:
            self._waiting -= nbytes

    def closed(self, nbytes: int) -> Closed | None:
        """Why a sample of so many bytes must wait; None when it may be sent."""
        if self.pause.exists():
            return Closed("person", f"paused by hand; hsbench job continue {self.out} goes on")
        if self._waiting and self._waiting + nbytes > self.high_water:
            return Closed("back-pressure", "the dump folder holds as much as may wait there")
        if self.uploads is not None and (held := self.uploads.closed(self._waiting, nbytes)) is not None:
            return held
        return self.no_room(nbytes)

    def may_write(self, nbytes: int) -> bool:
        """Whether a sample whose dump is there fits; its room was kept free when it was sent."""
        return free_bytes(self.out) >= nbytes + SPARE_BYTES

    def no_room(self, nbytes: int) -> Closed | None:
        """Why so many bytes do not fit; None when they do."""
        if not self.dump_dir.is_dir():
            return Closed("dump folder", f"the dump folder {self.dump_dir} is gone; make it again")
        free = free_bytes(self.dump_dir)
        if free < nbytes + SPARE_BYTES:
            kind: Literal["back-pressure", "dump folder"] = "back-pressure" if self._waiting else "dump folder"
            return Closed(kind, f"{size(free)} free in {self.dump_dir}, a dump takes {size(nbytes)}")
        free = free_bytes(self.out)
        if free < self.min_free + self._waiting + nbytes:
            return Closed("disk", f"{size(free)} free in {self.out}, {size(self.min_free)} are to stay free")
        return None
