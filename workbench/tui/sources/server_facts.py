"""What the Server mode shows of one server, and how it is made from samples, milestones and a verdict."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from workbench.server.log import FIRST_PHASE, PHASES
from workbench.supervision.known_good import KnownGood
from workbench.supervision.milestones import Milestone
from workbench.supervision.records import GpuSample, ProcessSample, Sample, StackSample
from workbench.supervision.verdict import State, Verdict
from workbench.tui.glyphs import Level

NAMES = (FIRST_PHASE, *(name for name, _ in PHASES))
STATES = {"R": "running", "S": "sleeping", "D": "disk wait", "Z": "ended", "X": "ended", "T": "stopped", "t": "traced"}
LEVELS: dict[State, Level] = {
    State.PROGRESSING: "busy",
    State.SLOW: "warn",
    State.WAITING: "warn",
    State.SUSPECT_SPIN: "warn",
    State.HUNG_SPIN: "bad",
    State.DEAD_CHILD: "bad",
    State.STOPPED_CHILD: "bad",
    State.PORT_TAKEN: "bad",
    State.READY_UNVERIFIED: "good",
    State.READY: "good",
    State.UNHEALTHY_BUT_BUSY: "warn",
    State.ZOMBIE_READY: "bad",
}
FRAMES = 4
"""Calls shown of a stack."""


class Phase(msgspec.Struct, frozen=True):
    """One part of a start. Times are seconds; `known` is the median of the good starts."""

    name: str
    state: Literal["done", "running", "ended here", "to come"]
    seconds: float | None = None
    known: float | None = None


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `cpu` is a share of a core and `read` bytes a second, since the look before; None at first."""

    pid: int
    created: int
    rank: str
    name: str
    cpu: float | None
    rss: int
    read: float | None
    state: str
    stack: str = ""


class GpuRow(msgspec.Struct, frozen=True):
    """One GPU, and its bytes a second over NVLink since the look before."""

    gpu: GpuSample
    nvlink: float | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The host. `cpu` is a share of all cores."""

    cpu: float
    cores: int
    load: float
    used: int
    total: int


class Standing(msgspec.Struct, frozen=True):
    """Processes that stand at the same place."""

    who: tuple[str, ...]
    frames: tuple[str, ...]


class Hidden(tuple[str, ...]):
    """Values that must not be shown, not even when something that holds them is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Hidden({len(self)})"


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the selected server; about the machine alone when `name` is empty."""

    name: str = ""
    key: str = ""
    alive: bool = False
    log: str = ""
    secrets: Hidden = Hidden()
    verdict: Verdict | None = None
    """None before the first look."""
    why: str = ""
    """What the last error of a dead server's log says."""
    last_words: tuple[str, ...] = ()
    """Of a dead server."""
    silent: float = 0.0
    """Seconds in which nothing moved, and how many are allowed."""
    allowed: float = 0.0
    known_silence: float | None = None
    known_lines: int | None = None
    known_seconds: float | None = None
    lines: int | None = None
    """Lines of the log as good starts count them."""
    skipped: int = 0
    """Bytes of the log that were not looked at, because it is too long."""
    phases: tuple[Phase, ...] = ()
    standing: tuple[Standing, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    no_gpu: str = ""
    machine: Machine | None = None


def phases(
    milestones: Sequence[Milestone], phase: str, lasts: float, known: KnownGood | None, alive: bool
) -> Iterator[Phase]:
    """The parts of a start: those done with their lengths, the present one, and those to come.

    Args:
        milestones: What was entered and when.
        phase: The present one.
        lasts: Seconds since it was entered.
        known: The good starts.
        alive: The server still runs.
    """
    entered = {FIRST_PHASE: 0.0, **{m.phase: m.seconds for m in milestones}}
    times = sorted(entered.values())
    present = NAMES.index(phase) if phase in NAMES else 0
    for number, name in enumerate(NAMES):
        usual = known.seconds if known and name == "ready" else known.phase_seconds(name) if known else None
        if number > present:
            if known is None or usual is not None:
                yield Phase(name, "to come", None, usual)
        elif name == "ready":
            yield Phase(name, "done", entered.get(name), usual)
        elif number == present:
            yield Phase(name, "running" if alive else "ended here", lasts, usual)
        elif name in entered:
            after = next((time for time in times if time > entered[name]), entered[name])
            yield Phase(name, "done", after - entered[name], usual)


def process_rows(now: Sample, before: Sample | None, stacks: Iterable[StackSample] = ()) -> Iterator[ProcessRow]:
    """Processes by rank, with what they used between two samples."""
    old = {(p.pid, p.created): p for p in before.processes} if before else {}
    seconds = now.at - before.at if before else 0.0
    at = {stack.pid: stack.frames[0] for stack in stacks if stack.frames}
    for process in sorted(now.processes, key=_order):
        was = old.get((process.pid, process.created)) if seconds > 0 else None
        yield ProcessRow(
            pid=process.pid,
            created=process.created,
            rank=process.rank or process.role,
            name=process.name,
            cpu=max(0.0, process.cpu_s - was.cpu_s) / seconds if was else None,
            rss=process.rss,
            read=max(0, process.read - was.read) / seconds if was else None,
            state=STATES.get(process.state, process.state),
            stack=at.get(process.pid, ""),
        )


def _order(process: ProcessSample) -> tuple[object, ...]:
    roles = ("server", "rank", "worker", "compiler", "helper")
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in process.rank.split())
    return roles.index(process.role), numbers, process.pid


def gpu_rows(now: Sequence[GpuSample], before: Sequence[GpuSample], seconds: float) -> Iterator[GpuRow]:
    """GPUs, with their traffic over NVLink between two samples."""
    old = {gpu.index: gpu.nvlink for gpu in before}
    for gpu in now:
        was = old.get(gpu.index)
        moved = None if gpu.nvlink is None or was is None or seconds <= 0 else max(0, gpu.nvlink - was) / seconds
        yield GpuRow(gpu, moved)


def standing(dumped: Sequence[StackSample], ranks: dict[int, str]) -> tuple[Standing, ...]:
    """Processes grouped by where they stand, the largest group first: whoever stands elsewhere than all others is
    mostly the one that they wait for.

    Args:
        dumped: One stack a process.
        ranks: Process → what it is called.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for stack in dumped:
        if stack.frames:
            place = tuple(frame.rpartition(":")[0] or frame for frame in stack.frames[:FRAMES])
            groups.setdefault(place, []).append(ranks.get(stack.pid) or stack.label)
    found = [Standing(tuple(who), tuple(f"{p})" if "(" in p else p for p in place)) for place, who in groups.items()]
    return tuple(sorted(found, key=lambda one: -len(one.who)))


def named(who: Sequence[str]) -> str:
    """Names in short: `TP0 to TP7` when they follow each other."""
    numbers = [one.removeprefix("TP") for one in who]
    if len(who) > 2 and all(n.isdigit() for n in numbers):
        first, last = int(numbers[0]), int(numbers[-1])
        if [int(n) for n in numbers] == list(range(first, last + 1)):
            return f"TP{first} to TP{last}"
    return ", ".join(who[:6]) + (f" and {len(who) - 6} more" if len(who) > 6 else "")
