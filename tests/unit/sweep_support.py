"""A machine for sweeps without any: servers that answer, hang, compute something else or lose their variables."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.sweep.design import Start
from bench.sweep.gate import GateRecord, Greedy, ReduceCheck
from bench.sweep.journal import Settings
from bench.sweep.records import Environment, Measured, Next, SweepEvent, Table
from bench.sweep.serving import Sight
from bench.sweep.sweep import sweep
from bench.sweep.variants import Variant
from workbench.errors import ServerBroken, ServerDied

RIGHT = GateRecord(greedy=(Greedy(prompt="a", tokens=(5, 6, 7), second=(1, 2, 3), margins=(3.0, 0.1, 3.0)),))
NEAR = GateRecord(greedy=(Greedy(prompt="a", tokens=(5, 2, 4)),))
"""Another text, from a token on where the right one was a near tie."""
WRONG = GateRecord(greedy=(Greedy(prompt="a", tokens=(5, 9, 7)),))
HANGS = "HUNG_SPIN(first all-reduce), 95% sure"


def flag_variants(*names: str) -> tuple[Variant, ...]:
    return tuple(Variant(name=name, axis="flags", flags=(f"--{name}",)) for name in names)


class Watcher:
    """Sees nothing wrong, unless it is told what to see."""

    def __init__(self, machine: "Machine", invalid: tuple[str, ...]) -> None:
        self._machine, self._invalid = machine, invalid

    def measuring(self, own: frozenset[int]) -> None:
        assert own == {4711}
        self._machine.tick("measuring")

    def end(self) -> Environment:
        return Environment(invalid=self._invalid)


class FakeServer:
    """A server under one variant."""

    def __init__(self, machine: "Machine", start: Start, variant: Variant, env: dict[str, str]) -> None:
        self._machine, self._start, self._variant, self._env = machine, start, variant, env
        self.url = f"http://{start.key}"

    def gate_record(self) -> GateRecord:
        self._machine.tick("gate_record")
        return {"wrong": WRONG, "near": NEAR}.get(self._variant.name, RIGHT)

    def sight(self) -> Sight:
        self._machine.tick("sight")
        environ = {} if self._variant.name == "lost" else dict(self._variant.env)
        line = "h:1:1 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
        return Sight(
            info={"tp_size": 2, "disable_custom_all_reduce": True},
            environ=environ,
            nccl_log=line if self._env.get("NCCL_DEBUG") == "INFO" else "",
        )

    def pids(self) -> frozenset[int]:
        return frozenset({4711})

    def stop(self) -> None:
        self._machine.running.remove(self._start.key)
        self._machine.tick("stop")


class Machine:
    """The seam `Bench`. Speeds depend on the start alone, so that a resumed sweep must equal an uninterrupted one.

    Args:
        gains: Variant → share by which it is faster.
        break_at: The number of the call that Ctrl-C breaks off; -1 breaks none.
        invalid: Key of a start → what is wrong with the machine in its first attempts, one text each.
    """

    def __init__(
        self,
        gains: dict[str, float] | None = None,
        break_at: int = -1,
        invalid: dict[str, list[str]] | None = None,
        noise: Callable[[Start], float] | None = None,
    ) -> None:
        self.gains, self.break_at, self.invalid = gains or {}, break_at, invalid or {}
        self.noise = noise or (lambda start: 0.002 * ((hash_of(start.key) % 11) - 5) / 5)
        self.calls: list[str] = []
        self.running: list[str] = []
        self.started: list[str] = []
        self.now = 0.0
        self.hangs_at = ""
        self.odd: dict[str, Measured] = {}

    def tick(self, name: str) -> None:
        self.calls.append(name)
        self.now += 1.0
        if len(self.calls) == self.break_at:
            raise KeyboardInterrupt

    def upcoming(self, starts: Sequence[Next]) -> None:
        self.ahead = [one.start.key for one in starts]

    def done(self) -> None:
        assert not self.running

    def reduce_check(self, variant: Variant) -> ReduceCheck | None:
        self.tick("reduce_check")
        return ReduceCheck(wrong=((4096, 3),), sizes=(4096,)) if variant.name == "corrupts" else None

    def start(self, start: Start, variant: Variant, env: dict[str, str]) -> FakeServer:
        assert not self.running, "two servers at once"
        self.tick("start")
        self.started.append(start.key)
        if variant.name == "hangs":
            raise ServerBroken(HANGS)
        if variant.name == "dies":
            raise ServerDied("the server ended with code 1")
        self.running.append(start.key)
        self.current = start
        return FakeServer(self, start, variant, env)

    def measure(self, url: str) -> Measured:
        start = self.current
        assert url == f"http://{start.key}"
        self.tick("measure")
        if start.variant == "hangs-late" or start.key == self.hangs_at:
            raise ServerBroken(HANGS)
        if start.variant in self.odd:
            return self.odd[start.variant]
        speed = 100.0 * (1 + self.gains.get(start.variant, 0.0)) * (1 + self.noise(start))
        return Measured(decode_tok_s=speed, prefill_tok_s=10 * speed)

    def watch_machine(self) -> Watcher:
        self.tick("watch_machine")
        key = self.next_key
        wrong = self.invalid.get(key, [])
        return Watcher(self, (wrong.pop(0),) if wrong else ())

    next_key = ""

    def drive(self, settings: Settings, folder: Path, budget_s: float | None = None) -> Iterator[SweepEvent]:
        """Run a sweep on this machine, told before each start which it is."""
        for event in sweep(self, settings, folder, budget_s=budget_s, clock=lambda: self.now, wall=lambda: 0.0):
            self.next_key = event.start.key if hasattr(event, "start") else ""
            yield event


def hash_of(text: str) -> int:
    """A number from a text that is the same in every process."""
    return sum((index + 1) * ord(letter) for index, letter in enumerate(text))


def table_of(events: list[SweepEvent]) -> Table:
    last = events[-1]
    assert isinstance(last, Table)
    return last


def verdicts(table: Table) -> dict[str, str]:
    return {row.variant: row.verdict for row in table.rows}


def timeless(folder: Path) -> list[dict[str, object]]:
    """The lines of `starts.jsonl` without their durations."""
    lines = (folder / "starts.jsonl").read_bytes().splitlines()
    return [{**msgspec.json.decode(line), "seconds": 0} for line in lines]
