"""What the driver knows of its shards, for whoever watches: the sum of all, and a line for each server now and then.

``OUT/.hsbench/cluster.jsonl``, appended, a JSON object a line::

    {"time", "server", "node", "shard", "state", "verdict", "samples", "tok_s", "waiting_bytes", "note"}

`shard` is the folder's name, null where a server has none. `state` is a job's own, or `waiting` (for a shard), `lost`,
`retired`, `done`, `stopped`, `failed`, `busy`. `verdict` is that of `hsbench doctor` as far as the job told one.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from workbench.cluster.records import At, Hello
from workbench.extract.job.events import Progress
from workbench.extract.shards import shard_name
from workbench.supervision.verdict import State as Verdict

EVERY_S = 2.0
AT_WORK = ("running", "restarting", "paused", "finishing")
"""States of a shard whose job has a server."""
LINE_S = 10.0
"""Between two lines of a server whose state does not change."""
STANDS_S = 30.0
"""A server that has requests and finished none for so long is not called ready."""
CLUSTER_FILE = "cluster.jsonl"
_VERDICT = re.compile("|".join(sorted(map(str, Verdict), key=len, reverse=True)))


class Tale:
    """Takes pictures of shards, gives those of the run.

    Args:
        path: The file of the servers.
        rows: Of the data set.
        of: Shards.
        found: The shards as they were at the start.
        clock: Seconds that only go on.
    """

    def __init__(
        self, path: Path, rows: int, of: int, found: Iterable[At], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._rows, self._of, self._clock = path, rows, of, clock
        self._at = {at.shard: at for at in found}
        self._before = self._sums()
        self._done = {shard for shard, at in self._at.items() if at.state == "done"}
        self._lines: dict[str, tuple[str, float]] = {}
        self._began: float | None = None
        self._told = float("-inf")
        self._moved: dict[int, float] = {}
        """When a shard's counts or state became what they are."""

    def left(self) -> str:
        """For a person."""
        return f"{self._of - len(self._done)} of {self._of} shards"

    def finished(self, shard: int) -> None:
        """A shard is done."""
        self._done.add(shard)
        if shard in self._at:
            at = self._at[shard]
            self._at[shard] = msgspec.structs.replace(at, state="done", tokens_expected=float(at.tokens))
            self._told = float("-inf")  # the counts of what is done are told at once

    def shard(self, at: At, who: Hello | None) -> None:
        """A shard's newest picture. One that knows no count yet takes the place of none that does."""
        old = self._at.get(at.shard)
        counted = at.written + at.refused + at.quarantined
        if old is not None and counted < old.written + old.refused + old.quarantined and at.state == "preflight":
            at = msgspec.structs.replace(old, state=at.state, why=at.why, in_flight=0, waiting_bytes=0)
        same = old is not None and (at.state, counted) == (old.state, old.written + old.refused + old.quarantined)
        self._moved[at.shard] = self._moved.get(at.shard, self._clock()) if same else self._clock()
        if at.state == "running" and self._began is None:
            self._began = self._clock()
        self._at[at.shard] = at
        self.server(who, at.shard, at.state, at.why, at)

    def server(self, who: Hello | None, shard: int | None, state: str, note: str, at: At | None = None) -> None:
        """One line, if there is something new in it. Without a picture a shard has no job any more, or none yet."""
        if at is None and shard in self._at and shard not in self._done:
            self._at[shard] = msgspec.structs.replace(self._at[shard], state="stopped")
        name = who.server if who is not None else ""
        before, when = self._lines.get(name, ("", float("-inf")))
        stands = at is not None and at.in_flight > 0 and self._clock() - self._moved[at.shard] >= STANDS_S
        mark = f"{shard} {state} {note[:40]} {stands}"
        if not name or (mark == before and self._clock() - when < LINE_S):
            return
        self._lines[name] = (mark, self._clock())
        self._append(
            {
                "time": time.time(),
                "server": name,
                "node": who.node if who is not None else "",
                "shard": None if shard is None else shard_name(shard, self._of),
                "state": state,
                "verdict": _verdict(state, note, stands),
                "samples": at.written if at is not None else None,
                "tok_s": at.tok_s if at is not None else None,
                "waiting_bytes": at.waiting_bytes if at is not None else None,
                "note": note,
            }
        )

    def _append(self, line: dict[str, Any]) -> None:
        """A full disk loses lines, never the run."""
        with contextlib.suppress(OSError), open(self._path, "ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def due(self) -> Iterator[Progress]:
        """The run's picture, every other second."""
        if self._clock() - self._told >= EVERY_S:
            self._told = self._clock()
            yield self.picture()

    def picture(self, state: str = "") -> Progress:
        """All shards together; rates and seconds are the driver's own since its first shard ran."""
        now, states = self._sums(), [at.state for at in self._at.values() if at.shard not in self._done]
        for each in AT_WORK:
            state = state or (each if each in states else "")
        return msgspec.convert(
            {
                "type": "Progress",
                "time": time.time(),
                "state": state or ("running" if self._began is not None else "preflight"),
                "why": _why(self._at.values(), state),
                "rows": self._rows,
                **now,
                "samples_here": now["written"] - self._before["written"],
                "tokens_here": now["tokens"] - self._before["tokens"],
                "bytes_here": now["nbytes"] - self._before["nbytes"],
                "seconds_here": 0.0 if self._began is None else self._clock() - self._began,
                "tokens_expected": self._expected(),
                "free_bytes": min((at.free_bytes for at in self._at.values() if at.free_bytes), default=0),
            },
            type=Progress,
        )

    def _sums(self) -> dict[str, int]:
        """Counts of all shards; what waits, and may wait, of those at work: the others have no server any more."""
        counts = ("written", "refused", "quarantined", "tokens", "nbytes", "restarts", "retries")
        loads = ("in_flight", "waiting_bytes", "high_water_bytes")
        work = [at for at in self._at.values() if at.state in AT_WORK]
        found = {name: sum(getattr(at, name) for at in self._at.values()) for name in counts}
        return found | {name: sum(getattr(at, name) for at in work) for name in loads}

    def _expected(self) -> float:
        """Tokens of all rows: by the shards that say so, for as many rows as there are."""
        known = {shard: at.tokens_expected for shard, at in self._at.items() if at.tokens_expected}
        rows = sum(len(range(shard, self._rows, self._of)) for shard in known)
        return sum(known.values()) * self._rows / rows if rows else 0.0


def _why(all_at: Iterable[At], state: str) -> str:
    """What the shards of that state wait for, in a few words."""
    words = sorted({at.why for at in all_at if at.state == state and at.why})
    return "; ".join(words[:3]) + ("; …" if len(words) > 3 else "")


def _verdict(state: str, note: str, stands: bool) -> str:
    """The verdict that the note tells; else what the state says of the server, as far as it answers."""
    if state == "running" and stands:
        return Verdict.READY_UNVERIFIED
    found = _VERDICT.search(note)
    if found is not None and state in ("restarting", "failed", "retired"):
        return found[0]
    return {"preflight": "PROGRESSING", "running": "READY", "paused": "READY", "finishing": "READY"}.get(state, "")
