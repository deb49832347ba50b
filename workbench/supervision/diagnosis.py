"""The diagnosis of one process: whose it is, what is known of it, and watching it for some seconds."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import HsbenchError
from workbench.server import roster
from workbench.supervision.target import Target, of_pid, of_record, record_of
from workbench.supervision.verdict import Limits
from workbench.supervision.watch import Observation, Watch


def find_target(pid: int, log: Path | None = None, port: int | None = None) -> tuple[Target, tuple[str, ...]]:
    """The server of a process, and which of its processes are known to be gone.

    A server of ours is known by its record, whichever of its processes is named; of any other, the release is asked
    of its interpreter.

    Raises:
        UsageError: there is no such process, or it may not be read.
    """
    record = record_of(pid)
    if record is not None and pid == record.pid:
        target = of_record(record)
        changed = {"log": log or target.log, "port": port or target.port}
        return msgspec.structs.replace(target, **changed), roster.lost(record)
    target = of_pid(pid, log, port)
    return msgspec.structs.replace(target, version=_version(target)), ()


def diagnose(
    target: Target, seconds: float, limits: Limits | None = None, lost: tuple[str, ...] = ()
) -> Iterator[Observation]:
    """Watch a running server for so long; the last observation is the diagnosis.

    Args:
        target: The server.
        seconds: How long to look. Less than ten are too few to claim a hang.
        limits: How long is long.
        lost: Processes known to be gone.
    """
    with_gap = limits or Limits()
    gap = min(with_gap.stack_gap_s, max(0.2, seconds / (with_gap.stacks + 1)))
    quick = msgspec.structs.replace(with_gap, stack_gap_s=gap)
    every = min(1.0, max(0.2, seconds / 8))
    watch = Watch(target, quick, attached=True, lost=lost, every_s=min(5.0, max(0.5, seconds / 4)))
    yield from watch.run(seconds, every)


def _version(target: Target) -> str:
    from workbench.server.engine import find_engine

    python = target.argv[0] if target.argv else ""
    if not os.path.isabs(python) or "python" not in os.path.basename(python):
        return ""
    try:
        return find_engine(python).version
    except HsbenchError:
        return ""
