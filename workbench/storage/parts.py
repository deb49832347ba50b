"""`index/part-NNNNNN.jsonl`: what is done, in objects that are written once. They are the truth; all else is derived.

A part holds lines of the index whose samples are stored and compared. Its number is one more than the highest there
was, and it is only made if there is none of that number. So of two jobs that write to one URL only one can record
anything: a job begins with a part that only says who it is, and an older one that still runs finds its next number
taken and ends. What it stores until then no part will ever know: the newest job, and only that, may replace it.
"""

import os
import platform
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from workbench.errors import CheckFailed
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job.files import FOLDER as JOB_FOLDER
from workbench.extract.record import RECORD_FILE, RunRecord
from workbench.storage.errors import TakenOver
from workbench.storage.store import Store

FOLDER = "index"
_NAME = re.compile(r"index/part-(\d{6,})\.jsonl")
CLAIMS = 8
"""Tries to begin: a job that is being taken over may make the same number, but only one every few seconds."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The line with which a start of the job takes the URL for itself."""

    claim: str
    """Host and process."""
    run: str = ""
    time: float = 0.0


def part_name(number: int) -> str:
    """The object of a part."""
    return f"{FOLDER}/part-{number:06d}.jsonl"


def numbers(names: Sequence[str]) -> list[int]:
    """The numbers of the parts among these names, in order."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def lines_of(data: bytes, name: str) -> tuple[list[IndexLine], list[Claim]]:
    """A part's lines.

    Raises:
        CheckFailed: one cannot be read.
    """
    lines, claims = [], []
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            if text.startswith(b'{"claim"'):
                claims.append(msgspec.json.decode(text, type=Claim))
            else:
                lines.append(msgspec.json.decode(text, type=IndexLine))
        except (msgspec.MsgspecError, ValueError) as error:
            raise CheckFailed(f"{name}, line {number}: {error}", "hsbench verify says what is whole") from None
    return lines, claims


class Parts:
    """The parts at a URL, read and added to."""

    def __init__(self, store: Store, run: str = "") -> None:
        self._store, self._run = store, run
        self._next = 0
        self._claimed = False
        self._me = self._tried = b""
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self.sealed = False
        """Whether the shard's index object is there: all is done, and nothing was added since."""

    def load(self) -> dict[int, IndexLine]:
        """The last line of every row, whatever start wrote it.

        Raises:
            TakenOver: this job claimed the URL, and another did after it.
        """
        found: dict[int, IndexLine] = {}
        there = self._numbers()
        if self._claimed:
            self._refuse_newer(there)
        names = [part_name(number) for number in there]
        for name, data in zip(names, self._store.read_many(names), strict=True):
            for line in lines_of(data, name)[0]:
                found[line.index] = line
        self._next = there[-1] + 1 if there else 0
        self._known = {line.file for line in found.values() if line.file}
        self.sealed = self._store.has(INDEX_FILE)
        return found

    def claim(self) -> None:
        """Take the URL for this process; call it before `load`, whose lines are then all there will be of others."""
        for left in reversed(range(CLAIMS)):
            there = self._numbers()
            self._next = there[-1] + 1 if there else 0
            try:
                self._claim()
                return
            except TakenOver:  # the older one made a part just now
                if not left:
                    raise

    def _claim(self) -> None:
        if not self._me:  # the same bytes at every try, so that one whose answer was lost is known for ours
            me = Claim(claim=f"{platform.node()}, process {os.getpid()}", run=self._run, time=time.time())
            self._me = msgspec.json.encode(me) + b"\n"
        self._make(self._me)
        self._claimed = True

    def _numbers(self) -> list[int]:
        return numbers(list(self._store.names(FOLDER)))

    def _refuse_newer(self, there: Sequence[int]) -> None:
        """Raise TakenOver when a number is there that this job did not make."""
        for number in (number for number in there if number >= self._next):
            name = part_name(number)
            if number > self._next or self._store.read(name) != self._tried:  # else only its answer was lost
                raise self._taken(name)

    def refuse_newer(self) -> None:
        """Raise TakenOver unless this job is the newest at the URL."""
        with self._lock:
            if not self._claimed:
                self._claim()
            self._refuse_newer(self._numbers())

    def may_replace(self, name: str) -> None:
        """Return if an object that lies in the way of a sample is one that no part knows, nor ever will.

        Raises:
            TakenOver: a part has it, or this job is not the newest.
            StorageError: it cannot be found out now; the same call may be made again.
        """
        self.refuse_newer()
        with self._lock:
            if name in self._known:
                raise TakenOver(
                    f"{self._store.url}/{name} is recorded already with another content",
                    f"hsbench extract --resume {self._store.url} looks at what is there again",
                )

    def forget(self, files: Iterable[str]) -> None:
        """These objects are lost or spoilt, and are made again."""
        with self._lock:
            self._known.difference_update(files)

    def append(self, lines: Sequence[IndexLine]) -> None:
        """Make one part more.

        Raises:
            TakenOver: another job made it.
            StorageError: it could not be made; the same call may be made again.
        """
        with self._lock:
            if not self._claimed:
                self._claim()
            if self.sealed:
                self._store.remove([INDEX_FILE])
                self.sealed = False
            self._make(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            self._known.update(line.file for line in lines if line.file)

    def _make(self, data: bytes) -> None:
        name, self._tried = part_name(self._next), data
        try:
            self._store.create(name, data)
        except FileExistsError:
            raise self._taken(name) from None
        self._next += 1

    def _taken(self, name: str) -> TakenOver:
        _, claims = lines_of(self._store.read(name) or b"", name)
        who = claims[0].claim if claims else "another job"
        return TakenOver(
            f"{self._store.url} was taken over by {who}; nothing more is recorded here",
            f"hsbench watch {self._store.url}; end that job before this one is resumed",
        )

    def seal(self, record: RunRecord, lines: Sequence[IndexLine], folder: Path) -> None:
        """Say that all is there: the run's description, then the whole index, which is the last object of a run.

        Args:
            record: The run.
            lines: One for each of its rows, all of them in parts.
            folder: On this machine, for the index on its way.
        """
        self._store.replace(RECORD_FILE, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        whole = folder / JOB_FOLDER / INDEX_FILE
        whole.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(whole, "wb") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        self._store.put(whole, INDEX_FILE, replace=True)
        whole.unlink()
        self.sealed = True
