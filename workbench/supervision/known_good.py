"""What good starts looked like: learned after each, by model, flags and release, and used to judge the next.

One small JSON file a combination, in `known-good/` of the state directory. The last starts are kept, since one
start may have been slow for reasons of its own: the first start on a host compiles kernels for minutes.
"""

import contextlib
import hashlib
import itertools
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from workbench.paths import state_dir
from workbench.server.flags import given
from workbench.server.secrets import mask_flags
from workbench.supervision.milestones import Milestone

SCHEMA = 1
KEPT = 5
_OF_THE_PLACE = ("--port", "--host", "--model-path", "--model", "--nccl-port", "--dist-init-addr", "--api-key")
"""Flags that say where a server runs, not how."""


class GoodStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start that ended with an answered request."""

    seconds: float
    lines: int
    longest_silence: float
    """Seconds of the longest stretch in which nothing moved."""
    milestones: tuple[Milestone, ...]


class KnownGood(msgspec.Struct, frozen=True, kw_only=True):
    """The last good starts of one combination, the newest last."""

    model: str
    version: str
    flags: tuple[str, ...]
    starts: tuple[GoodStart, ...] = ()
    schema: int = SCHEMA

    @property
    def lines(self) -> int:
        """Normalised lines of the newest start."""
        return self.starts[-1].lines

    @property
    def seconds(self) -> float:
        """Median time to ready."""
        return statistics.median(start.seconds for start in self.starts)

    @property
    def longest_silence(self) -> float:
        """The longest silence that ended well."""
        return max(start.longest_silence for start in self.starts)

    def phase_seconds(self, phase: str) -> float | None:
        """Median length of a phase; None when no start had it."""
        lengths = [length for start in self.starts if (length := _length(start, phase)) is not None]
        return statistics.median(lengths) if lengths else None

    def remaining(self, phase: str, phase_for: float) -> float | None:
        """Seconds to ready from a phase that has lasted `phase_for`, as the median start would take."""
        left = []
        for start in self.starts:
            entered = (
                0.0 if phase == "import" else next((m.seconds for m in start.milestones if m.phase == phase), None)
            )
            length = _length(start, phase)
            if entered is not None and length is not None:
                left.append(max(0.0, start.seconds - entered - min(phase_for, length)))
        return statistics.median(left) if left else None


def _length(start: GoodStart, phase: str) -> float | None:
    edges = [Milestone("import", 0.0, 0), *start.milestones, Milestone("", start.seconds, start.lines)]
    return next((b.seconds - a.seconds for a, b in itertools.pairwise(edges) if a.phase == phase), None)


def flags_of(argv: Sequence[str]) -> tuple[str, ...]:
    """The flags of a server's command line that shape its start, sorted, secrets masked."""
    first = next((n for n, word in enumerate(argv) if word.startswith("--")), len(argv))
    flags = given(mask_flags(argv[first:]))
    return tuple(f"{flag}={flags[flag] or ''}" for flag in sorted(flags) if flag not in _OF_THE_PLACE)


def load(model: str, version: str, argv: Sequence[str]) -> KnownGood | None:
    """What is known of this combination; None when it never started well, or the file cannot be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode(_path(model, version, flags_of(argv)).read_bytes(), type=KnownGood)
        return known if known.starts else None
    return None


def learn(model: str, version: str, argv: Sequence[str], start: GoodStart) -> KnownGood:
    """Remember a good start. Written whole and renamed in, so that nobody reads half of it."""
    flags = flags_of(argv)
    before = load(model, version, argv)
    kept = (*(before.starts if before else ()), start)[-KEPT:]
    known = KnownGood(model=model, version=version, flags=flags, starts=kept)
    path = _path(model, version, flags)
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_suffix(f".{os.getpid()}.tmp")
    building.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2))
    os.replace(building, path)
    return known


def _path(model: str, version: str, flags: tuple[str, ...]) -> Path:
    key = hashlib.sha256("\0".join((model, version, *flags)).encode()).hexdigest()[:16]
    return state_dir() / "known-good" / f"{key}.json"
