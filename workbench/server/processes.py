"""Processes: who a process is, and everything that belongs to a server.

A process is identified by its number and by the time since boot at which it was created. The latter does not
move when the system's clock is set, unlike the time of day that psutil calls `create_time`.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
from psutil import NoSuchProcess

SAME_INSTANT_S = 0.015
"""Linux counts a process's creation in hundredths of a second."""


class Detached(subprocess.Popen[bytes]):
    """A child that may outlive this process. Remembered for `exit_code`."""

    def __init__(self, argv: Sequence[str], **how: Any) -> None:
        super().__init__(argv, start_new_session=True, **how)
        _children[self.pid] = self

    def __del__(self) -> None:
        """Popen complains here about a child that still runs."""


_children: dict[int, Detached] = {}
"""Only the parent learns an exit code, and must take it."""


def exit_code(pid: int) -> int | None:
    """How a child ended: negative for a signal. None while it runs, or if it is another process's child."""
    child = _children.get(pid)
    return None if child is None else child.poll()


def since_boot(process: psutil.Process) -> float:
    """Seconds from boot to the creation of `process`."""
    return process.create_time() - psutil.boot_time()


def find(pid: int, created_since_boot: float) -> psutil.Process | None:
    """The running process with this identity; None when it ended, is a zombie, or its number was given on."""
    try:
        process = psutil.Process(pid)
        same = abs(since_boot(process) - created_since_boot) < SAME_INSTANT_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except NoSuchProcess:
        return None


def family(pid: int, created_since_boot: float) -> list[psutil.Process]:
    """The server process, its descendants, and all others in the session that it began; no zombies.

    Descendants alone are not enough: when the server process is killed, its children are given to process 1
    but keep their session. The kernel does not give a number on while a session bears it, so a session with
    the server's number is the server's, unless a younger process has that number.
    """
    leader = find(pid, created_since_boot)
    if leader is None and psutil.pid_exists(pid) and not _is_zombie(pid, created_since_boot):
        return []
    found = {process.pid: process for process in _session(pid, created_since_boot)}
    if leader is not None:
        found[leader.pid] = leader
        try:
            found |= {child.pid: child for child in leader.children(recursive=True)}
        except NoSuchProcess:
            found.pop(leader.pid)
    return [process for process in found.values() if is_running(process)]


def is_running(process: psutil.Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except NoSuchProcess:
        return False


def describe(process: psutil.Process) -> str:
    """Number, name and owner, as far as they can be read."""
    try:
        return f"{process.pid} {process.name()} of {process.username()}"
    except (NoSuchProcess, psutil.AccessDenied, KeyError):
        return str(process.pid)


def _is_zombie(pid: int, created_since_boot: float) -> bool:
    """Whether the server's own process ended and merely waits for its parent to notice."""
    try:
        process = psutil.Process(pid)
        same = abs(since_boot(process) - created_since_boot) < SAME_INSTANT_S
        return same and process.status() == psutil.STATUS_ZOMBIE
    except NoSuchProcess:
        return True


def _session(session: int, created_since_boot: float) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and since_boot(process) >= created_since_boot - SAME_INSTANT_S:
                yield process
        except (ProcessLookupError, PermissionError, NoSuchProcess):
            continue
