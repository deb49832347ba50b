"""What a sweep measures and tells: records of starts, kept in `starts.jsonl`, and events for a front end."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from bench.sweep.design import Start
from bench.sweep.gate import GateRecord, ReduceCheck
from bench.sweep.serving import Choice, Served, Sight
from bench.sweep.stats import Decision
from bench.sweep.variants import Variant

Outcome = Literal["measured", "invalid", "hung", "died", "gate", "not applied", "debug"]
ENDING: frozenset[Outcome] = frozenset({"hung", "died", "gate", "not applied"})
"""Outcomes after which a variant is not started again."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The speeds of one started server, each the median of its repetitions."""

    decode_tok_s: float
    prefill_tok_s: float | None = None
    details: dict[str, float] = {}
    """Anything else worth keeping, such as percentiles; not compared."""
    invalid: str = ""
    """Why the speeds cannot be believed, such as a client that was the limit; empty when they can."""

    def speeds(self) -> dict[str, float]:
        """The speeds to compare, by name."""
        pairs = {"decode_tok_s": self.decode_tok_s, "prefill_tok_s": self.prefill_tok_s}
        return {name: value for name, value in pairs.items() if value is not None}


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU while a server was measured: the least clocks, the mean power, and every throttle reason seen."""

    index: int
    name: str
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around one start."""

    gpus: tuple[GpuState, ...] = ()
    governor: str = ""
    invalid: tuple[str, ...] = ()
    """Why speeds measured in it cannot be compared."""


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished start: a line of `starts.jsonl`."""

    start: Start
    outcome: Outcome
    reason: str = ""
    attempt: int = 1
    measured: Measured | None = None
    served: Served | None = None
    choices: tuple[Choice, ...] = ()
    """Of a debug start: what NCCL chose, by size."""
    notes: tuple[str, ...] = ()
    environment: Environment | None = None
    began: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    """From the start of the server until nothing was left of it."""


class Server(Protocol):
    """A server that answers. Its methods raise an error of `workbench.errors` when it hangs or dies."""

    url: str

    def gate_record(self) -> GateRecord:
        """Greedy outputs and probe tensors of fixed prompts."""

    def sight(self) -> Sight:
        """Its log, `/server_info`, the environment of its scheduler, and NCCL's log if there is one."""

    def pids(self) -> frozenset[int]:
        """The processes of the server."""

    def stop(self) -> None:
        """End it and whatever belongs to it; raise when something is left."""


class Next(msgspec.Struct, frozen=True):
    """A start that lies ahead: its variant, and variables beside the variant's."""

    start: Start
    variant: Variant
    env: dict[str, str] = {}


class Bench(Protocol):
    """What the sweep is handed: a machine that starts servers and measures them."""

    def reduce_check(self, variant: Variant) -> ReduceCheck | None:
        """Whether all-reduce adds up under the variant's variables; None where there are no GPUs for it.

        It is asked before each start, in processes of its own; one answer a variant may be kept.

        Raises:
            ServerBroken: it hung.
        """

    def upcoming(self, starts: Sequence[Next]) -> None:
        """What `start` will be called with, in order, unless a variant ends; to have servers started ahead."""

    def done(self) -> None:
        """Nothing more will be started."""

    def start(self, start: Start, variant: Variant, env: dict[str, str]) -> Server:
        """Start a server and wait until it answers.

        Args:
            start: Which start of the plan this is, for names of logs.
            variant: Its flags and variables come on top of the baseline's.
            env: More variables, such as those of NCCL's log.

        Raises:
            ServerBroken: supervision found it hung; the message is the verdict's words. Nothing of it is left.
            HsbenchError: it did not come up; nothing of it is left.
        """

    def measure(self, url: str) -> Measured:
        """Warm the server up and measure it."""

    def watch_machine(self) -> "MachineWatch":
        """Begins to look at clocks, power and foreign load; before a server is started."""


class MachineWatch(Protocol):
    """Looks at the machine from its making until `end`."""

    def measuring(self, own: frozenset[int]) -> None:
        """From now on what happens concerns the speeds; `own` are the server's processes."""

    def end(self) -> Environment:
        """What was seen."""


class Planned(msgspec.Struct, frozen=True):
    """What lies ahead."""

    variants: tuple[str, ...]
    starts: int
    """Of the screening, with the opening."""
    finished: int
    left_out: tuple[tuple[str, str], ...]


class Began(msgspec.Struct, frozen=True):
    """A server is being started."""

    start: Start
    settings: str


class Finished(msgspec.Struct, frozen=True):
    """A start is over and written down."""

    record: StartRecord


class Ended(msgspec.Struct, frozen=True):
    """A variant will not be started again; the sweep goes on."""

    variant: str
    reason: str


class Confirming(msgspec.Struct, frozen=True):
    """These looked faster and are started afresh; their fresh starts alone decide. Empty when none did."""

    variants: tuple[str, ...]


class BudgetSpent(msgspec.Struct, frozen=True):
    """The time does not suffice for another start; the same command goes on from here."""

    left: int
    """Starts of the present stage that were not made."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One variant in the table of decisions."""

    variant: str
    settings: str
    verdict: str
    """`faster`, `slower`, `same`, `undecided`, or how it ended: `hung`, `died`, `gate`, `not applied`."""
    stage: Literal["screen", "confirm"] = "screen"
    """Where the decision comes from."""
    decisions: dict[str, Decision] = {}
    """By speed; `decode_tok_s` is the one that gives the verdict."""
    reason: str = ""
    served: Served | None = None
    choices: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a sweep, or of as much of it as there is."""

    rows: tuple[Row, ...]
    margin: float
    baseline: dict[str, float]
    """The median of the valid starts."""
    drift: float | None
    """Decode speed of the last baseline over the first, less one."""
    invalid: tuple[str, ...]
    """Starts that were not counted, with the reason."""
    complete: bool


SweepEvent = Planned | Began | Finished | Ended | Confirming | BudgetSpent | Table
