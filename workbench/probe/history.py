"""The last probes, each a report as JSON in `probes/` of the state directory."""

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from workbench.extract.durable import replace_bytes
from workbench.paths import state_dir
from workbench.probe.report import ProbeReport

KEPT = 200
"""The oldest are removed first."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A probe and when it was made, as a time of day in seconds."""

    time: float
    report: ProbeReport


def probes_dir() -> Path:
    """Where probes are kept."""
    return state_dir() / "probes"


def keep(report: ProbeReport) -> Path | None:
    """Keep a report; None when the state directory cannot be written, which must not spoil a probe."""
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    path = probes_dir() / f"{stamp}-{now % 1 * 1e6:06.0f}-{secrets.token_hex(2)}.json"
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_bytes(path, msgspec.json.encode(Kept(time=now, report=report)))
        for old in names()[KEPT:]:
            (probes_dir() / f"{old}.json").unlink(missing_ok=True)
        return path
    return None


def names() -> list[str]:
    """The names of the kept probes, the newest first."""
    with contextlib.suppress(OSError):
        return sorted((p.stem for p in probes_dir().iterdir() if p.suffix == ".json"), reverse=True)
    return []


def load(name: str) -> Kept | None:
    """A kept probe; None when it is gone or cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((probes_dir() / f"{name}.json").read_bytes(), type=Kept)
    return None
