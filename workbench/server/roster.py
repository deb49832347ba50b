"""Which processes a ready server consists of, so that one that is missing later can be named."""

import contextlib
import os

import msgspec

from workbench.server import processes
from workbench.server.state import ServerRecord
from workbench.supervision import signals


class Member(msgspec.Struct, frozen=True):
    """A process that the server cannot do without."""

    pid: int
    created: int
    name: str


class Roster(msgspec.Struct, frozen=True):
    """The members, and the server that they belong to."""

    server: int
    since_boot: float
    members: tuple[Member, ...]


def note(record: ServerRecord) -> None:
    """Write down the ranks and workers of a server that has just got ready."""
    found = []
    for process in processes.family(record.pid, record.since_boot):
        seen = signals.process(process.pid, record.pid)
        if seen is not None and seen.role in ("rank", "worker"):
            found.append(Member(seen.pid, seen.created, seen.name))
    building = record.folder / f"processes.json.{os.getpid()}.tmp"
    building.write_bytes(msgspec.json.encode(Roster(record.pid, record.since_boot, tuple(found))))
    os.replace(building, record.folder / "processes.json")


def known(record: ServerRecord) -> Roster | None:
    """What was written down of this very server."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        roster = msgspec.json.decode((record.folder / "processes.json").read_bytes(), type=Roster)
        return roster if (roster.server, roster.since_boot) == (record.pid, record.since_boot) else None
    return None


def lost(record: ServerRecord) -> tuple[str, ...]:
    """Members that have ended since, as `name (pid)`."""
    roster = known(record)
    gone = []
    for member in roster.members if roster else ():
        now = signals.process(member.pid, record.pid)
        if now is None or now.created != member.created or now.state in "ZX":
            gone.append(f"{member.name} ({member.pid})")
    return tuple(gone)
