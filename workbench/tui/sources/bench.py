"""Runs and sweeps as the Bench mode shows them. Requests of a finished point are read once, of a long one not all."""

import contextlib
import statistics
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from bench.load.compare import Difference, cautions, compare
from bench.load.curves import Curve, share_within
from bench.load.live import Beat, last_beats
from bench.load.metrics import itl_values
from bench.load.records import RequestRecord
from bench.load.runner import Point
from bench.load.store import Run, RunFolder, Summary, find_run, runs_dir, state_of
from bench.sweep import design, outcome
from bench.sweep.journal import SETTINGS_FILE, STARTS_FILE, Settings, load_settings, load_starts
from bench.sweep.records import StartRecord, Table
from bench.sweep.roster import Call, is_running, known
from bench.sweep.variants import BASELINE
from workbench.errors import HsbenchError

NEWEST = 300
"""Runs, and as many sweeps, that are listed."""
MOST_TOKENS = 200_000
"""Tokens of a point whose times are drawn; of a longer one every so manieth request is taken."""
MOST_BYTES = 1 << 29
STEPS = 60
KEPT = 64
"""Points whose curves are remembered."""
SOON_S, EVERY_S = 0.02, 1.0
LIVE = -1
"""Instead of a point's number: what goes on now."""

Stamp = tuple[int, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run or a sweep in the list. `key` is its folder."""

    key: str
    kind: Literal["run", "sweep"]
    name: str
    began: float
    state: str
    """`running`, `finished`, `broken off`, or `unreadable`."""
    about: str
    """Model and server, or what is swept."""
    done: int = 0
    of: int = 0
    """Workloads or starts."""
    pids: tuple[int, ...] = ()
    """Processes that may be at it."""
    tok_s: float | None = None
    """Of a run that goes on."""


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn of a finished point."""

    ttft: Curve
    """Milliseconds → percentage of requests; `itl` likewise, of tokens."""
    itl: Curve
    rate: Curve
    """Seconds → tokens a second."""
    stride: int
    """Every so manieth request was taken."""


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    key: str
    state: str
    run: Run
    points: tuple[Point, ...] = ()
    broken: str | None = None
    beats: tuple[Beat, ...] = ()
    """While it goes on, or where it left nothing else."""
    shown: int = LIVE
    """Whose curves follow."""
    curves: Curves | None = None
    """None while they are made."""


class SweepDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep."""

    key: str
    state: str
    settings: Settings
    table: Table
    tok_s: dict[str, float]
    """Median decode speed of each variant that was measured, and of the baseline."""
    done: int
    planned: int


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """What cannot be shown, and why."""

    key: str
    why: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    entries: tuple[Entry, ...]
    """The newest first."""
    left_out: int = 0
    """Older ones that are not listed."""
    detail: RunDetail | SweepDetail | Unreadable | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs side by side."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    cautions: tuple[str, ...]


class BenchSource:
    """Looks at the folders of runs and sweeps. `selected` is a key, `point` a point's number, or `LIVE`."""

    def __init__(self) -> None:
        self.selected: str | None = None
        self.point = 0
        self.every_s = EVERY_S
        self._runs: dict[Path, tuple[Stamp, tuple[Run, Summary]]] = {}
        self._sweeps: dict[Path, tuple[Stamp, Sweep]] = {}
        self._curves: OrderedDict[tuple[str, int], Curves] = OrderedDict()
        self._due: tuple[str, int] | None = None

    def collect(self) -> Snapshot:
        """Every run and sweep, and the selected one in full."""
        self.every_s = EVERY_S
        sweeps = {str(folder): calls for folder, calls in known().items()}
        runs = sorted((path.parent for path in runs_dir().glob("*/run.json")), reverse=True)
        found = [self._run_entry(path) for path in runs[:NEWEST]]
        found += [self._sweep_entry(Path(key), calls) for key, calls in list(sweeps.items())[-NEWEST:]]
        entries = sorted((entry for entry in found if entry is not None), key=lambda entry: -entry.began)
        chosen = next((entry for entry in entries if entry.key == self.selected), entries[0] if entries else None)
        left_out = max(0, len(runs) - NEWEST) + max(0, len(sweeps) - NEWEST)
        return Snapshot(entries=tuple(entries), left_out=left_out, detail=self._detail(chosen) if chosen else None)

    def close(self) -> None:
        """Nothing is held."""

    def _run_entry(self, path: Path) -> Entry | None:
        try:
            run, summary = self._run(path)
        except (HsbenchError, OSError) as error:
            return _unreadable(path, "run", error, path / "run.json")
        state = state_of(run, summary)
        beat = last_beats(path, 4096)[-1:] if state == "running" else ()
        return Entry(
            key=str(path),
            kind="run",
            name=run.name,
            began=run.started,
            state=state,
            about=f"{Path(run.model).name or run.model} {run.settings.url} {run.settings.api}",
            done=len(summary.points),
            of=len(run.settings.workloads),
            pids=(run.pid,) if run.pid is not None else (),
            tok_s=beat[0].tok_s if beat else None,
        )

    def _run(self, path: Path) -> tuple[Run, Summary]:
        stamp = _stamp(path / "run.json", path / "summary.json")
        if (known := self._runs.get(path)) is None or known[0] != stamp:
            folder = RunFolder(path)
            known = self._runs[path] = (stamp, (folder.run(), folder.summary()))
        return known[1]

    def _sweep_entry(self, path: Path, calls: tuple[Call, ...]) -> Entry | None:
        try:
            sweep = self._sweep(path)
        except (HsbenchError, OSError, ArithmeticError, ValueError) as error:
            return _unreadable(path, "sweep", error, path / SETTINGS_FILE)
        server = sweep.settings.server
        return Entry(
            key=str(path),
            kind="sweep",
            name=path.name,
            began=calls[-1].began if calls else _mtime(path / SETTINGS_FILE),
            state=_sweep_state(path, sweep.table.complete),
            about=f"{Path(server.get('model', '')).name} {server.get('flags', '')}".strip(),
            done=sweep.done,
            of=sweep.planned,
            pids=tuple(call.pid for call in calls),
        )

    def _sweep(self, path: Path) -> "Sweep":
        stamp = _stamp(path / SETTINGS_FILE, path / STARTS_FILE)
        if (known := self._sweeps.get(path)) is None or known[0] != stamp:
            known = self._sweeps[path] = (stamp, read_sweep(path))
        return known[1]

    def _detail(self, entry: Entry) -> RunDetail | SweepDetail | Unreadable:
        path = Path(entry.key)
        try:
            return self._run_detail(entry, path) if entry.kind == "run" else self._sweep_detail(entry, path)
        except (HsbenchError, OSError, ArithmeticError, ValueError) as error:
            return Unreadable(key=entry.key, why=_words(error))

    def _sweep_detail(self, entry: Entry, path: Path) -> SweepDetail:
        sweep = self._sweep(path)
        return SweepDetail(key=entry.key, state=entry.state, **msgspec.structs.asdict(sweep))

    def _run_detail(self, entry: Entry, path: Path) -> RunDetail:
        run, summary = self._run(path)
        running = entry.state == "running"
        shown = self.point if 0 <= self.point < len(summary.points) else (LIVE if running else 0)
        return RunDetail(
            key=entry.key,
            state=entry.state,
            run=run,
            points=summary.points,
            broken=summary.broken,
            beats=last_beats(path) if running or not summary.points else (),
            shown=shown,
            curves=self._curves_of(path, shown, summary.points[shown]) if summary.points and shown != LIVE else None,
        )

    def _curves_of(self, path: Path, number: int, point: Point) -> Curves | None:
        """Made at the look after the one that found them missing, so that the table is seen before."""
        key = (str(path), number)
        if key not in self._curves:
            if self._due != key:
                self._due, self.every_s = key, SOON_S
                return None
            self._curves[key] = curves_of(path / "requests.jsonl", number, point)
            while len(self._curves) > KEPT:
                self._curves.popitem(last=False)
        return self._curves[key]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as its files tell it."""

    settings: Settings
    table: Table
    tok_s: dict[str, float]
    done: int
    planned: int


def read_sweep(folder: Path) -> Sweep:
    """Decisions made anew from the starts.

    Raises:
        UsageError: a file is not as it should be.
        OSError: the folder is gone.
        ValueError, ArithmeticError: the speeds in it are none.
    """
    settings, starts = load_settings(folder), load_starts(folder)
    if settings is None:
        raise FileNotFoundError(f"{folder / SETTINGS_FILE} is gone")
    done, planned = progress(settings, starts)
    speeds = {variant.name: _median_speed(starts, variant.name) for variant in settings.variants}
    speeds[BASELINE] = _median_speed(starts, BASELINE)
    return Sweep(
        settings=settings,
        table=outcome.table(settings, starts, complete=done == planned),
        tok_s={name: speed for name, speed in speeds.items() if speed is not None},
        done=done,
        planned=planned,
    )


def progress(settings: Settings, starts: tuple[StartRecord, ...]) -> tuple[int, int]:
    """Starts that need not be made any more, and all that are planned, as far as the winners are known."""
    names = [variant.name for variant in settings.variants]
    plan = list(design.screening(names, settings.blocks, settings.seed))
    if outcome.screened(settings, starts):
        winners = outcome.winners_of(settings, starts)
        plan += design.confirming(winners, settings.blocks, settings.seed)
    if settings.debug:
        plan += design.debugging(names)
    over, settled = outcome.ended(starts), outcome.settled(starts, settings.retries)
    return sum(start.key in settled or start.variant in over for start in plan), len(plan)


def _median_speed(starts: tuple[StartRecord, ...], variant: str) -> float | None:
    measured = (start.measured for start in starts if start.start.variant == variant and start.outcome == "measured")
    speeds = [one.decode_tok_s for one in measured if one is not None]
    return statistics.median(speeds) if speeds else None


def curves_of(path: Path, number: int, point: Point) -> Curves:
    """A pass over the requests of one point; of many tokens only every so manieth request is decoded."""
    stride = max(1, -(-point.metrics.tokens // MOST_TOKENS))
    width = max(point.metrics.seconds, 1e-9) / STEPS
    ttft: list[float] = []
    itl: list[float] = []
    bins = [0.0] * STEPS
    for record in _every(path, number, stride):
        for at, count in zip(record.times, record.counts, strict=False):
            bins[min(STEPS - 1, max(0, int((record.start + at) / width)))] += count
        if record.ok and record.times:
            ttft.append(record.times[0] * 1000)
            itl += [value * 1000 for value in itl_values(record)]
    rate = [((step + 0.5) * width, tokens * stride / width) for step, tokens in enumerate(bins)]
    return Curves(ttft=share_within(ttft), itl=share_within(itl), rate=rate if any(bins) else [], stride=stride)


class _Line(msgspec.Struct, frozen=True):
    request: RequestRecord


def _every(path: Path, number: int, stride: int) -> Iterator[RequestRecord]:
    """Requests of a point, which lie behind each other in the file."""
    decode = msgspec.json.Decoder(_Line).decode
    mark, seen, read = b'{"point":%d,' % number, 0, 0
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            read += len(line)
            if read > MOST_BYTES or (seen and not line.startswith(mark)):
                return
            if line.startswith(mark):
                seen += 1
                if seen % stride == 0 and line.endswith(b"\n"):
                    with contextlib.suppress(msgspec.MsgspecError, ValueError):
                        yield decode(line).request


def comparison_of(first: str, second: str) -> Comparison:
    """Two runs by their folders, workload by workload.

    Raises:
        UsageError: they cannot be read, or have no workload in common.
    """
    one, other = ((folder.run(), folder.summary().points) for folder in map(find_run, (first, second)))
    return Comparison(
        first=one[0].name,
        second=other[0].name,
        differences=tuple(compare(one[1], other[1])),
        cautions=tuple(cautions(one, other)),
    )


def _sweep_state(path: Path, complete: bool) -> str:
    if is_running(path):
        return "running"
    return "finished" if complete else "broken off"


def _unreadable(path: Path, kind: Literal["run", "sweep"], error: Exception, file: Path) -> Entry | None:
    if not file.is_file():  # removed between two looks
        return None
    return Entry(key=str(path), kind=kind, name=path.name, began=_mtime(file), state="unreadable", about=_words(error))


def _words(error: Exception) -> str:
    return error.message if isinstance(error, HsbenchError) else f"{type(error).__name__}: {error}"


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _stamp(*paths: Path) -> Stamp:
    """Changes when one of the files does."""
    found: list[int] = []
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.stat()
            found += (about.st_mtime_ns, about.st_size, about.st_ino)
        found.append(-1)
    return tuple(found)


def make() -> BenchSource:
    """The real source."""
    return BenchSource()
