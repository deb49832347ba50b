"""A process that must not outlive the one that started it: when its stdin ends, so does it, and at once.

The kernel closes the pipe whatever the other process died of. A job loses nothing by this: its index is the truth.
"""

import contextlib
import os
import signal
import threading

import psutil


def tie() -> None:
    """End this process when stdin ends, and its session if it leads one. A server has a session of its own."""
    threading.Thread(target=_until_alone, name="tied", daemon=True).start()


def _until_alone() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    if os.getsid(0) == os.getpid():
        end_session(os.getpid(), but=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def end_session(session: int, but: int = 0) -> None:
    """Kill what runs in a session: a job's writers, which have process groups of their own."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if pid != but and os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
