"""Run folders: `run.json` first, `requests.jsonl` grows, `summary.json` is replaced whole after each workload.

Whether a run goes on is told by the process in `run.json`, and that it is over by `summary.json`; `live.jsonl` tells
how it goes (`bench.load.live`).
"""

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import psutil

from bench.load.live import LIVE_FILE
from bench.load.records import RequestRecord
from bench.load.runner import Measured, Point
from bench.load.spec import BenchSettings
from workbench import __version__
from workbench.errors import UsageError
from workbench.extract.durable import replace_bytes
from workbench.paths import state_dir
from workbench.server import processes

SCHEMA = 1
T = TypeVar("T")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, and of whom; `run.json`."""

    name: str
    started: float
    """Time of day in seconds."""
    settings: BenchSettings
    model: str
    facts: dict[str, Any] = {}
    """What the server said of its settings."""
    client: dict[str, Any] = {}
    """Versions, cores, and the machine's load before the run."""
    pid: int | None = None
    since_boot: float | None = None
    """With `pid`, the identity of the process that measures."""
    schema: int = SCHEMA


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome; `summary.json`."""

    points: tuple[Point, ...] = ()
    finished: bool = False
    broken: str | None = None
    """Why the run ended before its last workload, where it could still say so."""


State = Literal["running", "finished", "broken off"]


class _Stored(msgspec.Struct, frozen=True):
    point: int
    request: RequestRecord


class RunFolder:
    """One run on disk. Numbers are JSON, and NaN never occurs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, run: Run, out: Path | None = None) -> "RunFolder":
        """Begin a run in `out`, or under its name in `runs_dir`.

        Raises:
            UsageError: the folder has something in it, or cannot be made.
        """
        path = out if out is not None else runs_dir() / run.name
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UsageError(f"{path} is not empty", "a run needs a folder of its own")
        except OSError as error:
            raise UsageError(f"cannot make {path}: {error.strerror}", "name another folder with --out") from error
        replace_bytes(path / "run.json", _json(run))
        return cls(path)

    def append(self, number: int, measured: Measured) -> None:
        """Add a workload: its requests, then its point in the summary."""
        encode = msgspec.json.Encoder().encode
        with open(self.path / "requests.jsonl", "ab") as file:
            file.writelines(encode(_Stored(number, record)) + b"\n" for record in measured.records)
            file.flush()
            os.fsync(file.fileno())
        self._save(Summary(points=(*self.summary().points, measured.point)))

    def finish(self) -> None:
        """Say that nothing is missing."""
        self._save(Summary(points=self.summary().points, finished=True))

    def break_off(self, why: str) -> None:
        """Say that nothing more comes; where that cannot be written, the process will be missed."""
        with contextlib.suppress(OSError, UsageError):
            self._save(Summary(points=self.summary().points, broken=why))

    def discard(self) -> None:
        """Remove a run of which nothing was measured."""
        (self.path / LIVE_FILE).unlink(missing_ok=True)
        (self.path / "run.json").unlink()
        self.path.rmdir()

    def _save(self, summary: Summary) -> None:
        replace_bytes(self.path / "summary.json", _json(summary))

    def run(self) -> Run:
        """What was asked for.

        Raises:
            UsageError: there is no run here that can be read.
        """
        return _load(self.path / "run.json", Run)

    def summary(self) -> Summary:
        """What there is of the outcome."""
        return _load(self.path / "summary.json", Summary) if (self.path / "summary.json").exists() else Summary()

    def requests(self, number: int) -> Iterator[RequestRecord]:
        """The requests of one workload, by the number of its point; a line that was cut off is passed over."""
        decode = msgspec.json.Decoder(_Stored).decode
        path = self.path / "requests.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n") and (stored := decode(line)).point == number:
                    yield stored.request


def state_of(run: Run, summary: Summary) -> State:
    """Whether a run is over, goes on, or ended early."""
    if summary.finished:
        return "finished"
    if summary.broken is not None or run.pid is None or run.since_boot is None:
        return "broken off"
    return "running" if processes.find(run.pid, run.since_boot) is not None else "broken off"


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _load(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "hsbench bench list shows the runs") from error


def new_run(settings: BenchSettings, model: str, facts: dict[str, Any]) -> Run:
    """A run that begins now."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    client = {
        "hsbench": __version__,
        "python": platform.python_version(),
        "aiohttp": version("aiohttp"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    pid = os.getpid()
    return Run(
        name=name,
        started=time.time(),
        settings=settings,
        model=model,
        facts=facts,
        client=client,
        pid=pid,
        since_boot=processes.since_boot(psutil.Process(pid)),
    )


def runs_dir() -> Path:
    """Where runs go that are not told where."""
    return state_dir() / "bench" / "runs"


def all_runs() -> Iterator[RunFolder]:
    """The readable runs of `runs_dir`, oldest first."""
    for path in sorted(runs_dir().glob("*/run.json")):
        folder = RunFolder(path.parent)
        try:
            folder.run()
            folder.summary()
        except UsageError:
            continue
        yield folder


def find_run(name: str) -> RunFolder:
    """A run by its folder, its name, or `last`.

    Raises:
        UsageError: there is none.
    """
    if name == "last":
        folders = list(all_runs())
        if not folders:
            raise UsageError("there is no run yet", "hsbench bench --url URL makes one")
        return folders[-1]
    for path in (Path(name), runs_dir() / name):
        if (path / "run.json").is_file():
            return RunFolder(path)
    raise UsageError(f"there is no run {name}", "hsbench bench list shows the runs; a folder is taken too")
