"""Stopping a server, and making sure that nothing of it is left."""

import contextlib
import signal
import time
from collections.abc import Iterator

import msgspec
import psutil

from workbench.errors import ServerError
from workbench.server import launches, ports, processes, state
from workbench.server.events import Killing, Stopped, Stopping
from workbench.server.launches import Launch
from workbench.server.state import ServerRecord
from workbench.supervision.gpu import Nvml

KILL_WAIT_S = 10.0
POLL_S = 0.1
PORT_WAIT_S = 10.0
GPU_WAIT_S = 60.0
"""The driver may take tens of seconds to give a killed process's memory back (sglang#31281)."""
Whose = ServerRecord | Launch


def stop(record: ServerRecord, grace_s: float = 10.0) -> Iterator[Stopping | Killing | Stopped]:
    """End a server and everything in its session, forget its record, and check that nothing is left.

    SIGTERM goes to the server's main process alone, if it lives: that lets SGLang finish its requests and end
    its own children, which give GPU memory back and finish dumps on the way. A SIGTERM to the children would
    look like a crash to it. What still runs after the grace gets SIGKILL, and so does everything at grace 0.

    Args:
        record: The server. Only processes proven to be its own are touched.
        grace_s: Seconds between SIGTERM and SIGKILL. SGLang looks for the signal every five seconds.

    Raises:
        ServerError: processes, the port or GPU memory are still held after SIGKILL; it says by whom.
    """
    began = time.monotonic()
    seen = _family(record)
    if seen:
        _mark(record)
        yield from _end(record, seen, grace_s)
    _verify_ended(record, seen)
    record.forget()
    _verify_port(record, seen)
    _verify_gpus(record, seen)
    yield Stopped(record.name, time.monotonic() - began)


def _mark(record: ServerRecord) -> None:
    """Tell whoever looks that its end is ordered, and no death."""
    current = state.load(record.name)
    if current is not None and (current.pid, current.since_boot) == (record.pid, record.since_boot):
        with contextlib.suppress(OSError):
            msgspec.structs.replace(current, stopping=time.time()).save()


def stop_orphans(grace_s: float = 10.0) -> Iterator[Stopping | Killing | Stopped]:
    """End what servers of ours left behind when their main process was killed. Nothing else is touched.

    Raises:
        ServerError: something is still there after SIGKILL.
    """
    for found in list(launches.orphans()):
        began, launch = time.monotonic(), found.launch
        seen = {process.pid: process for process in found.processes}
        yield from _end(launch, seen, grace_s)
        _verify_ended(launch, seen)
        _verify_gpus(launch, seen)
        record = state.load(launch.name)
        if record is not None and (record.pid, record.since_boot) == (launch.pid, launch.since_boot):
            record.forget()
        yield Stopped(launch.name, time.monotonic() - began)


def _end(record: Whose, seen: dict[int, psutil.Process], grace_s: float) -> Iterator[Stopping | Killing]:
    """Ask the processes to end, and kill what is left after the grace."""
    yield Stopping(record.name, tuple(sorted(seen)))
    if grace_s > 0:
        _terminate(record, seen)
        _wait_gone(record, seen, grace_s)
    left = _left(record, seen)
    if left:
        yield Killing(record.name, tuple(sorted(left)))
        _kill(record, seen)


def _family(record: Whose) -> dict[int, psutil.Process]:
    return {process.pid: process for process in processes.family(record.pid, record.since_boot)}


def _left(record: Whose, seen: dict[int, psutil.Process]) -> list[int]:
    """What of the server still runs; adds late children to `seen`."""
    processes.exit_code(record.pid)  # takes the zombie of a child of ours
    for pid, process in _family(record).items():
        seen.setdefault(pid, process)
    return [pid for pid, process in seen.items() if processes.is_running(process)]


def _terminate(record: Whose, seen: dict[int, psutil.Process]) -> None:
    leader = seen.get(record.pid)
    for process in [leader] if leader is not None else list(seen.values()):
        _signal(process, signal.SIGTERM)


def _kill(record: Whose, seen: dict[int, psutil.Process]) -> None:
    """SIGKILL until none is left: a process may have started another in between."""
    deadline = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < deadline and (left := _left(record, seen)):
        for pid in left:
            _signal(seen[pid], signal.SIGKILL)
        _wait_gone(record, seen, 1.0)


def _signal(process: psutil.Process, number: int) -> None:
    """psutil refuses to signal a process whose number was given on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _wait_gone(record: Whose, seen: dict[int, psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and _left(record, seen):
        time.sleep(POLL_S)


def _verify_ended(record: Whose, seen: dict[int, psutil.Process]) -> None:
    left = _left(record, seen)
    if left:
        who = ", ".join(processes.describe(seen[pid]) for pid in left)
        raise ServerError(f"{record.name} is killed but still there: {who}", "it may wait for a device; look again")


def _verify_port(record: ServerRecord, seen: dict[int, psutil.Process]) -> None:
    """Whoever listens once the main process is gone is no process of the server that we know.

    A killed process counts as ended when its main thread has, but its sockets stay until the last thread has too.
    """
    if record.pid not in seen:
        return
    deadline = time.monotonic() + PORT_WAIT_S
    while ports.accepts(record.host, record.port):
        if time.monotonic() < deadline:
            time.sleep(POLL_S)
            continue
        raise ServerError(
            f"{record.name} is stopped but something else listens on its port {record.port}",
            "ss -ltnp shows who",
        )


def _verify_gpus(record: Whose, seen: dict[int, psutil.Process], nvml: Nvml | None = None) -> None:
    """Wait until no GPU counts memory for a process of the server."""
    gpus = nvml or Nvml()
    deadline = time.monotonic() + GPU_WAIT_S
    while held := [holder for holder in gpus.holders() if holder.pid in seen]:
        if time.monotonic() >= deadline:
            who = ", ".join(f"process {h.pid} on GPU {h.gpu}" for h in held)
            raise ServerError(
                f"{record.name} is stopped but GPU memory is still counted for it: {who}",
                "the driver may need longer; hsbench doctor shows it",
            )
        time.sleep(POLL_S)
