"""How a run goes while it goes: one line a second in `live.jsonl` of its folder.

The client is what must not be disturbed. Nothing is done for a token; once a second the event loop looks at the
requests under way and at those that have ended since, which takes some microseconds each, and a thread writes the line,
since a disk may stall. A line that cannot be written is dropped.
"""

import asyncio
import contextlib
import os
import statistics
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.load.client import clock
from bench.load.load import CEILING_SHARE, CPU_SHARE, LAG_P99_S, LAG_SHARE, LagSampler, Watch
from bench.load.records import Trace
from bench.load.spec import Workload

LIVE_FILE = "live.jsonl"
EVERY_S = 1.0
SHORTEST_S = 0.5
"""A rate over less than this says nothing; it is taken over the stretch before too."""
LEAST_S = 0.01
FEWEST_LAGS = 200
"""A 99th percentile of fewer is a single value."""
TAIL_BYTES = 128 << 10

Phase = Literal["warm-up", "measuring"]


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run at one moment: a line of `live.jsonl`."""

    time: float
    """Time of day in seconds."""
    point: int
    """Number of the workload in the run, from 0."""
    workload: str
    phase: Phase
    round: int = 0
    """Of a warm-up, from 1; 0 while measuring."""
    at: float
    """Seconds since this load began."""
    asked: int | None = None
    """Requests of this load; None when it ends after a time."""
    seconds: float | None = None
    """How long requests are sent; None when they are counted."""
    done: int = 0
    """Requests that came to their end."""
    failed: int = 0
    in_flight: int = 0
    tokens: int = 0
    """Output tokens so far."""
    tok_s: float | None = None
    """Over the last second or two."""
    ttft: float | None = None
    """Median of the requests that were under way since the beat before and have a token, in seconds."""
    tpot: float | None = None
    """Median over the same requests of their time a token so far, in seconds."""
    limited: tuple[str, ...] = ()
    """What of the client is above its bound so far."""


class Meter:
    """Counts one load from its traces, each of them only while it is under way.

    Args:
        traces: Grows as requests are sent.
        lag: The load's own sampler.
        ceiling: Tokens a second that the self-test found.
    """

    def __init__(self, traces: list[Trace], lag: LagSampler, ceiling: float | None = None) -> None:
        self._traces, self._lag, self._ceiling = traces, lag, ceiling
        self._open: list[Trace] = []
        self._seen = self._lags_seen = 0
        self._done = self._failed = self._tokens_of_ended = 0
        self._late: list[float] = []
        self._began, self._cpu = clock(), time.process_time()
        self._marks = [(self._began, 0)]

    def look(self, now: float) -> dict[str, Any]:
        """The fields of a `Beat` that are counted, at the instant `now`."""
        looked_at = self._open + self._traces[self._seen :]
        self._seen = len(self._traces)
        self._open = [trace for trace in looked_at if not trace.end]
        tokens = self._tokens_of_ended + sum(map(_tokens, looked_at))
        for trace in looked_at:
            if trace.end:
                self._done += trace.error is None
                self._failed += trace.error is not None
                self._tokens_of_ended += _tokens(trace)
        begun = [trace for trace in looked_at if trace.times and trace.error is None]
        tpot = _median([_tpot(trace) for trace in begun if len(trace.times) > 1])
        return {
            "at": round(now - self._began, 3),
            "done": self._done,
            "failed": self._failed,
            "in_flight": len(self._open),
            "tokens": tokens,
            "tok_s": self._rate(now, tokens),
            "ttft": _median([trace.times[0] - trace.start for trace in begun]),
            "tpot": tpot,
            "limited": tuple(self._limits(now - self._began, tokens, tpot)),
        }

    def _rate(self, now: float, tokens: int) -> float | None:
        before = next((mark for mark in reversed(self._marks) if now - mark[0] >= SHORTEST_S), self._marks[0])
        self._marks = [*self._marks[-1:], (now, tokens)]
        return round((tokens - before[1]) / (now - before[0]), 2) if now - before[0] > LEAST_S else None

    def _limits(self, seconds: float, tokens: int, tpot: float | None) -> Iterator[str]:
        """`load.cost_of`, told without sorting every lag again each second."""
        lags = self._lag.lags
        for lag in lags[self._lags_seen :]:
            if lag > LAG_P99_S:
                insort(self._late, lag)
        self._lags_seen = len(lags)
        bound = max(LAG_P99_S, LAG_SHARE * (tpot or 0.0))
        if len(lags) >= FEWEST_LAGS and len(self._late) - bisect_right(self._late, bound) > 0.01 * len(lags):
            yield "loop lag"
        if seconds < SHORTEST_S:
            return
        if (time.process_time() - self._cpu) / seconds > CPU_SHARE:
            yield "client CPU"
        if self._ceiling and tokens / seconds > CEILING_SHARE * self._ceiling:
            yield "ceiling"


def _tokens(trace: Trace) -> int:
    return trace.total if trace.total is not None else len(trace.times)


def _tpot(trace: Trace) -> float:
    return (trace.times[-1] - trace.times[0]) / ((trace.totals[-1] - trace.totals[0]) or 1)


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 6) if values else None


class Pulse:
    """Calls something at once, then every second in the event loop, and once more at the end."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._again()

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._beat()

    def _again(self) -> None:
        self._beat()
        self._handle = asyncio.get_running_loop().call_later(EVERY_S, self._again)


class LiveLog:
    """Writes a run's beats; from entering to leaving it has a thread for that.

    Args:
        folder: The run's.
        ceiling: Tokens a second that the self-test found.
    """

    def __init__(self, folder: Path, ceiling: float | None = None) -> None:
        self._path, self._ceiling = folder / LIVE_FILE, ceiling
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live")
        self._writing: Future[None] | None = None
        self._torn = False

    def __enter__(self) -> "LiveLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def of(self, point: int, work: Workload, round_number: int = 0) -> Watch:
        """What watches one load of a run: a workload, or a round of its warm-up."""
        told = {
            "point": point,
            "workload": work.label,
            "phase": "warm-up" if round_number else "measuring",
            "round": round_number,
            "asked": work.requests,
            "seconds": work.seconds,
        }

        def watch(traces: list[Trace], lag: LagSampler) -> Pulse:
            meter = Meter(traces, lag, self._ceiling)
            return Pulse(lambda: self._tell(_beat_of(told, meter.look(clock()))))

        return watch

    def _tell(self, beat: Beat) -> None:
        """Hand it to the thread; while that is stuck in the line before, this one is dropped."""
        if self._writing is None or self._writing.done():
            self._writing = self._thread.submit(self._write, msgspec.json.encode(beat) + b"\n")

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                line = b"\n" + line if self._torn else line
                self._torn = True
                self._torn = os.write(handle, line) < len(line)
            finally:
                os.close(handle)


def _beat_of(told: dict[str, Any], counted: dict[str, Any]) -> Beat:
    return Beat(time=round(time.time(), 3), **told, **counted)


def last_beats(folder: Path, most_bytes: int = TAIL_BYTES) -> tuple[Beat, ...]:
    """The newest beats of a run, in order; none of a run that has no such file. What is no beat is passed over."""
    try:
        with open(folder / LIVE_FILE, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most_bytes))
            lines = file.read(most_bytes).split(b"\n")
    except OSError:
        return ()
    return tuple(beat for line in lines if (beat := _beat(line)) is not None)


def _beat(line: bytes) -> Beat | None:
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(line, type=Beat)
    return None
