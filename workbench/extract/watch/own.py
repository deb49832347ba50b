"""Watching a job of ours: from `job.json` and the end of `events.jsonl`, whatever the number of finished samples.

Rates are differences of the job's own counters, which stand still while it waits: so pauses are in none of them.
"""

import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from workbench.errors import UsageError
from workbench.extract.job.events import Ended, JobEvent, Preflight, Progress, State, Told
from workbench.extract.job.files import JobFile, JobFiles, recent
from workbench.extract.watch.view import HISTORY, MESSAGES, NOW_S, RunView

TAIL = 1 << 18
"""Bytes of the events that are read at first."""
BIN_S = 5.0
"""Seconds of work that one point of the history stands for, at least."""
SILENT_S = 30.0
"""A job at work tells where it is every few seconds; after this long without, that is worth a word."""
LOST_S = 120.0
"""A job on another machine, whose process cannot be looked up, that told nothing for so long is taken for killed."""
STARTING: frozenset[str] = frozenset({"preflight", "restarting"})
"""States in which a server's start may take minutes without a word."""


class Point(NamedTuple):
    """A job's counters since it was started."""

    seconds: float
    tokens: int
    nbytes: int
    samples: int


START = Point(0.0, 0, 0, 0)


class Known(msgspec.Struct, frozen=True):
    """All that the events so far come to; of bounded size."""

    state: State = "preflight"
    preflight: Preflight | None = None
    progress: Progress | None = None
    """The last one, of an earlier start if the present one told none yet."""
    ended: Ended | None = None
    told: tuple[Told, ...] = ()
    window: tuple[Point, ...] = ()
    """Of the present start: its last `NOW_S` seconds of work, oldest first."""
    earlier: tuple[Point, ...] = ()
    """That of the start before, while the present one told no count; it holds again if nothing was left to do."""
    bin_began: Point = START
    history: tuple[tuple[float, float], ...] = ()
    last: float = 0.0
    """When the last event was told."""
    moved: float = 0.0
    """When the counts or the state were first told as they are."""


def take(known: Known, event: JobEvent) -> Known:
    """What is known with one event more."""
    change = msgspec.structs.replace
    known = change(known, last=max(known.last, event.time))
    if isinstance(event, Preflight):
        return change(known, state="preflight", preflight=event, ended=None, window=(), earlier=())
    if isinstance(event, Ended):
        window = known.window or (known.earlier if event.state == "done" else ())
        return change(known, state=event.state, ended=event, window=window)
    if isinstance(event, Told):
        return known if event.level == "note" else change(known, told=(*known.told, event)[-MESSAGES:])
    if not event.rows and event.state != "done":  # a start tells that it began before it knows a count
        return change(known, state=event.state, ended=None, window=(), earlier=known.window or known.earlier)
    point = Point(event.seconds_here, event.tokens_here, event.bytes_here, event.samples_here)
    fresh = not known.window or point.seconds < known.window[-1].seconds or point.samples < known.window[-1].samples
    window = _slide(() if fresh else known.window, point)
    began, history = _bin(window[0] if fresh else known.bin_began, point, event.time, known.history)
    moved = known.moved if known.state == event.state and _same_counts(known.progress, event) else event.time
    known = change(known, window=window, earlier=(), bin_began=began, history=history, moved=moved)
    return change(known, state=event.state, progress=event, ended=None)


def _same_counts(one: Progress | None, other: Progress) -> bool:
    names = ("written", "refused", "quarantined")
    return one is not None and all(getattr(one, name) == getattr(other, name) for name in names)


def _slide(window: tuple[Point, ...], point: Point) -> tuple[Point, ...]:
    """The window with a point more. One that the clock of work did not move for takes the place of the last."""
    if not window:
        # The counters of a start begin at nothing, which is a point too if it is young enough.
        return (START, point) if point.seconds <= NOW_S else (point,)
    kept = window[:-1] if window[-1].seconds == point.seconds and len(window) > 1 else window
    kept = (*kept, point)
    while len(kept) > 2 and kept[1].seconds <= point.seconds - NOW_S:
        kept = kept[1:]
    return kept


def _bin(
    began: Point, point: Point, when: float, history: tuple[tuple[float, float], ...]
) -> tuple[Point, tuple[tuple[float, float], ...]]:
    seconds = point.seconds - began.seconds
    if seconds < BIN_S:
        return began, history
    return point, (*history, (when, (point.tokens - began.tokens) / seconds))[-HISTORY:]


def view(known: Known, job: JobFile, running: bool, now: float, folder: str) -> RunView:
    """One look, from what was told. `running` must have been asked before the events were read."""
    state = _state(known, job, running, now)
    at_work = state["state"] in ("running", "finishing") and now - known.last <= SILENT_S
    return RunView(
        kind="own",
        folder=folder,
        time=now,
        dump_dir=job.dump_dir,
        host=job.host,
        messages=known.told,
        history=known.history,
        quiet_s=now - known.moved if state["state"] == "running" and known.progress is not None else None,
        **state,
        **_counts(known, state["state"] == "done"),
        **_rates(known, at_work),
        estimated=_estimated(known),
    )


def _state(known: Known, job: JobFile, running: bool, now: float) -> dict[str, Any]:
    ended = known.ended if known.ended is not None and _of_this_start(known.ended, job) else None
    if ended is not None:
        return {"state": ended.state, "why": ended.message, "next_step": ended.next_step}
    if not running:
        return {
            "state": "killed",
            "why": f"its process {job.pid}{_place(job)} is gone and told no end",
            "next_step": f"hsbench extract --resume {job.settings.place}",
        }
    if known.ended is not None or known.last < job.started:
        return {"state": "preflight"}
    silent = now - known.last
    if silent > SILENT_S and known.state not in STARTING:
        return {"state": known.state, "why": f"the job told nothing for {silent:.0f} s"}
    return {"state": known.state, "why": known.progress.why if known.progress and known.state != "preflight" else ""}


def _place(job: JobFile) -> str:
    return f" on {job.host}" if job.host and job.host != platform.node() else ""


def _of_this_start(ended: Ended, job: JobFile) -> bool:
    """By its number, since clocks are set back; by its time where it has none."""
    return ended.start == job.start if ended.start else ended.time >= job.started


def _counts(known: Known, done: bool) -> dict[str, Any]:
    last, before = known.progress, known.preflight
    if last is None:
        if before is None:
            return {}
        return {
            "rows": before.rows,
            "written": before.done,
            "free_bytes": before.free_bytes or None,
            "high_water_bytes": before.high_water_bytes,
        }
    same = ("rows", "written", "refused", "quarantined", "tokens", "nbytes", "in_flight", "waiting_bytes")
    told = ("high_water_bytes", "upload_bytes", "restarts", "retries", "slowest")
    return {
        **{name: getattr(last, name) for name in (*same, *told)},
        **({"upload_bytes": None} if done else {}),  # the last count was told before the last upload
        "free_bytes": last.free_bytes or None,  # 0 is what a job says that cannot tell
        "tokens_expected": last.tokens_expected or None,
        "dump_n": last.dump_n if last.dump_n >= 0 else None,
    }


def _rates(known: Known, at_work: bool) -> dict[str, Any]:
    plain = (known.progress and known.progress.plain_tok_s) or (known.preflight and known.preflight.plain_tok_s) or None
    if not known.window:
        return {"plain_tok_s": plain}
    first, last = known.window[0], known.window[-1]
    average = _per_second(START, last)
    recently = _per_second(first, last) if at_work else None
    found: dict[str, Any] = {"plain_tok_s": plain}
    for place, name in enumerate(("tok_s", "bytes_s", "samples_s")):
        found[f"{name}_avg"] = average[place] if average else None
        found[f"{name}_now"] = recently[place] if recently else None
    rate = found["tok_s_avg"]
    if rate and plain:
        found["plain_share"] = rate / plain
    if rate and found["tok_s_now"] and at_work and known.progress is not None and known.progress.tokens_expected:
        found["eta_s"] = max(0.0, known.progress.tokens_expected - known.progress.tokens) / rate
    return found


def _per_second(first: Point, last: Point) -> tuple[float, float, float] | None:
    """Tokens, bytes and samples a second."""
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        return None
    return (
        (last.tokens - first.tokens) / seconds,
        (last.nbytes - first.nbytes) / seconds,
        (last.samples - first.samples) / seconds,
    )


def _estimated(known: Known) -> tuple[str, ...]:
    before, last = known.preflight, known.progress
    if last is None:
        return ("written",) if before is not None else ()  # `done` counts refused rows too
    counted = before is not None and before.looked_at >= before.rows - before.done
    if counted or last.written + last.refused + last.quarantined >= last.rows:
        return ()
    return ("tokens_expected", "eta_s")


class OwnRun:
    """Follows one job's folder."""

    step_s = 1.0
    """Seconds between two looks, at most, for an end to be seen soon."""

    def __init__(self, folder: Path, tail: int = TAIL) -> None:
        self.files = JobFiles(folder)
        self._tail = tail
        self._known = Known()
        self._offset: int | None = None

    def look(self) -> RunView:
        """Read what was told since the last look.

        Raises:
            UsageError: the job's description is gone or cannot be read.
        """
        running = self.files.running() is not None
        job = self.files.load()
        if job is None:
            raise UsageError(f"{self.files.job} is gone", "was the data set's folder moved or removed?")
        if self._offset is None:
            events, self._offset = recent(self.files.events, self._tail)
        else:
            events, self._offset = recent(self.files.events, offset=self._offset)
        for event in events:
            self._known = take(self._known, event)
        now = time.time()
        folder = job.settings.store or str(self.files.out)  # a folder may have been moved since
        return view(self._known, job, running or _heard(self._known, job, now), now, folder)


def _heard(known: Known, job: JobFile, now: float) -> bool:
    """Whether a job of another machine is taken for running, by what it told."""
    if not job.host or job.host == platform.node():
        return False
    return now - max(known.last, job.started) <= (job.settings.timeout_s if known.state in STARTING else LOST_S)
