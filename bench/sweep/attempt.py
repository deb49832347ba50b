"""One start of a server, from looking at the machine to having nothing left of it, as one record."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.sweep.design import Start
from bench.sweep.gate import GateRecord, gate, reduce_faults
from bench.sweep.records import Bench, Environment, Measured, Next, Outcome, Server, StartRecord
from bench.sweep.serving import Served, hidden_settings, not_applied, read_choices, served
from bench.sweep.variants import BASELINE, Variant
from workbench.errors import CheckFailed, HsbenchError, ServerBroken, TimedOut
from workbench.extract.durable import replace_bytes

REFERENCE_FILE = "reference.json"
DEBUG_SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING,P2P,SHM"


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a server while it was there."""

    outcome: Outcome
    reason: str = ""
    measured: Measured | None = None
    served: Served | None = None
    notes: tuple[str, ...] = ()


def debug_env(folder: Path, name: str) -> dict[str, str]:
    """The variables of a debug start: NCCL writes into files of its own, so the server's log stays as it is."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": DEBUG_SUBSYSTEMS,
        "NCCL_DEBUG_FILE": str(folder / "nccl" / f"{name}.%h.%p.log"),
    }


class Attempts:
    """Makes starts. The baseline's first outputs are the reference of the gate and are kept in the run folder.

    Args:
        bench: The machine.
        folder: Of the run.
        wall: Seconds since the epoch.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        bench: Bench,
        folder: Path,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bench, self._folder, self._wall, self._clock = bench, folder, wall, clock

    def upcoming(self, starts: Sequence[tuple[Start, Variant]]) -> None:
        """Tell the machine what lies ahead, in order."""
        self._bench.upcoming([Next(start, variant, self._env(start, variant)) for start, variant in starts])

    def _env(self, start: Start, variant: Variant) -> dict[str, str]:
        return debug_env(self._folder, variant.name) if start.stage == "debug" else {}

    def run(self, start: Start, variant: Variant, attempt: int) -> StartRecord:
        """One timed start.

        Raises:
            CheckFailed: the opening start of the baseline failed, so there is nothing to compare with.
            ServerError: something of the server is left after its stop.
        """
        wall, began = self._wall(), self._clock()
        watch = self._bench.watch_machine()
        environment: Environment | None = None
        try:
            tried = self._guarded(lambda: self._timed(start, variant, watch.measuring))
        finally:
            environment = watch.end()
        if variant.name == BASELINE:
            tried = _as_baseline(start, tried)
        if tried.outcome == "measured" and (why := _unbelievable(tried, environment)):
            tried = msgspec.structs.replace(tried, outcome="invalid", reason=why, measured=None)
        return StartRecord(
            start=start,
            outcome=tried.outcome,
            reason=tried.reason,
            attempt=attempt,
            measured=tried.measured,
            served=tried.served,
            notes=tried.notes,
            environment=environment,
            began=wall,
            seconds=self._clock() - began,
        )

    def debug(self, start: Start, variant: Variant) -> StartRecord:
        """One start with NCCL's log on. It is never timed, and its failure says nothing about the variant."""
        wall, began = self._wall(), self._clock()
        env = self._env(start, variant)
        Path(env["NCCL_DEBUG_FILE"]).parent.mkdir(exist_ok=True)
        log = ""

        def look(server: Server) -> Tried:
            nonlocal log
            server.gate_record()
            sight = server.sight()
            log = sight.nccl_log
            return Tried(outcome="debug", served=served(sight))

        tried = self._guarded(lambda: self._with_server(start, variant, env, look))
        return StartRecord(
            start=start,
            outcome="debug",
            reason=tried.reason,
            served=tried.served,
            choices=read_choices(log),
            began=wall,
            seconds=self._clock() - began,
        )

    def _guarded(self, work: Callable[[], Tried]) -> Tried:
        """The work's outcome, or what its error means."""
        try:
            return work()
        except StopFailed as error:
            raise error.cause from error
        except (ServerBroken, TimedOut) as error:
            return Tried(outcome="hung", reason=error.message)
        except HsbenchError as error:
            return Tried(outcome="died", reason=error.message)

    def _timed(self, start: Start, variant: Variant, measuring: Callable[[frozenset[int]], None]) -> Tried:
        if faults := reduce_faults(self._bench.reduce_check(variant)):
            return Tried(outcome="gate", reason="; ".join(faults))

        def work(server: Server) -> Tried:
            return self._judged(start, variant, server, measuring)

        return self._with_server(start, variant, {}, work)

    def _with_server(
        self, start: Start, variant: Variant, env: dict[str, str], work: Callable[[Server], Tried]
    ) -> Tried:
        server = self._bench.start(start, variant, env)
        try:
            return work(server)
        finally:
            try:
                server.stop()
            except HsbenchError as error:
                raise StopFailed(error) from error

    def _judged(
        self, start: Start, variant: Variant, server: Server, measuring: Callable[[frozenset[int]], None]
    ) -> Tried:
        """Applied, right, and how fast: in this order, since a speed of anything else is worth nothing."""
        sight = server.sight()
        carried = served(sight)
        missing = not_applied(variant, sight.environ)
        if missing:
            return Tried(outcome="not applied", reason=f"did not arrive: {'; '.join(missing)}", served=carried)
        notes = hidden_settings(sight.environ or {})
        if sight.environ is None and variant.env:
            notes += ("whether its variables arrived is not known: the scheduler's environment cannot be read",)
        outputs = server.gate_record()
        gated = gate(outputs if start.stage == "open" else self._reference(), outputs)
        notes += gated.notes
        if not gated.passed:
            return Tried(outcome="gate", reason="; ".join(gated.failures), served=carried, notes=notes)
        if start.stage == "open":
            replace_bytes(self._folder / REFERENCE_FILE, msgspec.json.encode(outputs))
        measuring(server.pids())
        measured = self._bench.measure(server.url)
        return Tried(outcome="measured", measured=measured, served=carried, notes=notes)

    def _reference(self) -> GateRecord:
        return msgspec.json.decode((self._folder / REFERENCE_FILE).read_bytes(), type=GateRecord)


class StopFailed(Exception):
    """Something of a server is left: no further start can be trusted."""

    def __init__(self, cause: HsbenchError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def _as_baseline(start: Start, tried: Tried) -> Tried:
    """A baseline that fails is no variant that ends: it is the start that does not count."""
    if tried.outcome == "measured":
        return tried
    if start.stage == "open":
        raise CheckFailed(
            f"the baseline itself {_FAILS[tried.outcome]}: {tried.reason}", "make the server work before sweeping it"
        )
    return msgspec.structs.replace(
        tried, outcome="invalid", reason=f"the baseline {_FAILS[tried.outcome]}: {tried.reason}"
    )


def _unbelievable(tried: Tried, environment: Environment) -> str:
    """Why the speeds do not count; empty when they do."""
    said = tried.measured.invalid if tried.measured else ""
    speeds = tried.measured.speeds() if tried.measured else {}
    wrong = [f"{name} is {value}" for name, value in speeds.items() if not (math.isfinite(value) and value > 0)]
    return "; ".join([*([said] if said else []), *wrong, *environment.invalid])


_FAILS: dict[Outcome, str] = {
    "hung": "hangs",
    "died": "does not run",
    "gate": "does not repeat its own outputs",
    "not applied": "is not what was asked for",
}
