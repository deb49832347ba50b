"""Starting several servers of a plan at the same time, and measuring them one after the other.

Most of a sweep is waiting for starts. Where several servers fit beside each other, they are started together. Nothing
is measured while one of them starts, and while one is measured the others only wait. What is compared stays the same:
every start is a process of its own.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from bench.sweep.design import Start
from bench.sweep.environment import GpuWatch
from bench.sweep.gate import ReduceCheck
from bench.sweep.records import MachineWatch, Measured, Next, Server
from bench.sweep.variants import Variant
from workbench.errors import HsbenchError
from workbench.server.launch import Plan
from workbench.server.state import ServerRecord

AGAIN_S = 0.5


class Launcher(Protocol):
    """The part of `bench.sweep.machine.Machine` that is used here."""

    def plan(self, variant: Variant, env: dict[str, str], name: str) -> Plan:
        """The command of a server."""

    def launch(self, plan: Plan, started: Callable[[ServerRecord], None]) -> Server:
        """Start it and wait until it answers."""

    def end(self, record: ServerRecord) -> None:
        """End a server that is still being started."""

    def reduce_check(self, variant: Variant) -> ReduceCheck | None:
        """See `bench.sweep.records.Bench`."""

    def measure(self, url: str) -> Measured:
        """See `bench.sweep.records.Bench`."""


class Parked(msgspec.Struct, frozen=True):
    """A server that waits for its turn, or why it did not come up."""

    server: Server | None
    error: HsbenchError | None = None


class SideBySide:
    """A `Bench` with up to `count` servers at once.

    Args:
        machine: Starts and measures them.
        count: How many fit beside each other.
    """

    def __init__(self, machine: Launcher, count: int) -> None:
        self._machine, self._count = machine, count
        self._next: list[Next] = []
        self._parked: dict[str, Parked] = {}
        self.reduce_check, self.measure = machine.reduce_check, machine.measure

    def upcoming(self, starts: Sequence[Next]) -> None:
        """What will be asked for, in this order. A server that waits for something else is ended."""
        self._next = list(starts)
        wanted = {one.start.key for one in starts}
        for key in [key for key in self._parked if key not in wanted]:
            self._drop(key)

    def start(self, start: Start, variant: Variant, env: dict[str, str]) -> Server:
        """The server of this start, which may be waiting already."""
        if start.key not in self._parked:
            self.done()  # a start that is made again finds the machine as every other did: free
            ahead = [one for one in self._next if one.start.key != start.key]
            self._start_together([Next(start, variant, env), *ahead][: self._count])
        parked = self._parked.pop(start.key)
        if parked.error is not None:
            raise parked.error
        assert parked.server is not None
        return parked.server

    def _start_together(self, batch: Sequence[Next]) -> None:
        names = [f"sweep-{number}" for number in range(1, len(batch) + 1)]
        plans = [self._machine.plan(one.variant, one.env, name) for one, name in zip(batch, names, strict=True)]
        records: list[ServerRecord] = []
        with ThreadPoolExecutor(len(batch)) as pool:
            futures = [pool.submit(self._machine.launch, plan, records.append) for plan in plans]
            try:
                outcomes = [_outcome(future) for future in futures]
            except BaseException:
                self._break_off(futures, records)
                raise
        self._parked.update((one.start.key, parked) for one, parked in zip(batch, outcomes, strict=True))

    def _break_off(self, futures: Sequence["Future[Server]"], records: Sequence[ServerRecord]) -> None:
        """End what was started; the threads that wait for it then end by themselves."""
        while not all(future.done() for future in futures):
            for record in list(records):
                with contextlib.suppress(HsbenchError):
                    self._machine.end(record)
            time.sleep(AGAIN_S)
        for future in futures:
            if future.exception() is None:
                future.result().stop()

    def watch_machine(self) -> MachineWatch:
        """NVML's view, in which the servers that wait are no strangers."""
        return GpuWatch(ours=self._waiting)

    def _waiting(self) -> frozenset[int]:
        pids = [parked.server.pids() for parked in self._parked.values() if parked.server is not None]
        return frozenset().union(*pids)

    def done(self) -> None:
        """End every server that still waits."""
        for key in list(self._parked):
            self._drop(key)

    def _drop(self, key: str) -> None:
        parked = self._parked.pop(key)
        if parked.server is not None:
            parked.server.stop()


def _outcome(future: "Future[Server]") -> Parked:
    try:
        return Parked(future.result())
    except HsbenchError as error:
        return Parked(None, error)
