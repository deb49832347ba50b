"""Watching a run at a URL from a machine that does not do it: what its parts say, read as they are added."""

import time
from typing import Any

from workbench.errors import UsageError
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.shards import parse
from workbench.extract.watch.together import compared, slowest
from workbench.extract.watch.view import NOW_S, RunView, ShardRow
from workbench.storage.parts import lines_of, numbers, part_name
from workbench.storage.remote import load_run
from workbench.storage.store import Store

STILL_S = 300.0
"""Parts are made every minute at least while samples come."""


class Place:
    """What one run, or one shard of it, has recorded at its URL."""

    def __init__(self, store: Store, rows: int) -> None:
        self.store, self.rows = store, rows
        self.lines: dict[int, IndexLine] = {}
        self.last = 0.0
        """When something was recorded last."""
        self.done = False
        self._seen = -1

    def look(self) -> None:
        """Read the parts that are new."""
        there = [number for number in numbers(list(self.store.names("index"))) if number > self._seen]
        for number, data in zip(there, self.store.read_many([part_name(n) for n in there]), strict=True):
            lines, claims = lines_of(data, part_name(number))
            self.lines |= {line.index: line for line in lines}
            self.last = max(self.last, *(line.time for line in lines), *(claim.time for claim in claims), 0.0)
            self._seen = number
        self.done = self.store.has(INDEX_FILE)

    def row(self, now: float) -> ShardRow | None:
        """A shard's row in the table of all; None for a run without shards."""
        name = self.store.url.rpartition("/")[2]
        if parse(name) is None:
            return None
        still = not self.last or now - self.last > STILL_S
        rates = _rates([line for line in self.lines.values() if line.status == "written"], now, self.done)
        return ShardRow(
            shard=name,
            state="done" if self.done else "waiting" if not self.last else "still" if still else "running",
            rows=self.rows,
            done=len(self.lines),
            tok_s=rates.get("tok_s_avg" if self.done else "tok_s_now"),
            why="" if self.done or not still else "nothing was stored for long",
        )


class StoreRun:
    """Follows a run at a URL, or its shards there together. Lines are counted by their time, so clocks should agree."""

    step_s = 5.0
    """Seconds between two looks, at most."""

    def __init__(self, url: str) -> None:
        self._store = Store.open(url)
        self._url = self._store.url
        self._places: list[Place] = []
        self._rows = 0
        self._find()
        if not self._places:
            raise UsageError(f"there was no job at {self._store.url}", "hsbench extract DATA --out URL begins one")

    def _find(self) -> None:
        """What was begun since the last look: shards may come later."""
        seen = {place.store.url for place in self._places}
        shards = [name for name in self._store.top() if parse(name) is not None]
        for store in (self._store, *(self._store.below(name) for name in shards)):
            if store.url not in seen and (run := load_run(store)) is not None:
                self._places.append(Place(store, len(run.rows())))
                self._rows = self._rows or (len(run.rows()) if store is self._store else run.source.rows)

    def look(self) -> RunView:
        """Read the parts that are new."""
        self._find()
        for place in self._places:
            place.look()
        now = time.time()
        lines = [line for place in self._places for line in place.lines.values()]
        written = [line for line in lines if line.status == "written"]
        done = all(place.done for place in self._places) and len(lines) >= self._rows
        shards = compared([row for place in self._places if (row := place.row(now)) is not None])
        return RunView(
            kind="own",
            folder=self._url,
            time=now,
            rows=self._rows,
            written=len(written),
            refused=sum(line.status == "refused" for line in lines),
            quarantined=sum(line.status == "quarantined" for line in lines),
            tokens=sum(line.tokens for line in written),
            nbytes=sum(line.nbytes for line in written),
            shards=tuple(shards),
            slowest_shard=slowest(shards),
            **self._state(done, now),
            **_rates(written, now, done),
        )

    def _state(self, done: bool, now: float) -> dict[str, Any]:
        last = max(place.last for place in self._places)
        if done:
            return {"state": "done"}
        if not last:
            return {"state": "waiting"}
        if now - last > STILL_S:
            return {
                "state": "still",
                "why": f"nothing was stored for {now - last:.0f} s",
                "next_step": f"hsbench extract --resume {self._behind()} if no job runs on another machine",
            }
        return {"state": "running"}

    def _behind(self) -> str:
        return next((place.store.url for place in self._places if not place.done), self._url)


def _rates(written: list[IndexLine], now: float, done: bool) -> dict[str, Any]:
    times = [line.time for line in written]
    span = max(times, default=0.0) - min(times, default=0.0)
    if span <= 0:
        return {}
    found: dict[str, Any] = {
        "tok_s_avg": sum(line.tokens for line in written) / span,
        "bytes_s_avg": sum(line.nbytes for line in written) / span,
        "samples_s_avg": len(written) / span,
    }
    if not done:
        recent = [line for line in written if line.time > now - 2 * NOW_S]
        found["tok_s_now"] = sum(line.tokens for line in recent) / (2 * NOW_S)
        found["bytes_s_now"] = sum(line.nbytes for line in recent) / (2 * NOW_S)
        found["samples_s_now"] = len(recent) / (2 * NOW_S)
    return found
