"""The append-only index of a run, `index.jsonl`: what is in it is done, what is not does not exist.

A line is appended, in one write and synced, only after its file has its final name and is synced. The last line of a
row counts. A torn last line, of a process killed while it wrote, is cut off by the next writer and passed over by
readers.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from workbench.errors import CheckFailed

INDEX_FILE = "index.jsonl"


class TensorFacts(msgspec.Struct, frozen=True):
    """The size of one tensor's values: `probes.quick.Facts`, as far as runs are compared by it."""

    row_norm: float | None
    std: float
    low: float
    high: float


class IndexLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one row of the data set.

    `refused` rows never went to the server (no trained token, not renderable); `quarantined` ones gave a bad dump.
    """

    index: int
    status: Literal["written", "refused", "quarantined"]
    file: str = ""
    """Path below the data set's folder, with forward slashes."""
    nbytes: int = 0
    """Size of the file."""
    crc32: str = ""
    """Of the whole file, eight hexadecimal digits."""
    tokens: int = 0
    trained: int = 0
    """Tokens with a loss mask of 1."""
    truncated: bool = False
    ids: str = ""
    """First 16 hexadecimal digits of the sha256 of the ids as little-endian int64; `mask` likewise."""
    mask: str = ""
    facts: tuple[TensorFacts, ...] = ()
    request_id: str = ""
    again: bool = False
    """The row had a line before, and its file was lost."""
    reason: str = ""
    time: float = 0.0


class Torn(msgspec.Struct, frozen=True):
    """A line of the index that cannot be read."""

    number: int
    last: bool
    reason: str


def read_lines(folder: Path) -> Iterator[IndexLine | Torn]:
    """Every line of an index in order; none for a folder without one."""
    decoder = msgspec.json.Decoder(IndexLine)
    with contextlib.suppress(FileNotFoundError), open(folder / INDEX_FILE, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                yield Torn(number, True, "no end of line")
                return
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, ValueError) as error:
                yield Torn(number, False, str(error))


class Index:
    """The index of a run that is being written. Safe for several threads of one process; one process a folder.

    Raises CheckFailed when a line in the middle is damaged: something else than a crash has been at the file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / INDEX_FILE
        self._lock = threading.Lock()
        self._lines: dict[int, IndexLine] = {}
        self._forgotten: set[int] = set()
        for entry in read_lines(folder):
            if isinstance(entry, IndexLine):
                self._lines[entry.index] = entry
            elif not entry.last:
                raise CheckFailed(
                    f"{self.path}, line {entry.number}: {entry.reason}", "hsbench verify says what is whole"
                )
        folder.mkdir(parents=True, exist_ok=True)
        self._cut_torn_line()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run

    def _cut_torn_line(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            tail_start = max(0, size - (1 << 20))
            file.seek(tail_start)
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.truncate(tail_start + tail.rfind(b"\n") + 1)
                os.fsync(file.fileno())

    def append(self, line: IndexLine) -> None:
        """Add one line and sync it."""
        self.extend([line])

    def extend(self, lines: Sequence[IndexLine]) -> None:
        """Add lines, all or none, with one sync."""
        lines = [self._marked(line) for line in lines]
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with self._lock:
            self._must_be_ours()
            start = os.fstat(self._file.fileno()).st_size
            try:
                written = self._file.write(data)
                if written != len(data):
                    raise OSError(f"{self.path}: wrote {written} of {len(data)} bytes")
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(start)  # a full disk takes half a line
                raise
            self._lines |= {line.index: line for line in lines}

    def _marked(self, line: IndexLine) -> IndexLine:
        return msgspec.structs.replace(line, again=True) if line.index in self._forgotten else line

    def _must_be_ours(self) -> None:
        """Raise CheckFailed when the folder was moved or removed: lines would go where no reader looks."""
        ours = os.fstat(self._file.fileno())
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is None or (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise CheckFailed(
                f"{self.path} is not the file that this run has been writing: its folder was moved or removed",
                "hsbench extract --resume DIR goes on where the folder is now",
            )

    def get(self, index: int) -> IndexLine | None:
        """What became of a row; None while it is still to be done."""
        return self._lines.get(index)

    def __contains__(self, index: int) -> bool:
        return index in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def lines(self) -> list[IndexLine]:
        """The last line of each row, in the order of the rows."""
        with self._lock:
            return [self._lines[index] for index in sorted(self._lines)]

    def forget(self, index: int) -> None:
        """Have a row done again in this process, because its file is gone; its next line will count."""
        with self._lock:
            self._lines.pop(index, None)
            self._forgotten.add(index)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
