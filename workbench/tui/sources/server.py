"""Looks at the selected server: the same watching as `hsbench serve` does, which sends no requests here."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from workbench.server import log, processes
from workbench.server.log import CHUNK_BYTES
from workbench.server.secrets import secret_values
from workbench.server.survey import ServerStatus
from workbench.supervision import signals
from workbench.supervision.gpu import Nvml
from workbench.supervision.judge import Case
from workbench.supervision.milestones import LogFollower
from workbench.supervision.records import GpuSample, Sample
from workbench.supervision.target import Target, of_record
from workbench.supervision.verdict import Facts, Limits
from workbench.supervision.watch import Watch
from workbench.tui.sources.server_facts import (
    GpuRow,
    Hidden,
    Machine,
    ProcessRow,
    ServerView,
    gpu_rows,
    phases,
    process_rows,
    standing,
)

EVERY_S = 1.0
SOON_S = 0.02
GPU_S = 2.0
STUCK_S = 30.0
"""A server whose log was silent for so long when it was first looked at is watched as one that may hang."""
RARE_S = 30.0
"""Seconds between two dumps of stacks once there are enough: each stops the processes for a moment."""
START, RECENT = 4 << 20, 1 << 20
"""Bytes of a long log that are read for its milestones, from its start and from its end."""
WORDS = 8


class StartFollower(LogFollower):
    """Reads a log for its milestones. Of one that is long already, only the start and the end."""

    skipped = 0

    def _chunks(self) -> Iterator[bytes]:
        for data in super()._chunks():
            yield data
            if not self.skipped and self._offset >= START and self._skip():
                return  # the open file stands elsewhere; the rest is read at the next look

    def _skip(self) -> bool:
        """What is left out holds no milestone: they come within the first lines."""
        with contextlib.suppress(OSError):
            behind = self.path.stat().st_size - self._offset - RECENT
            if behind > CHUNK_BYTES:
                self.skipped = behind
                self._offset += behind
        return self.skipped > 0


class ServerSource:
    """Keeps one `Watch` for as long as the same server is selected. The screen sets `selected` and wakes the poller."""

    def __init__(self, nvml: Nvml | None = None, limits: Limits | None = None) -> None:
        self.selected: ServerStatus | None = None
        self.every_s = EVERY_S
        self._limits = limits or Limits()
        self._nvml = nvml
        self._key = ""
        self._watch: Watch | None = None
        self._follower: StartFollower | None = None
        self._before: Sample | None = None
        self._rows: tuple[ProcessRow, ...] = ()
        self._gpus: tuple[GpuSample, ...] = ()
        self._gpu_rows: tuple[GpuRow, ...] = ()
        self._gpus_at = float("-inf")
        self._words: tuple[object, tuple[str, ...]] = (None, ())
        psutil.cpu_percent()

    def collect(self) -> ServerView:
        """Look once. The first look at another server only says where its log is, so that it is shown at once."""
        status = self.selected
        if status is None:
            self._leave()
            self.every_s = EVERY_S
            return self._around(ServerView())
        record = status.server
        key = f"{record.name} {record.pid} {record.since_boot}"
        alive = processes.find(record.pid, record.since_boot) is not None
        if key != self._key:
            self._begin(key, status, alive)
            self.every_s = SOON_S
            return self._empty(status, alive)
        self.every_s = EVERY_S
        return self._around(self._look(status, alive))

    def close(self) -> None:
        """End the questions over HTTP."""
        self._leave()

    # One server

    def _begin(self, key: str, status: ServerStatus, alive: bool) -> None:
        self._leave()
        target = of_record(status.server)
        lost = status.lost if alive else (*status.lost, f"the server's process ({target.pid})")
        if not alive:
            target = msgspec.structs.replace(target, port=None)  # who answers there now is another
        self._follower = StartFollower(Path(status.server.log), target.began)
        self._follower.secrets = _secrets(target) if alive else ()
        self._watch = Watch(
            target,
            self._limits,
            follower=self._follower,
            generate=False,
            attached=alive and status.state in ("starting", "silent") and _quiet_for(target.log) > STUCK_S,
            lost=lost,
            nvml=self._driver(),
        )
        self._watch.__enter__()
        self._key = key

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
        self._watch = self._follower = self._before = None
        self._key, self._rows = "", ()

    def _empty(self, status: ServerStatus, alive: bool) -> ServerView:
        assert self._follower is not None
        secrets = Hidden(self._follower.secrets)
        return ServerView(name=status.server.name, key=self._key, alive=alive, log=status.server.log, secrets=secrets)

    def _look(self, status: ServerStatus, alive: bool) -> ServerView:
        watch, follower = self._watch, self._follower
        assert watch is not None
        assert follower is not None
        seen = watch.look()
        self._calm(watch)
        known = watch.known
        case = Case(watch.window, _facts(watch, seen.sample), self._limits)
        dumped = watch.window.stacks[-1][1] if watch.window.stacks else ()
        words = self._last_words(follower.path) if not alive else ()
        self._account(seen.sample)
        return msgspec.structs.replace(
            self._empty(status, alive),
            verdict=seen.verdict,
            why=follower.hide(log.reason(list(words))),
            last_words=tuple(follower.hide(line) for line in words),
            silent=case.silent,
            allowed=case.silence_limit,
            known_silence=known.longest_silence if known else None,
            known_lines=known.lines if known else None,
            known_seconds=known.seconds if known else None,
            lines=seen.sample.log.lines if seen.sample.log else None,
            skipped=follower.skipped,
            phases=tuple(phases(follower.milestones, follower.phase, _lasts(follower, alive), known, alive)),
            standing=standing(dumped, {row.pid: row.rank for row in self._rows}),
            processes=self._rows,
        )

    def _last_words(self, path: Path) -> tuple[str, ...]:
        """Of a dead server; read again only when the log is another, since secrets are looked for in all of its end."""
        try:
            size = path.stat().st_size
        except OSError:
            return ()
        if self._words[0] != (path, size):
            self._words = ((path, size), tuple(log.tail(path, WORDS)))
        return self._words[1]

    def _calm(self, watch: Watch) -> None:
        """Once something moved, or enough stacks were compared, the processes are left alone again."""
        if watch.attached and watch.window.last:
            watch.attached = False
        enough = len(watch.window.stacks) >= self._limits.stacks
        watch.limits = msgspec.structs.replace(self._limits, stack_gap_s=RARE_S) if enough else self._limits

    def _account(self, sample: Sample) -> None:
        """Rates are taken over about a second, however often it is looked."""
        before, dumped = self._before, self._watch.window.stacks if self._watch else []
        if before is None or sample.at - before.at >= 0.8 * EVERY_S:
            stacks = dumped[-1][1] if dumped else ()
            self._rows, self._before = tuple(process_rows(sample, before, stacks)), sample

    # The machine

    def _around(self, view: ServerView) -> ServerView:
        self._look_at_gpus()
        memory = psutil.virtual_memory()
        return msgspec.structs.replace(
            view,
            gpus=self._gpu_rows,
            no_gpu="" if self._gpu_rows else self._driver().missing or "NVML finds none",
            machine=Machine(
                cpu=psutil.cpu_percent() / 100,
                cores=os.cpu_count() or 1,
                load=os.getloadavg()[0],
                used=memory.total - memory.available,
                total=memory.total,
            ),
        )

    def _look_at_gpus(self) -> None:
        """A sample takes up to 20 ms a GPU, so the one of the watching is used where there is one."""
        now = time.monotonic()
        if now - self._gpus_at < GPU_S:
            return
        watched = self._before.gpus if self._before else ()
        sample = watched or self._driver().sample()
        if sample is not self._gpus:
            self._gpu_rows = tuple(gpu_rows(sample, self._gpus, now - self._gpus_at))
            self._gpus, self._gpus_at = sample, now

    def _driver(self) -> Nvml:
        if self._nvml is None:
            self._nvml = Nvml()
        return self._nvml


def _facts(watch: Watch, sample: Sample) -> Facts:
    """What the silence that is shown is measured by; as `Watch` does it."""
    grown = sample.log.grown if sample.log is not None and watch.attached else None
    return Facts(known_silence=watch.known.longest_silence if watch.known else None, logged_silence=grown)


def _secrets(target: Target) -> tuple[str, ...]:
    return secret_values(signals.environment(target.pid), signals.command_line(target.pid))


def _quiet_for(path: Path | None) -> float:
    """Seconds since a log grew."""
    if path is not None:
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime
    return 0.0


def _lasts(follower: LogFollower, alive: bool) -> float:
    """Seconds of the present phase; of a dead server until its log ended."""
    lasts = follower.phase_seconds()
    return lasts if alive else max(0.0, lasts - _quiet_for(follower.path))


def make() -> ServerSource:
    """The real source."""
    return ServerSource()
