"""Every job on this machine, how the machine is, and the doctor's report."""

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from workbench.errors import HsbenchError
from workbench.extract.job.files import JobFiles
from workbench.extract.job.roster import KnownJob, known_jobs
from workbench.paths import cache_dir, state_dir
from workbench.server.log import tail
from workbench.server.survey import ServerStatus
from workbench.supervision.doctor import Finding, examine
from workbench.supervision.gpu import Nvml
from workbench.supervision.records import GpuSample
from workbench.tasks import store
from workbench.tasks.store import Task
from workbench.tui.config import config_file

JOBS_S = 3.0
"""Seconds between two looks at the extractions: each reads the end of a journal."""
BUSY_S = 0.5
NARRATION, OUTPUT = 100, 200
"""Lines of a job's words that are shown."""
PACKAGES = ("hsbench", "sglang", "torch", "transformers", "textual")
SHM = Path("/dev/shm")
_ELAPSED = re.compile(r"^\[ *[\d.]+ s\] ")
"""Before each line that a command narrates."""


class JobView(msgspec.Struct, frozen=True):
    """A job of any kind. `state` is the word of its kind."""

    key: str
    kind: str
    what: str
    state: str
    running: bool
    since: float
    """Time of day in seconds."""
    seconds: float | None
    """How long it took, or has run; None when nobody knows."""
    last: str = ""
    exit_code: int | None = None


class Detail(msgspec.Struct, frozen=True):
    """What the selected job says: stderr or its log, and stdout."""

    key: str
    title: str
    narration: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class Room(msgspec.Struct, frozen=True):
    """Bytes of something that fills up."""

    used: int
    total: int

    @property
    def share(self) -> float:
        """0 to 1; 0 of nothing."""
        return self.used / self.total if self.total else 0.0


class Vitals(msgspec.Struct, frozen=True):
    """The machine now."""

    cores: tuple[float, ...]
    """How busy each was since the last look, 0 to 1."""
    load: tuple[float, ...]
    memory: Room
    disk: Room
    shm: Room | None
    gpus: tuple[GpuSample, ...]
    no_gpu: str
    """Why there is none to see."""

    @property
    def cpu(self) -> float:
        """How busy all cores are, 0 to 1."""
        return sum(self.cores) / len(self.cores) if self.cores else 0.0


class Report(msgspec.Struct, frozen=True):
    """What the doctor found so far."""

    findings: tuple[Finding, ...] = ()
    examining: bool = False
    ended: float | None = None
    """Time of day in seconds."""

    def count(self, level: str) -> int:
        """How many findings are of a level."""
        return sum(finding.level == level for finding in self.findings)


class Snapshot(msgspec.Struct, frozen=True):
    """All of it."""

    jobs: tuple[JobView, ...]
    vitals: Vitals
    report: Report
    versions: tuple[tuple[str, str], ...]
    places: tuple[tuple[str, str], ...]
    detail: Detail | None = None


class Examination:
    """Runs the doctor in a thread of its own, since it takes seconds and starts interpreters."""

    def __init__(self, look: Callable[[], Iterable[Finding]]) -> None:
        self._look = look
        self._found: list[Finding] = []
        self._before = Report()
        self._thread: threading.Thread | None = None
        self._ended: float | None = None

    def begin(self) -> None:
        """Examine, unless an examination is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._before, self._found = self.report(), []
            self._thread = threading.Thread(target=self._run, args=(self._found,), daemon=True, name="doctor")
            self._thread.start()

    def _run(self, found: list[Finding]) -> None:
        try:
            for finding in self._look():
                found.append(finding)  # noqa: PERF402 - each is seen as it comes
        except Exception as error:
            found.append(Finding("doctor", "problem", f"{type(error).__name__}: {error}", "hsbench doctor"))
        self._ended = time.time()

    def report(self) -> Report:
        """The findings; while it goes on, the earlier ones of the last time stay when there are more of them."""
        examining = self._thread is not None and self._thread.is_alive()
        found = tuple(self._found)
        if examining and self._before.findings:
            return msgspec.structs.replace(self._before, examining=True)
        return Report(found, examining, None if examining else self._ended)


class MachineSource:
    """Looks at jobs and the machine.

    Args:
        look: The doctor.
        nvml: Makes the connection to the GPUs' driver.
    """

    every_s = 1.0

    def __init__(self, look: Callable[[], Iterable[Finding]] = examine, nvml: Callable[[], Nvml] | None = None) -> None:
        self.selected: str | None = None
        """Key of the job whose words are wanted. Set by the screen."""
        self.servers: tuple[ServerStatus, ...] = ()
        self.examination = Examination(look)
        self._nvml_of, self._nvml = nvml or Nvml, None if nvml is None else nvml()
        self._over: dict[str, JobView] = {}
        self._extractions: tuple[float, tuple[KnownJob, ...]] = (-math.inf, ())
        self._times: tuple[float, list[Any]] = (-math.inf, [])
        self._cores: tuple[float, ...] = ()
        self._examined = False
        self._versions = tuple(_versions())

    def collect(self) -> Snapshot:
        """One look. The first begins an examination."""
        if not self._examined:
            self._examined = True
            self.examination.begin()
        jobs = sorted(self._jobs(), key=lambda job: (not job.running, -job.since))
        return Snapshot(
            jobs=tuple(jobs),
            vitals=self._vitals(),
            report=self.examination.report(),
            versions=self._versions,
            places=(("state", str(state_dir())), ("cache", str(cache_dir())), ("config", str(config_file()))),
            detail=self._detail(self.selected),
        )

    def close(self) -> None:
        """An examination that is under way ends by itself."""

    # Jobs

    def _jobs(self) -> Iterator[JobView]:
        for task in store.all_tasks():
            view = self._over.get(task.id)
            if view is None:
                view = task_view(task, time.time())
                if not view.running:
                    self._over[task.id] = view
            yield view
        yield from (_extraction_view(job) for job in self._known())
        yield from (_server_view(status) for status in self.servers)

    def _known(self) -> tuple[KnownJob, ...]:
        when, found = self._extractions
        if time.monotonic() - when >= JOBS_S:
            with contextlib.suppress(OSError, HsbenchError):
                found = tuple(known_jobs())
            self._extractions = (time.monotonic(), found)
        return found

    def _detail(self, key: str | None) -> Detail | None:
        kind, _, name = (key or "").partition(":")
        if kind == "task" and (task := store.load(name)) is not None:
            output = tail(task.folder / "out", OUTPUT)
            return Detail(f"task:{name}", _command(task), tuple(task.narration(NARRATION)), tuple(output))
        if kind == "extraction":
            return Detail(f"extraction:{name}", name, tuple(tail(JobFiles(Path(name)).log, NARRATION)))
        for status in self.servers:
            if kind == "server" and status.server.name == name:
                return Detail(f"server:{name}", f"{name}: {status.server.log}", _log(status))
        return None

    # The machine

    def _vitals(self) -> Vitals:
        memory = psutil.virtual_memory()
        if self._nvml is None:
            self._nvml = self._nvml_of()
        return Vitals(
            cores=self._busy(),
            load=os.getloadavg(),
            memory=Room(memory.total - memory.available, memory.total),
            disk=room_of(state_dir()) or Room(0, 0),
            shm=room_of(SHM) if SHM.is_dir() else None,
            gpus=self._nvml.sample(),
            no_gpu=self._nvml.missing,
        )

    def _busy(self) -> tuple[float, ...]:
        """Over half a second at least: shorter, a look that was asked for measures itself."""
        when, before = self._times
        if time.monotonic() - when >= BUSY_S:
            self._times = (time.monotonic(), psutil.cpu_times(percpu=True))
            self._cores = busy(before, self._times[1])
        return self._cores


def busy(before: list[Any], now: list[Any]) -> tuple[float, ...]:
    """How busy each core was between two readings of its times, 0 to 1; 0 without a reading before."""
    if len(before) != len(now):
        return (0.0,) * len(now)
    return tuple(_busy(old, new) for old, new in zip(before, now, strict=True))


def _busy(old: Any, new: Any) -> float:
    whole = _ticks(new) - _ticks(old)
    idle = sum(getattr(new, name, 0.0) - getattr(old, name, 0.0) for name in ("idle", "iowait"))
    return min(1.0, max(0.0, 1 - idle / whole)) if whole > 0 else 0.0


def _ticks(times: Any) -> float:
    """Linux counts a guest's time in `user` and `nice` as well."""
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def room_of(folder: Path) -> Room | None:
    """The disk of a folder that may not be there yet."""
    for path in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            found = shutil.disk_usage(path)
            return Room(found.total - found.free, found.total)
    return None


def task_view(task: Task, now: float) -> JobView:
    """A task as a job."""
    state = task.state()
    running = state == "running"
    ended = now
    if not running:
        with contextlib.suppress(OSError):
            ended = (task.folder / "exit").stat().st_mtime
    narration = task.narration(8)
    error = next((line for line in narration if line.startswith("hsbench: ")), "")
    return JobView(
        key=f"task:{task.id}",
        kind=task.kind,
        what=" ".join(task.argv[1:]),
        state=state,
        running=running,
        since=task.started,
        seconds=max(0.0, ended - task.started) if running or ended != now else None,
        last=_ELAPSED.sub("", (error if state == "failed" else "") or (narration[-1] if narration else "")),
        exit_code=task.exit_code(),
    )


def _extraction_view(job: KnownJob) -> JobView:
    started = 0.0
    with contextlib.suppress(HsbenchError):
        found = JobFiles(Path(job.folder)).load()
        started = found.started if found is not None else 0.0
    running = job.pid is not None
    return JobView(
        key=f"extraction:{job.folder}",
        kind="extraction",
        what=job.folder,
        state=job.state,
        running=running,
        since=started,
        seconds=time.time() - started if running and started else None,
        last=f"{job.written} of {job.rows} samples of {job.data}",
    )


def _server_view(status: ServerStatus) -> JobView:
    server = status.server
    return JobView(
        key=f"server:{server.name}",
        kind="server",
        what=f"{server.name} {server.url}",
        state=status.state,
        running=status.state != "dead",
        since=server.started,
        seconds=status.seconds if status.state != "dead" else None,
        last=f"{status.phase or server.model}",
    )


def _log(status: ServerStatus) -> tuple[str, ...]:
    return tuple(tail(Path(status.server.log), NARRATION))


def _command(task: Task) -> str:
    return f"hsbench {' '.join(task.argv)}"


def _versions() -> Iterator[tuple[str, str]]:
    """Of the running interpreter; nothing is imported for it."""
    yield "python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not here"


def make() -> MachineSource:
    """The real source."""
    return MachineSource()
