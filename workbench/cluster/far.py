"""A run whose shards lie at a URL: what the store holds is the truth, the driver's folder here has its job files only.

Shards are written by jobs on the nodes, each to URL/shard_I-of-N from a staging folder of its own there. A shard is
done when its `index.jsonl` is there.
"""

import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.cluster import folder
from workbench.cluster.folder import Found
from workbench.cluster.lead import check_lead, load_lead, take_lead
from workbench.errors import UsageError
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job.events import Ended, Told
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.record import RECORD_FILE, RunRecord, Source, refuse_differences
from workbench.extract.shards import parse, shard_name
from workbench.paths import state_dir
from workbench.storage.address import writable_url
from workbench.storage.merging import merge_at
from workbench.storage.parts import Parts, lines_of
from workbench.storage.remote import load_run, save_settings
from workbench.storage.store import Store

AT_ONCE = 16
"""Shards that are looked at side by side."""
CHECK_S = 5.0
"""Between two looks at who leads."""


class Far:
    """See `workbench.cluster.ground.Ground`."""

    def __init__(self, settings: ExtractSettings) -> None:
        self.store = Store.open(writable_url(settings.place))
        self.store.probe()
        above = Path(settings.out).parent
        self.staging = None if above == state_dir() / "staging" else str(above)
        lead = load_lead(self.store)
        self._ours = lead is not None
        self.run = lead.run if lead is not None else secrets.token_hex(3)
        self._token = ""
        self._checked = 0.0

    def joining(self) -> bool:
        """Joining moves nothing, so it is simply done again."""
        return False

    def joined(self) -> RunRecord | None:
        """See `Ground`."""
        if not self.store.has(INDEX_FILE):
            return None
        data = self.store.read(RECORD_FILE) or b""
        try:
            return msgspec.json.decode(data, type=RunRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            url = self.store.url
            raise UsageError(f"{url}/{RECORD_FILE} is not a run's description: {error}", "another --out") from None

    def joined_rows(self) -> int:
        """See `Ground`."""
        return len(self._sealed(self.store))

    @staticmethod
    def _sealed(store: Store) -> dict[int, IndexLine]:
        lines, _ = lines_of(store.read(INDEX_FILE) or b"", INDEX_FILE)
        return {line.index: line for line in lines}

    def refuse_other_use(self) -> None:
        """See `Ground`. What a driver of ours worked at may hold a part of the whole as well."""
        if load_run(self.store) is not None:
            step = "name a new --out; a run of one machine goes on without --ray"
            raise UsageError(f"the run at {self.store.url} is one machine's", step)
        others = [name for name in self.store.top() if name != "index" and parse(name) is None]
        if others and not self._ours:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UsageError(f"{self.store.url} is not empty ({shown}) and is of no run of shards", "name a new URL")

    def _shards(self) -> list[tuple[int, int]]:
        return [numbers for name in self.store.top() if (numbers := parse(name)) is not None]

    def refuse_another_run(self, settings: ExtractSettings, source: Source) -> None:
        """See `Ground`."""
        if (whole := self.joined()) is not None:
            refuse_differences(whole, folder.asked(whole, settings, source, (0, 1)))
        names = [shard_name(*numbers) for numbers in self._shards()]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "shards") as threads:
            records = list(threads.map(lambda name: load_run(self.store.below(name)), names))
        for name, record in zip(names, records, strict=True):
            if record is not None:
                refuse_differences(record, folder.asked(record, settings, source, record.shard), of=name)

    def seems_done(self) -> bool:
        """See `Ground`."""
        of = folder.one_division(self._shards(), self.store.url)
        return of is not None and all(self.store.has(f"{shard_name(number, of)}/{INDEX_FILE}") for number in range(of))

    def how_many(self, asked: int | None, servers: int | None, rows: int) -> int | None:
        """See `Ground`."""
        there = folder.one_division(self._shards(), self.store.url)
        return folder.agreed(there, self.store.url, asked, servers, rows)

    def found(self, rows: int, of: int) -> list[Found]:
        """See `Ground`."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "shards") as threads:
            return list(threads.map(lambda shard: self._look(shard, of, rows), range(of)))

    def _look(self, shard: int, of: int, rows: int) -> Found:
        """What a shard has recorded."""
        store = self.store.below(shard_name(shard, of))
        sealed = store.has(INDEX_FILE)
        lines = self._sealed(store) if sealed else Parts(store).load()
        done = sealed and len(lines) == len(range(shard, rows, of))
        return folder.counted(shard, lines.values(), sealed, done)

    def begin(self, token: str, settings: ExtractSettings, cluster: Cluster) -> None:
        """See `Ground`."""
        save_settings(self.store, settings)
        take_lead(self.store, token, self.run, cluster)
        self._token, self._checked = token, time.monotonic()

    def pause(self, paused: bool) -> None:
        """The hands tell their jobs, whose folders nobody else sees."""

    def check(self) -> None:
        """See `Ground`; every few seconds."""
        if self._token and time.monotonic() - self._checked > CHECK_S:
            self._checked = time.monotonic()
            check_lead(self.store, self._token)

    def join(self, python: str | None) -> Iterator[Told | Ended]:
        """See `Ground`."""
        yield from merge_at(self.store.url, python=python)


def cluster_at(url: str) -> Cluster | None:
    """What the last driver at a URL was asked for; None where there was none, or it cannot be told."""
    with contextlib.suppress(UsageError):
        lead = load_lead(Store.open(url))
        return lead.cluster if lead is not None else None
    return None
