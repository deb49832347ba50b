"""What a verdict needs besides the samples: proxies, locks, orphans, and what good starts were like."""

import contextlib
import os
import urllib.request
from pathlib import Path

import psutil

from workbench.server.secrets import mask_text
from workbench.supervision import signals
from workbench.supervision.known_good import KnownGood
from workbench.supervision.milestones import LogFollower
from workbench.supervision.sampler import cache_folders
from workbench.supervision.target import Target
from workbench.supervision.verdict import Facts

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
BATON = "lock"
"""torch's extension loader makes a file of this name and nothing in it; whoever finds it waits until it is gone.
When its maker is killed, it stays (`torch/utils/file_baton.py`)."""


def gather(target: Target, known: KnownGood | None, follower: LogFollower | None, lost: tuple[str, ...] = ()) -> Facts:
    """Collect the facts of now."""
    phase = follower.phase if follower else ""
    lasts = follower.phase_seconds() if follower else None
    free, held = batons(target.pid)
    return Facts(
        known_lines=known.lines if known else None,
        known_silence=known.longest_silence if known else None,
        known_phase_s=known.phase_seconds(phase) if known else None,
        known_remaining_s=known.remaining(phase, lasts or 0.0) if known else None,
        phase_s=lasts,
        proxy=proxy(target),
        locks=free,
        held_locks=held,
        orphan=orphan(target.pid),
        lost=lost,
        name=target.name,
    )


def proxy(target: Target) -> str:
    """The variable in the server's own environment that sends its request to itself to a proxy; empty if none does."""
    env = signals.environment(target.pid)
    found = next((name for name in PROXIES if env.get(name)), None)
    if found is None:
        return ""
    exempt = {"no": env.get("no_proxy") or env.get("NO_PROXY") or ""}
    if urllib.request.proxy_bypass_environment(target.reached, exempt):  # type: ignore[attr-defined]
        return ""
    return f"{found}={mask_text(env[found])} is set and NO_PROXY does not name {target.reached}"


def batons(pid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Torch's lock files in the caches of a process: those that nobody holds open, and those that somebody does."""
    found = [str(path) for folder in cache_folders(pid) for path in _named(folder, BATON)]
    if not found:
        return (), ()
    holders = {path: holder for path in found if (holder := _holder(path))}
    free = tuple(path for path in found if path not in holders)
    return free, tuple(f"{path}, held by process {holder}" for path, holder in holders.items())


def orphan(pid: int) -> str:
    """Why a rank or worker has lost its server; empty when it has not, or is no rank or worker.

    A process whose parent ended is given to process 1 or to a reaper, either of which runs in another session.
    """
    me = signals.process(pid, pid)
    if me is None or not me.name.startswith("sglang::"):
        return ""
    with contextlib.suppress(OSError):
        if me.parent > 1 and os.getsid(me.parent) == os.getsid(pid):
            return ""
        return f"{me.label} has lost its server: its parent is now process {me.parent}"
    return ""


def _named(folder: Path, name: str) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError):
        for root, folders, files in os.walk(folder):
            if root.count(os.sep) - str(folder).count(os.sep) >= 3:
                folders.clear()
            found += [Path(root, file) for file in files if file == name]
    return found


def _holder(path: str) -> int | None:
    """A process that has the file open, among those whose files may be seen."""
    for process in psutil.process_iter():
        for entry in _fds(process.pid):
            with contextlib.suppress(OSError):
                if os.readlink(entry) == path:
                    return process.pid
    return None


def _fds(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []
