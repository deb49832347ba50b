"""Every start of a server, kept beyond its record: how an orphan is known to be ours.

One line a start in `launches.jsonl`, in the state directory. A process belongs to a launch when it runs in the session
that the launch began, and was created after it; the kernel does not give a session's number on while it is used.
"""

import contextlib
import os
from collections.abc import Iterator

import msgspec
import psutil

from workbench.paths import servers_dir
from workbench.server import processes

BOOT_ID = "/proc/sys/kernel/random/boot_id"
KEPT = 500


class Launch(msgspec.Struct, frozen=True):
    """A server's main process, which began a session of its own."""

    name: str
    pid: int
    since_boot: float
    boot: str


class Orphans(msgspec.Struct, frozen=True):
    """Processes that outlived the server they belong to."""

    launch: Launch
    processes: tuple[psutil.Process, ...]

    def describe(self) -> str:
        """For a person."""
        who = ", ".join(processes.describe(process) for process in self.processes)
        return f"left by the dead server {self.launch.name}: {who}; hsbench stop --orphans ends them"


def boot_id() -> str:
    """Differs after each start of the machine."""
    with contextlib.suppress(OSError), open(BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
    return ""


def note(name: str, pid: int, since_boot: float) -> None:
    """Remember a start. The oldest are dropped once there are many."""
    path = servers_dir() / "launches.jsonl"
    line = msgspec.json.encode(Launch(name, pid, since_boot, boot_id())) + b"\n"
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_bytes().splitlines(keepends=True)
        if len(lines) >= 2 * KEPT:
            building = path.with_suffix(f".{os.getpid()}.tmp")
            building.write_bytes(b"".join(lines[-KEPT:]))
            os.replace(building, path)
    with open(path, "ab", opener=lambda name, how: os.open(name, how, 0o600)) as file:
        file.write(line)


def launches() -> list[Launch]:
    """The starts since the machine was started; a line that cannot be read is passed over."""
    found = []
    with contextlib.suppress(OSError):
        for line in (servers_dir() / "launches.jsonl").read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                launch = msgspec.json.decode(line, type=Launch)
                if launch.boot == boot_id():
                    found.append(launch)
    return found


def orphans() -> Iterator[Orphans]:
    """What is left of servers whose main process is gone, whether or not a record tells of them."""
    used = _sessions()
    for launch in launches():
        if launch.pid in used and processes.find(launch.pid, launch.since_boot) is None:
            left = tuple(processes.family(launch.pid, launch.since_boot))
            if left:
                yield Orphans(launch, left)


def _sessions() -> set[int]:
    """The numbers of all sessions that have a process now."""
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            found.add(os.getsid(pid))
    return found


def foreign_orphans() -> Iterator[psutil.Process]:
    """SGLang's processes that have lost their server and were not started from here. They are only ever listed."""
    ours = {process.pid for found in orphans() for process in found.processes}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in ours or not process.name().startswith("sglang::"):
                continue
            parent = process.ppid()
            if parent <= 1 or os.getsid(parent) != os.getsid(process.pid):
                yield process
