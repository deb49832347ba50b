"""Which folders hold sweeps: one line a call of the command in `bench/sweeps.jsonl` of the state directory."""

import contextlib
import fcntl
import hashlib
import os
import re
import time
from pathlib import Path

import msgspec
import psutil

from bench.sweep.journal import SETTINGS_FILE, Settings
from workbench.paths import state_dir
from workbench.server import processes

LONGEST_NAME = 40


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the command, which may have gone on with a sweep begun before."""

    folder: str
    pid: int
    since_boot: float
    """With `pid`, the process's identity."""
    began: float
    """Time of day in seconds."""


def sweeps_dir() -> Path:
    """Where sweeps go that are not told where."""
    return state_dir() / "bench" / "sweeps"


def default_folder(settings: Settings) -> Path:
    """A folder named after what is swept, so that the same command finds it again and goes on."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(settings.server.get("model", "")).name).strip("-.")
    digest = hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()[:8]
    return sweeps_dir() / f"{model[:LONGEST_NAME] or 'sweep'}-{digest}"


def note(folder: Path) -> None:
    """Remember a folder, and that this process sweeps in it; what cannot be written is not remembered."""
    pid = os.getpid()
    call = Call(
        folder=str(folder.absolute()),
        pid=pid,
        since_boot=processes.since_boot(psutil.Process(pid)),
        began=time.time(),
    )
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with open(_file(), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(call) + b"\n")


def known() -> dict[Path, tuple[Call, ...]]:
    """Folders that hold a sweep, with the calls for each, of which there are none for one found in `sweeps_dir`."""
    found: dict[Path, tuple[Call, ...]] = {path.parent: () for path in sweeps_dir().glob(f"*/{SETTINGS_FILE}")}
    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = _file().read_bytes().splitlines()
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            call = msgspec.json.decode(line, type=Call)
            found[Path(call.folder)] = (*found.get(Path(call.folder), ()), call)
    return {folder: calls for folder, calls in found.items() if (folder / SETTINGS_FILE).is_file()}


def is_running(folder: Path) -> bool:
    """Whether a process sweeps there. The journal's lock is tried and, if it was free, given back at once."""
    try:
        with open(folder / ".lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _file() -> Path:
    return state_dir() / "bench" / "sweeps.jsonl"
