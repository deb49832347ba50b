"""The run itself: which sample goes next, what its outcome means, and when to wait.

One thread decides, here; requests and writes happen in others and hand their outcomes over in a queue.
"""

import collections
import contextlib
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from workbench.errors import BadSample, CheckFailed, HsbenchError, Missing, ServerError
from workbench.extract.job.arrivals import Arrivals
from workbench.extract.job.attempt import Attempt, Finished, NotWritten, Outcome
from workbench.extract.job.events import JobEvent, Level, Slow, State, Told
from workbench.extract.job.gate import Gate
from workbench.extract.job.keeper import Keeper
from workbench.extract.job.lanes import Lanes
from workbench.extract.job.preflight import refusal
from workbench.extract.job.stall import Stall
from workbench.extract.job.tally import Counts
from workbench.extract.sample import Refused, Sample
from workbench.extract.writer import DatasetWriter
from workbench.server.client import AnsweredWithError
from workbench.server.events import describe

TICK_S = 0.2
WRITE_TRIES = 3
RESTARTS = 10
"""Servers that may die in a row without a single sample in between; a row that kills them takes four."""
HOLD_S = 0.2
"""Nothing is sent for so long after a request came to nothing, lest a dying server be offered the whole data set."""
BUSY = (429, 503)
"""Answers of a server that may take the same request later."""
ROWS_OWN = (400, 413, 422)
"""Answers that say that the request itself is wrong."""


class Limits(msgspec.Struct, frozen=True):
    """What the server and the model take; None where it is not told."""

    tokens: int | None
    vocabulary: int | None
    bytes_per_token: int
    """Of a dump."""
    largest: int | None = None
    """Bytes of a dump, by the size of the file system that it goes through."""


class Parts(msgspec.Struct, frozen=True):
    """What the flow drives."""

    keeper: Keeper
    arrivals: Arrivals
    lanes: Lanes
    writer: DatasetWriter
    gate: Gate
    counts: Counts


class Flow:
    """Brings rows into the data set.

    Args:
        rows: What is left of the data set, in order.
        limits: Of server and model.
        parts: What it drives.
        stopping: Whether to send nothing more, and end when what is under way has ended.
    """

    def __init__(
        self, rows: Iterator[Sample | Refused], limits: Limits, parts: Parts, stopping: Callable[[], bool]
    ) -> None:
        self._rows, self._limits, self._stopping = rows, limits, stopping
        self._keeper, self._arrivals, self._lanes = parts.keeper, parts.arrivals, parts.lanes
        self._writer, self._gate, self._counts = parts.writer, parts.gate, parts.counts
        self._again: collections.deque[Attempt] = collections.deque()
        self._unwritten: collections.deque[tuple[Attempt, Path]] = collections.deque()
        self._unrecorded: collections.deque[Callable[[], object]] = collections.deque()
        self._write_tries: collections.Counter[int] = collections.Counter()
        self._told: collections.deque[JobEvent] = collections.deque()
        self._stall = Stall(parts.keeper)
        self._ended = False
        self._next: Attempt | None = None
        self._trouble = ""
        self._deaths = 0
        """Servers that died since the last sample."""
        self._hold_until = 0.0
        self._full = 0
        """Bytes that the dump folder must take before another request, after it was full."""

    def run(self) -> Iterator[JobEvent]:
        """Work until nothing is left. It may be told to end early.

        Raises:
            HsbenchError: the server cannot be had back, or too many samples are bad.
        """
        while True:
            self._take_outcomes()
            yield from self._tell()
            if self._trouble and self._stopping():
                self._lanes.server_gone.set()
            elif self._trouble:
                yield from self._recover()
                continue
            self._counts.look(self._lanes, self._arrivals, self._gate)
            if picture := self._counts.due():
                yield picture
            if not self._feed() and not self._lanes.busy and self._nothing_left():
                yield from self._tell()
                return

    def _nothing_left(self) -> bool:
        """Whether the run is over; asked when nothing is under way and nothing could be sent."""
        if not self._lanes.outcomes.empty():
            return False
        if self._stopping():
            return True
        return self._ended and not (self._next or self._again or self._unwritten or self._unrecorded)

    def _feed(self) -> bool:
        """Send what may be sent; whether anything was."""
        self._record_waiting()
        for held in self._unwritten:
            if held[0].ready_at <= time.monotonic() and self._gate.may_write(held[0].nbytes):
                self._unwritten.remove(held)
                self._lanes.write(*held)
                return True
        attempt = None if self._stopping() or self._unrecorded else self._candidate()
        if attempt is None:
            return False
        if time.monotonic() < self._hold_until or self._must_wait(attempt) is not None:
            return False
        self._next = None
        self._gate.take(attempt.nbytes)
        self._counts.resume()
        self._lanes.send(attempt)
        return True

    def _candidate(self) -> Attempt | None:
        """The next row to send: one to be sent again, else the next of the data set."""
        if self._next is None:
            self._next = self._rested()
        while self._next is None and not self._ended:
            row = next(self._rows, None)
            if row is None:
                self._ended = True
            elif isinstance(row, Refused):
                self._refuse(row)
            elif reason := self._refusal(row):
                self._refuse(Refused(row.index, "server", reason))
            else:
                self._next = Attempt(row, len(row.input_ids) * self._limits.bytes_per_token)
        return self._next

    def _refusal(self, row: Sample) -> str:
        nbytes = len(row.input_ids) * self._limits.bytes_per_token
        if self._limits.largest is not None and nbytes > self._limits.largest:
            return f"its dump of {nbytes:,} B is more than the whole dump folder's file system holds"
        return refusal(row, self._limits.tokens, self._limits.vocabulary)

    def _rested(self) -> Attempt | None:
        """A row to be sent again whose time has come."""
        now = time.monotonic()
        for attempt in self._again:
            if attempt.ready_at <= now:
                self._again.remove(attempt)
                return attempt
        return None

    def _must_wait(self, attempt: Attempt) -> str | None:
        """Why the next row is not sent now. Alone means alone, for a row that servers died with."""
        flying = self._lanes.flying
        if len(flying) >= self._lanes.concurrency or (flying and (attempt.alone or any(a.alone for a in flying))):
            return "the server has enough"
        closed = self._gate.closed(max(attempt.nbytes, self._full))
        if closed is None:
            self._full = 0
            return None
        if closed.kind != "back-pressure" and not self._lanes.busy:
            self._pause(closed.why)
        return closed.why

    def _pause(self, why: str, state: State = "paused") -> None:
        if self._counts.pause(state, why):
            self._say(f"{state}: {why}", "warning")

    # Outcomes.

    def _take_outcomes(self) -> None:
        """Wait a little for the first, then take all there are."""
        with contextlib.suppress(queue.Empty):
            outcome = self._lanes.outcomes.get(timeout=TICK_S if self._idle() else 0.0)
            while True:
                self._take(outcome)
                outcome = self._lanes.outcomes.get_nowait()
        verdict = self._stall.look(self._lanes.flying, self._arrivals.highest)
        if verdict is not None:
            self._trouble = self._trouble or f"the server is {verdict}"

    def _idle(self) -> bool:
        """Whether there is nothing to do but wait."""
        waits = self._next is not None or self._ended or self._stopping() or bool(self._unrecorded)
        return waits or len(self._lanes.flying) >= self._lanes.concurrency

    def _take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Finished):
            self._finished(outcome)
        elif isinstance(outcome, NotWritten):
            self._not_written(outcome)
        else:
            self._gate.give(outcome.attempt.nbytes)
            self._no_dump(outcome.attempt, outcome.error)

    def _finished(self, outcome: Finished) -> None:
        attempt, line = outcome.attempt, outcome.line
        self._gate.give(attempt.nbytes)
        self._deaths = 0
        self._stall.moved()
        seconds = time.monotonic() - attempt.began
        self._stall.took(time.monotonic() - attempt.sent_at, len(attempt.sample.input_ids))
        if line.status == "written":
            self._counts.written(line, Slow(line.index, line.tokens, seconds))
        else:
            self._counts.quarantined()
            self._say(f"row {line.index} is in quarantine: {line.reason}", "error", line.index)

    def _not_written(self, outcome: NotWritten) -> None:
        """Wait for room with the dump kept, or try again: a worker may have died."""
        attempt, error = outcome.attempt, outcome.error
        if isinstance(error, CheckFailed) and not isinstance(error, BadSample):
            raise error
        self._unwritten.append((attempt, outcome.dump))
        closed = self._gate.no_room(attempt.nbytes)
        if closed is not None and closed.kind == "disk":
            self._pause(closed.why)
            return
        row = attempt.sample.index
        self._write_tries[row] += 1
        attempt.rest()
        self._say(f"row {row} was not written: {error.message}", "warning", row)
        if self._write_tries[row] >= WRITE_TRIES:
            self._unwritten.remove((attempt, outcome.dump))
            shutil.rmtree(outcome.dump, ignore_errors=True)
            self._gate.give(attempt.nbytes)
            self._lose(attempt, error.message)

    def _no_dump(self, attempt: Attempt, error: HsbenchError) -> None:
        """A request that failed: the server is in trouble, the dump folder is full, or it is this row's own fault."""
        row = attempt.sample.index
        if isinstance(error, Missing) and self._gate.no_room(attempt.nbytes) is not None:
            self._full = attempt.nbytes
            attempt.rest()
            self._say(f"row {row}: {error.message}", "warning", row)
        elif self._trouble or self._keeper.lost():
            self._trouble = self._trouble or "the server is gone"
            attempt.died()
        elif isinstance(error, AnsweredWithError) and error.status in BUSY and attempt.may_wait(self._lanes.timeout_s):
            attempt.rest()
            self._say(f"row {row}: {error.message}", "warning", row)
        elif isinstance(error, AnsweredWithError) and error.status in ROWS_OWN:
            self._lose(attempt, error.message)
            return
        else:
            attempt.failed()
            self._hold_until = time.monotonic() + HOLD_S
            self._say(f"row {row}, request {attempt.tries}: {error.message}", "warning", row)
        if attempt.hopeless:
            died = f"the server died {attempt.deaths} times with it in flight"
            self._lose(attempt, error.message if attempt.tries else died)
            return
        self._counts.retries += 1
        self._again.append(attempt)

    def _lose(self, attempt: Attempt, why: str) -> None:
        row = attempt.sample.index
        self._record(lambda: self._writer.lose(attempt.sample, why))
        self._counts.quarantined()
        self._say(f"row {row} is given up: {why}", "error", row)

    def _refuse(self, row: Refused) -> None:
        self._record(lambda: self._writer.refuse(row))
        self._counts.refused()

    def _record(self, write: Callable[[], object]) -> None:
        """A line of the index that has no file; it waits, as files do, while the disk is full."""
        self._unrecorded.append(write)
        self._record_waiting()

    def _record_waiting(self) -> None:
        while self._unrecorded:
            try:
                self._unrecorded[0]()
            except Missing as error:
                self._pause(error.message)
                return
            except BaseException:
                self._unrecorded.popleft()
                raise
            self._unrecorded.popleft()

    # The server.

    def _recover(self) -> Iterator[JobEvent]:
        """Let everything in flight fail, then have the server back."""
        self._pause(self._trouble, "restarting")
        yield from self._tell()
        yield self._counts.picture()
        self._keeper.kill()
        self._lanes.server_gone.set()
        while self._lanes.flying or not self._lanes.outcomes.empty():  # what failed with this server is its doing
            self._take_outcomes()
            yield from self._tell()
        self._deaths += 1
        if self._deaths > RESTARTS:
            raise ServerError(
                f"{self._deaths} servers died in a row without a single sample: {self._trouble}",
                "hsbench logs shows why; then hsbench extract --resume DIR",
            )
        for event in self._keeper.restart():
            yield Told(time=time.time(), text=describe(event))
            if self._stopping():  # the next start of the job finds it starting
                return
        self._trouble = ""
        self._lanes.server_gone.clear()
        self._stall.moved()
        self._counts.restarts += 1

    # Telling.

    def _say(self, text: str, level: Level = "note", index: int | None = None) -> None:
        self._told.append(Told(time=time.time(), text=text, level=level, index=index))

    def _tell(self) -> Iterator[JobEvent]:
        while self._told:
            yield self._told.popleft()
