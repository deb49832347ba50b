"""What moved between two looks, and since when nothing has. This is what a verdict is judged from.

Each kind of movement has a floor below which it is noise: an idle scheduler, its timers and health requests read and
write a little all the time.
"""

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from workbench.supervision.records import GpuSample, ProcessSample, Sample, StackSample

READ_FLOOR = 128 * 1024
"""Bytes a second through read calls."""
FAULT_FLOOR = 10.0
"""Page faults a second that go to a disk."""
MEMORY_STEP = 16 << 20
"""Growth of host or GPU memory beyond the most seen so far."""
TRAFFIC_FLOOR = 20e6
"""Bytes a second over PCIe or NVLink. A spinning kernel shows less than one megabyte."""
COMPILER_FLOOR = 0.05
"""Share of a core that a compiler must use to count as working."""
STACKS_KEPT = 20
RATE_OVER_S = 1.0
"""Rates are taken over at least so long: the kernel counts processor time in hundredths of a second."""


class Movement(msgspec.Struct, frozen=True):
    """Something that moved."""

    kind: str
    """`log`, `bar`, `passes`, `read`, `faults`, `memory`, `gpu memory`, `traffic`, `compiler`, `cache`, `tokens`."""
    what: str
    """For a sentence, with numbers."""
    at: float


class Usage(msgspec.Struct, frozen=True):
    """How much one process used and wanted of a core, between two looks."""

    process: ProcessSample
    cpu: float
    wanted: float
    """As `cpu`, and the share of the time its main thread waited for a free core: on a crowded machine a spinning
    process gets less than a core but wants one."""


class Window(msgspec.Struct, kw_only=True):
    """The recent samples, what moved last in each way, and which processes were seen. `add` keeps it up to date."""

    keep_s: float = 60.0
    samples: list[Sample] = []
    last: dict[str, Movement] = {}
    """Kind → its last movement."""
    began: float | None = None
    moved: float | None = None
    """When anything moved last; the beginning counts."""
    longest_silence: float = 0.0
    phase: str = ""
    phase_since: float | None = None
    stacks: list[tuple[float, tuple[StackSample, ...]]] = []
    """The dumps since the last movement."""
    known: dict[int, ProcessSample] = {}
    """Ranks and workers ever seen, by pid."""
    tops: dict[tuple[str, int], int] = {}
    base: Sample | None = None
    """What rates are taken against."""
    usage: tuple[Usage, ...] = ()
    interval: float = RATE_OVER_S
    """Seconds over which the last rates were taken; long when this process itself got little of a core."""

    def add(self, sample: Sample) -> None:
        """Take a sample in. Samples must come in the order of time."""
        if self.began is None:
            self.began = self.moved = sample.at
            self.base = sample
        movements = list(self._movements(sample))
        for movement in movements:
            self.last[movement.kind] = movement
        if movements:
            self.longest_silence = max(self.longest_silence, sample.at - (self.moved or 0.0))
            self.moved = sample.at
            self.stacks = []
        if sample.stacks:
            self.stacks = [*self.stacks[-STACKS_KEPT + 1 :], (sample.at, sample.stacks)]
        self._remember(sample)
        self.samples.append(sample)
        while sample.at - self.samples[0].at > self.keep_s and len(self.samples) > 2:
            self.samples.pop(0)

    @property
    def now(self) -> Sample:
        """The newest sample."""
        return self.samples[-1]

    @property
    def watched(self) -> float:
        """Seconds since the first sample."""
        return self.now.at - (self.began or 0.0)

    @property
    def silent(self) -> float:
        """Seconds since anything moved, as far as it was watched."""
        return self.now.at - (self.moved or 0.0)

    def recent(self, seconds: float) -> list[Movement]:
        """What moved in the last `seconds`, the latest first."""
        found = [m for m in self.last.values() if self.now.at - m.at <= seconds]
        return sorted(found, key=lambda m: -m.at)

    def _remember(self, sample: Sample) -> None:
        for process in sample.processes:
            if process.role in ("rank", "worker", "server") and process.state not in "ZX":
                self.known[process.pid] = process
        phase = sample.log.phase if sample.log else ""
        if phase != self.phase or self.phase_since is None:
            self.phase, self.phase_since = phase, sample.at

    def _movements(self, sample: Sample) -> Iterator[Movement]:
        for gpu in sample.gpus:
            if self._higher(("gpu", gpu.index), gpu.used, MEMORY_STEP):
                yield Movement("gpu memory", f"memory of GPU {gpu.index} grew to {gpu.used / 1e9:.1f} GB", sample.at)
        for process in sample.processes:
            if self._higher(("rss", process.pid), process.rss, MEMORY_STEP):
                yield Movement("memory", f"{process.label} grew to {process.rss / 1e6:.0f} MB", sample.at)
        if self.samples:
            yield from _between(self.samples[-1], sample)
        if self.base is not None and sample.at - self.base.at >= RATE_OVER_S:
            self.interval = sample.at - self.base.at
            self.usage = tuple(_usage(self.base, sample))
            yield from _rates(self.base, sample, self.usage)
            self.base = sample

    def _higher(self, key: tuple[str, int], value: int, step: int) -> bool:
        """Whether a value has left its old top behind by a step."""
        top = self.tops.get(key)
        if top is None or value >= top + step:
            self.tops[key] = value
            return top is not None
        return False


def _between(before: Sample, now: Sample) -> Iterator[Movement]:
    """Counted things."""
    if before.log and now.log:
        if now.log.news > before.log.news:
            yield Movement("log", f"new in the log: {now.log.last[:100]}", now.at)
        if now.log.bar is not None and now.log.bar != before.log.bar:
            yield Movement("bar", f"the progress bar is at {now.log.bar[0]:g} of {now.log.bar[1]:g}", now.at)
        if now.log.activity > before.log.activity:
            yield Movement("passes", "the log tells of prefill or decode passes", now.at)
    if before.port and now.port and before.port.tokens is not None and (now.port.tokens or 0) > before.port.tokens:
        yield Movement("tokens", f"the token counters are at {now.port.tokens:.0f}", now.at)
    if before.port and now.port and now.port.accepts and not before.port.accepts:
        yield Movement("port", f"port {now.port.port} opened", now.at)
    if before.cache is not None and now.cache is not None and now.cache > before.cache:
        yield Movement("cache", "a kernel cache was written", now.at)
    old = {process.pid for process in before.processes}
    for process in now.processes:
        if process.role == "compiler" and process.pid not in old:
            yield Movement("compiler", f"{process.label} was started", now.at)


def _usage(before: Sample, now: Sample) -> Iterator[Usage]:
    seconds = now.at - before.at
    for old, new in _pairs(before.processes, now.processes):
        cpu = (new.cpu_s - old.cpu_s) / seconds
        yield Usage(new, cpu, max(cpu, (new.wanted_s - old.wanted_s) / seconds))


def _rates(before: Sample, now: Sample, usage: Sequence[Usage]) -> Iterator[Movement]:
    """Things that are a movement only when they are fast enough."""
    seconds = now.at - before.at
    for old, new in _pairs(before.processes, now.processes):
        read, faults = (new.read - old.read) / seconds, (new.faults - old.faults) / seconds
        if read > READ_FLOOR:
            yield Movement("read", f"{new.label} reads {read / 1e6:.1f} MB/s", now.at)
        if faults > FAULT_FLOOR:
            yield Movement("faults", f"{new.label} loads {faults:.0f} mapped pages a second", now.at)
    for one in usage:
        if one.process.role == "compiler" and one.cpu > COMPILER_FLOOR:
            yield Movement("compiler", f"{one.process.label} compiles at {one.cpu:.0%} of a core", now.at)
    for gpu, traffic in _traffic(before.gpus, now.gpus, seconds):
        if traffic > TRAFFIC_FLOOR:
            yield Movement("traffic", f"GPU {gpu} moves {traffic / 1e6:.0f} MB/s", now.at)


def _traffic(before: Sequence[GpuSample], now: Sequence[GpuSample], seconds: float) -> Iterator[tuple[int, float]]:
    for old, new in itertools.product(before, now):
        if old.index == new.index:
            links = max(0, new.nvlink - old.nvlink) / seconds if None not in (new.nvlink, old.nvlink) else 0.0  # type: ignore[operator]
            yield new.index, max(new.traffic or 0.0, links)


def _pairs(
    before: Sequence[ProcessSample], now: Sequence[ProcessSample]
) -> Iterator[tuple[ProcessSample, ProcessSample]]:
    old = {(process.pid, process.created): process for process in before}
    for process in now:
        if match := old.get((process.pid, process.created)):
            yield match, process
