"""What one look at a server sees. Times are seconds; sizes are bytes; counters grow from the process's start."""

from typing import Literal

import msgspec

Role = Literal["server", "rank", "worker", "compiler", "helper"]
"""The server's main process; a scheduler; another process that the server cannot do without (detokenizer,
data-parallel controller); a compiler of kernels; anything else."""


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the server, from `/proc`."""

    pid: int
    parent: int
    name: str
    """The title that the process gave itself, such as `sglang::scheduler_TP0`, else its program."""
    role: Role
    rank: str = ""
    """Such as `TP0` or `DP1 TP0`; empty when the title holds none."""
    state: str
    """The kernel's letter: R running, S sleeping, D waiting for a device, Z ended and not yet collected."""
    created: int
    """Ticks from boot to the process's creation: with `pid`, its identity."""
    cpu_s: float
    """Processor time of all its threads, in user and kernel mode."""
    wanted_s: float
    """Processor time of its main thread and the time that thread waited for a free core."""
    rss: int
    read: int
    """Bytes that came through read calls, from disk, cache or network file system."""
    faults: int
    """Page faults that had to read from a disk: how a mapped file is loaded."""

    @property
    def label(self) -> str:
        """For a sentence."""
        return f"{self.name} ({self.pid})"


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as its driver tells; None where it does not."""

    index: int
    name: str
    used: int
    total: int
    busy: float | None = None
    """Share of the time in which a kernel ran, 0 to 1. A kernel that spins counts."""
    power_w: float | None = None
    power_limit_w: float | None = None
    traffic: float | None = None
    """Bytes a second over PCIe, both directions."""
    nvlink: int | None = None
    """Bytes over NVLink since some start, both directions."""


class LogSample(msgspec.Struct, frozen=True, kw_only=True):
    """What the log shows so far."""

    lines: int = 0
    """Counted as `milestones` describes, so that two starts can be compared; stops at the ready line."""
    phase: str = ""
    news: int = 0
    """Lines of a kind not seen before, and steps of a progress bar."""
    activity: int = 0
    """Lines that tell of prefill and decode passes."""
    bar: tuple[float, float] | None = None
    """The last progress bar: how far it is and where it ends."""
    last: str = ""
    """The last line, secrets masked."""
    error: str = ""
    """The last error's message, secrets masked."""
    grown: float | None = None
    """Seconds since the log last grew, by the file's own time; None when there is no log."""
    repeats: int = 0
    """How many lines of a kind already seen came since the last news."""


class PortSample(msgspec.Struct, frozen=True, kw_only=True):
    """The server's port and what answers there."""

    port: int
    accepts: bool = False
    owner: int | None = None
    """The process that listens; None when it cannot be seen or nobody does."""
    owned: bool | None = None
    """Whether the owner is the server's own; None when it cannot be told."""
    owner_name: str = ""
    health: int | None = None
    """Status of `/health`; 0 when it did not answer in time."""
    health_at: float | None = None
    """When that was asked, in monotonic seconds."""
    model_info: int | None = None
    server_info: int | None = None
    tokens: float | None = None
    """Prompt and generated tokens so far by `/metrics`, where the server offers it."""
    generation: bool | None = None
    """Whether a streamed request brought a token: False when it was silent, None when none was sent."""
    generation_s: float | None = None
    """How long that took, or how long it has been silent."""
    refused: str = ""
    """Why the request could not be judged, such as a missing API key."""


class StackSample(msgspec.Struct, frozen=True, kw_only=True):
    """Where the busiest thread of one process stands."""

    pid: int
    label: str
    source: Literal["py-spy", "/proc"]
    frames: tuple[str, ...]
    """From the innermost to the outermost, `function (file:line)`; kernel functions from `/proc`."""
    note: str = ""
    """Why it is not better, such as why py-spy was refused."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one instant."""

    at: float
    """Monotonic seconds."""
    processes: tuple[ProcessSample, ...] = ()
    log: LogSample | None = None
    port: PortSample | None = None
    gpus: tuple[GpuSample, ...] = ()
    cache: float | None = None
    """When the newest entry of a kernel cache was written; monotonic only within itself."""
    stacks: tuple[StackSample, ...] = ()
    """Taken only when they matter, since a dump stops the process for some milliseconds."""

    def main(self) -> ProcessSample | None:
        """The server's own process."""
        return next((p for p in self.processes if p.role == "server"), None)
