"""A stand-in for server and recorder: it answers from memory and writes dumps with the recorder's own store."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.unit.extract_support import STATES, local_pool, run_record, sample, write_both
from workbench.errors import ServerError
from workbench.extract.job.arrivals import Arrivals
from workbench.extract.job.events import JobEvent, Told
from workbench.extract.job.files import JobFiles
from workbench.extract.job.flow import Flow, Limits, Parts
from workbench.extract.job.gate import Gate
from workbench.extract.job.keeper import Keeper
from workbench.extract.job.lanes import Lanes
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.job.tally import Counts
from workbench.extract.sample import Refused, Sample
from workbench.extract.writer import DatasetWriter
from workbench.probe.session import Target
from workbench.server.events import Note, ServerEvent


class FakeServer(Keeper):
    """Keeper, client and server in one. `answer` is called for each request and may raise, or write another dump."""

    def __init__(self, dump_dir: Path, settings: ExtractSettings) -> None:
        super().__init__(settings, JobFiles(settings.folder))
        self.target = Target(url="http://nowhere", dump_dir=str(dump_dir), python="here")
        self.client: Any = self
        self.dump_dir = dump_dir
        self.dead = threading.Event()
        self.answer: Callable[[FakeServer, Sample, str], None] = FakeServer.record
        self.by_ids: dict[tuple[int, ...], Sample] = {}
        self.asked: list[int] = []
        self.most = self.flying = self.starts = 0
        self._lock = threading.Lock()

    def generate(self, ids: list[int], rid: str, timeout: float) -> None:
        if self.dead.is_set():
            raise ServerError("no server answers")
        one = self.by_ids[tuple(ids)]
        with self._lock:
            self.asked.append(one.index)
            self.flying += 1
            self.most = max(self.most, self.flying)
        try:
            self.answer(self, one, rid)
        finally:
            with self._lock:
                self.flying -= 1

    def record(self, one: Sample, rid: str, **meta: Any) -> None:
        with self._lock:
            write_both(self.dump_dir, one, request_id=rid, **meta)

    def fail(self, rid: str, words: str) -> None:
        with open(self.dump_dir / "errors.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"request_id": rid, "error": words}) + "\n")

    def die(self) -> None:
        self.dead.set()
        raise ServerError("the server broke off")

    def lost(self) -> bool:
        return self.dead.is_set()

    def kill(self) -> None:
        self.dead.set()

    def restart(self) -> Iterator[ServerEvent]:
        self.starts += 1
        self.dead.clear()
        yield Note("started again")


class Run:
    """A flow over made-up rows. `events` holds what it told."""

    def __init__(self, folder: Path, rows: int = 12, **settings: Any) -> None:
        self.folder = folder
        self.out, self.dumps = folder / "out", folder / "dumps"
        self.dumps.mkdir(exist_ok=True)
        self.rows: list[Sample | Refused] = [sample(index) for index in range(rows)]
        wanted = {"data": "d", "out": str(self.out), "concurrency": 4, "timeout_s": 20.0, "min_free_bytes": 0}
        self.settings = ExtractSettings(**{**wanted, **settings})
        self.server = FakeServer(self.dumps, self.settings)
        self.writer = DatasetWriter(self.out, run_record("speculators-v1", rows), local_pool(), max_bad=3)
        self.gate = Gate(self.out, self.dumps, high_water=1 << 30, min_free=0, pause=folder / "pause")
        self.counts = Counts(rows, self.writer.index.lines(), 1.0, None)
        self.limits = Limits(None, None, STATES.bytes_per_token)
        self.stopping = False
        self.events: list[JobEvent] = []

    def go(self) -> "Run":
        """Run to the end, or to the error that ends it."""
        self.server.by_ids = {row.input_ids: row for row in self.rows if isinstance(row, Sample)}
        left = iter([row for row in self.rows if row.index not in self.writer.index])
        arrivals = Arrivals(self.dumps, "hs-t-")
        lanes = Lanes(self.server, arrivals, self.writer, prefix="hs-t-1-")
        parts = Parts(self.server, arrivals, lanes, self.writer, self.gate, self.counts)
        try:
            for event in Flow(left, self.limits, parts, lambda: self.stopping).run():
                self.events.append(event)
        finally:
            lanes.close()
            arrivals.close()
            self.writer.close()
        return self

    def done(self) -> set[int]:
        return {line.index for line in self.writer.index.lines() if line.status == "written"}

    def said(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Told))

    def left_dumps(self) -> list[str]:
        return sorted(path.name for path in self.dumps.glob("req_*"))


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
