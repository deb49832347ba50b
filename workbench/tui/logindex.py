"""A log file by its lines, of any size: where each begins, which hold some words, and one line's text.

A log is never loaded whole. A thread notes where lines begin: those near the end first, so that there is something to
show at once, then from the front in blocks, then what is added. A file that is cut short, replaced or removed is
noticed. Another thread searches.
"""

import contextlib
import itertools
import os
import re
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import add
from pathlib import Path
from typing import NamedTuple

from workbench.server.log import clean
from workbench.server.secrets import blot

EVERY_S = 0.5
TAIL = 256 << 10
"""Bytes at the end that are indexed first."""
BLOCK = 256 << 10
"""Bytes read at once: small, since the interface waits while a block is taken apart."""
TELL_BLOCKS = 32
"""Blocks between two reports while the front is read."""
LINE_BYTES = 68 << 10
LINE_CHARS = 16 << 10
"""A longer line is cut. More bytes than characters are read, so that no secret is cut in half and missed."""
HEAD = 256
"""Bytes at the start that tell whether a file that grew is still the same."""


class Extent(NamedTuple):
    """What is known of the file at one moment. `starts` may grow later, but what it holds does not change."""

    starts: "array[int]"
    lines: int
    size: int
    """Bytes that were looked at."""
    front: int
    """Lines that were put before those first known, when the front had been read."""
    whole: bool
    """The front has been read, so `lines` counts them all."""
    age: int
    """Another number means another file, or one that begins anew."""
    state: str = ""
    """`missing` when there is no file, `removed` when it was deleted and what it held is still shown."""
    read: float = 1.0
    """Share of the file that was read."""

    def end(self, number: int) -> int:
        """Where a line ends, its newline left out."""
        return self.starts[number + 1] - 1 if number + 1 < len(self.starts) else self.size


NOTHING = Extent(array("Q", [0]), 0, 0, 0, False, 0, "missing", 0.0)


def line_starts(data: bytes, at: int) -> "array[int]":
    """Where lines begin after each newline of `data`, which stands at offset `at` of the file."""
    lengths = map(len, data.split(b"\n")[:-1])
    return array("Q", map(add, itertools.accumulate(lengths), itertools.count(at + 1)))


class LogIndex:
    """Watches one file.

    Args:
        path: The file; it may come into being later.
        tell: Called in the index's thread with each new `Extent`.
        every_s: Seconds between two looks.
    """

    def __init__(self, path: Path, tell: Callable[[Extent], object], every_s: float = EVERY_S) -> None:
        self.path, self.every_s = path, every_s
        self._tell, self._told = tell, NOTHING
        self._fd = -1
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._forget()
        self._age = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="log index")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End soon."""
        self._end.set()

    def read(self, start: int, end: int) -> bytes:
        """Bytes of the file as it is now; fewer or none if it is gone or was cut short."""
        with self._lock:
            if self._fd < 0 or end <= start:
                return b""
            try:
                return os.pread(self._fd, end - start, start)
            except OSError:
                return b""

    def _run(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError, MemoryError):
                self._look()
            self._end.wait(self.every_s)
        self._swap(-1)

    def _look(self) -> None:
        state = self._reopen()
        if self._fd < 0:
            self._report("missing")
            return
        size = os.fstat(self._fd).st_size
        if size < self._size or (size > self._size and self.read(0, len(self._head)) != self._head):
            self._begin(size)
        self._take_in(size)
        self._report(state)
        if not self._whole:
            self._take_front()
            self._report(state)

    def _reopen(self) -> str:
        """Open what stands at the path now, unless it is open already."""
        try:
            there = os.stat(self.path)
        except OSError:
            return "removed"
        if self._fd >= 0:
            mine = os.fstat(self._fd)
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
                return ""
        self._swap(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        self._begin(there.st_size)
        return ""

    def _swap(self, fd: int) -> None:
        """Nobody may read from a number that was closed and given to another file."""
        with self._lock:
            old, self._fd = self._fd, fd
        if old >= 0:
            os.close(old)

    def _forget(self) -> None:
        self._starts = array("Q", [0])
        self._size = self._front = self._front_read = 0
        self._head = b""
        self._whole = False

    def _begin(self, size: int) -> None:
        """Begin near the end of a large file."""
        self._forget()
        self._age += 1
        self._head = self.read(0, min(HEAD, size))
        first = max(0, size - TAIL)
        if first:
            found = self.read(first, size).find(b"\n")
            first = first + found + 1 if found >= 0 else 0
        self._starts = array("Q", [first])
        self._size, self._whole = first, first == 0

    def _take_in(self, size: int) -> None:
        """Note the lines between what was looked at and `size`."""
        while self._size < size and not self._end.is_set():
            data = self.read(self._size, min(size, self._size + BLOCK))
            if not data:
                return
            self._starts.extend(line_starts(data, self._size))
            self._size += len(data)
            if len(self._head) < HEAD:
                self._head = self.read(0, HEAD)

    def _take_front(self) -> None:
        """Note the lines before those near the end, without losing sight of what is added."""
        first = self._starts[0]
        front = array("Q", [0])
        for number, at in enumerate(range(0, first, BLOCK)):
            data = self.read(at, min(first, at + BLOCK))
            if self._end.is_set() or not data:
                return
            front.extend(line_starts(data, at))
            self._front_read = at + len(data)
            if number % TELL_BLOCKS == TELL_BLOCKS - 1:
                self._take_in(os.fstat(self._fd).st_size)
                self._report("")
        front.pop()  # it is the first of those near the end
        self._front, self._whole = len(front), True
        self._starts = front + self._starts

    def _report(self, state: str) -> None:
        starts = self._starts
        lines = len(starts) - (starts[-1] >= self._size)
        known = self._size - (0 if self._whole else starts[0] - self._front_read)
        share = known / self._size if self._size else 1.0
        found = Extent(starts, lines, self._size, self._front, self._whole, self._age, state, share)
        if found[1:] != self._told[1:]:
            self._told = found
            self._tell(found)


def raw_line(index: LogIndex, start: int, end: int) -> bytes:
    """The bytes of a line. Of one that is too long its beginning, or its end if that is the last state of a bar."""
    if end - start <= LINE_BYTES:
        return index.read(start, end)
    last = index.read(end - LINE_BYTES, end)
    return last if b"\r" in last.rstrip(b"\r") else index.read(start, start + LINE_BYTES)


def line_text(raw: bytes, secrets: Sequence[str]) -> str:
    """What is shown of a line: no colours, no earlier states of a bar, secrets hidden."""
    return blot(clean(raw), secrets)[:LINE_CHARS].expandtabs(4)


class Found(NamedTuple):
    """How far a search is. `lines` may grow later."""

    words: str
    lines: "array[int]"
    """Numbers of the lines that hold the words, in order."""
    total: int
    done: bool
    age: int

    def near(self, line: int) -> int | None:
        """Which hit is the first at or after a line, or else the last; None when there is none."""
        if not self.total:
            return None
        at = bisect_right(self.lines, line - 1, 0, self.total)
        return min(at, self.total - 1)


def pattern_of(words: str) -> "re.Pattern[bytes]":
    """Small letters match large ones too."""
    return re.compile(re.escape(words.encode("utf-8", "replace")), re.IGNORECASE if words == words.lower() else 0)


class Search:
    """Searches a log in a thread of its own, and goes on as it grows.

    Args:
        index: The log.
        words: What is looked for, as it stands.
        tell: Called in the search's thread with each `Found`.
    """

    def __init__(self, index: LogIndex, words: str, tell: Callable[[Found], object]) -> None:
        self.index, self.words, self._tell = index, words, tell
        self._pattern = pattern_of(words)
        self._extent = NOTHING
        self._news, self._end = threading.Event(), False
        self._lines: array[int] = array("Q")
        self._next = self._age = 0
        threading.Thread(target=self._run, daemon=True, name="log search").start()

    def feed(self, extent: Extent) -> None:
        """Search what is new too."""
        self._extent = extent
        self._news.set()

    def stop(self) -> None:
        """End soon."""
        self._end = True
        self._news.set()

    def _run(self) -> None:
        while not self._end:
            self._news.wait()
            self._news.clear()
            extent = self._extent
            if extent.age != self._age:
                self._lines, self._next, self._age = array("Q"), 0, extent.age
            if extent.whole and not self._end:
                self._pass(extent)

    def _pass(self, extent: Extent) -> None:
        """Search all whole lines that were not searched yet."""
        starts, last, blocks = extent.starts, extent.lines - 1, 0
        last += extent.starts[last + 1] <= extent.size if last + 1 < len(starts) else 0
        while self._next < last and not self._end and extent.age == self._extent.age:
            begin = self._next
            stop = max(begin + 1, bisect_right(starts, starts[begin] + BLOCK, begin, last))
            self._block(starts, begin, stop)
            self._next = stop
            blocks += 1
            if blocks % TELL_BLOCKS == 0:
                self._report(done=False)
        self._report(done=self._next >= last)

    def _block(self, starts: "array[int]", begin: int, stop: int) -> None:
        at = starts[begin]
        data = self.index.read(at, starts[stop] if stop < len(starts) else at + LINE_BYTES)
        hit = self._pattern.search(data)
        while hit is not None:
            number = bisect_right(starts, at + hit.start(), begin, stop) - 1
            after = starts[number + 1] - at if number + 1 < len(starts) else len(data)
            if self._shown(data[starts[number] - at : after - 1]):
                self._lines.append(number)
            hit = self._pattern.search(data, after)

    def _shown(self, raw: bytes) -> bool:
        """Whether the words are in what is shown of a line, not only in a colour or a bar's earlier state."""
        if b"\x1b" not in raw and b"\r" not in raw:
            return True
        return self._pattern.search(clean(raw).encode()) is not None

    def _report(self, done: bool) -> None:
        if not self._end:
            self._tell(Found(self.words, self._lines, len(self._lines), done, self._age))
