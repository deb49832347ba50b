"""The far end of a run at a URL, as the job uses it: opened and probed, brought in line with the folder here, drained.

Objects below the URL beside the data set's own::

    index/run.json             the run's description, first of all objects
    index/job.json             the job's settings, for --resume URL on another machine
    index/cluster.json         the driver, of a run on Ray
    index/part-NNNNNN.jsonl    what is done (parts.py)
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.extract.durable import replace_bytes
from workbench.extract.index import INDEX_FILE
from workbench.extract.job.gate import Closed, free_bytes
from workbench.extract.job.settings import GIB, ExtractSettings
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RECORD_FILE, RunRecord, load_record, refuse_differences
from workbench.server.secrets import mask_flags
from workbench.storage import light
from workbench.storage.address import writable_url
from workbench.storage.errors import Refused, StorageError
from workbench.storage.parts import Parts
from workbench.storage.staged import StagedWriter
from workbench.storage.store import Store
from workbench.storage.uploader import REST_MOST_S, Uploader

RUN_FILE, JOB_FILE = "index/run.json", "index/job.json"
LEAD_FILE = "index/cluster.json"
"""Where a driver hands out shards below the URL: see `workbench.cluster.lead`."""
STAGED = 64 * GIB
DRAIN_S = 60.0
"""A job that is told to stop goes on uploading for so long at most."""
LOOK_S = 0.2


class Remote:
    """One run's URL. Use `open`.

    Args:
        store: Probed.
        settings: Of the job.
        run: The run's short id.
    """

    def __init__(self, store: Store, settings: ExtractSettings, run: str) -> None:
        self.store, self._settings, self._folder = store, settings, settings.folder
        self._parts = Parts(store, run)
        self._uploader: Uploader | None = None
        self.limit = 0
        """Bytes that may be on their way to the store, dumps included."""

    @classmethod
    def open(cls, settings: ExtractSettings, run: str) -> "Remote":
        """The far end, after it took, gave back and removed a small object.

        Raises:
            HsbenchError: it did not; the message says why, and nothing was begun.
        """
        assert settings.store is not None
        store = Store.open(writable_url(settings.store))
        store.probe()
        return cls(store, settings, run)

    def record(self) -> RunRecord | None:
        """The run that is at the URL, None when there is none; put into the folder here, which must not differ.

        Raises:
            UsageError: what is at the URL, or here, is of another run or of none.
        """
        here, there = load_record(self._folder), load_run(self.store)
        if there is None:
            if self.store.has(LEAD_FILE):
                step = f"hsbench extract --resume {self.store.url} goes on with it"
                raise UsageError(f"what is at {self.store.url} is of a run on Ray", step)
            if here is None and (others := [name for name in self.store.top() if name != "index"]):
                shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
                raise UsageError(f"{self.store.url} is not empty ({shown}) and is of no run of ours", "name a new URL")
            return here
        if here is not None:
            refuse_differences(there, here)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_bytes(self._folder / RECORD_FILE, msgspec.json.format(msgspec.json.encode(there)))
        return there

    def writer(self, record: RunRecord, pool: WorkerPool) -> StagedWriter:
        """The data set open for writing. A URL whose run is not finished is taken for this process."""
        if load_run(self.store) is None:
            self.store.replace(RUN_FILE, msgspec.json.format(msgspec.json.encode(record)))
        save_settings(self.store, self._settings)
        if not self.store.has(INDEX_FILE):
            self._parts.claim()
        stored = self._parts.load()
        keep = light.keep_light if record.format == "speculators" else None
        self._uploader = Uploader(
            self.store,
            self._parts,
            self._folder,
            patience_s=self._settings.timeout_s,
            before_free=(lambda line, path: keep(self._folder, line, path)) if keep else (lambda line, path: None),
        )
        return StagedWriter(
            self._folder,
            record,
            pool,
            store=self.store,
            parts=self._parts,
            stored=stored,
            uploader=self._uploader,
            max_bad=self._settings.max_bad,
        )

    def set_limit(self, longest: int) -> None:
        """Fix how much may wait here: as asked, else half of what is free, and one sample in any case."""
        asked = self._settings.staging_bytes
        self.limit = max(longest, asked if asked is not None else min(STAGED, free_bytes(self._folder) // 2))

    # For the gate: see `workbench.extract.job.gate.Uploads`.

    @property
    def waiting(self) -> int:
        """Bytes of samples that are finished here and not stored."""
        return self._uploader.waiting if self._uploader is not None else 0

    def closed(self, flying: int, nbytes: int) -> Closed | None:
        """Why so many bytes more must not be on their way, while `flying` are. Raises what ends the run."""
        if self._uploader is None:
            return None
        self._uploader.check()
        if self._uploader.trouble:
            return Closed("storage", f"the storage is not reachable: {self._uploader.trouble}; waiting")
        if (self.waiting or flying) and self.waiting + flying + nbytes > self.limit:
            return Closed("back-pressure", "as much waits for the upload as may")
        return None

    def drain(self, stopping: Callable[[], bool]) -> Iterator[str]:
        """Wait until all is stored and recorded; yields why it waits, empty while it does not, every now and then.

        Told to stop, it goes on for a minute if the store is well; what is left waits in the folder here.
        """
        uploader = self._uploader
        assert uploader is not None
        uploader.hurry()
        asked: float | None = None
        while uploader.left:
            uploader.check()
            asked = (asked or time.monotonic()) if stopping() else None
            if asked is not None and (uploader.trouble or time.monotonic() - asked > DRAIN_S):
                return
            yield f"the storage is not reachable: {uploader.trouble}; waiting" if uploader.trouble else ""
            time.sleep(LOOK_S)

    def insist(self, work: Callable[[], object], stopping: Callable[[], bool]) -> Iterator[str]:
        """Do what needs the store until it is done; yields why it waits.

        Raises:
            HsbenchError: the store failed for as long as the job's `--timeout`, or it is no matter of time.
        """
        began, rest = time.monotonic(), 1.0
        while True:
            try:
                work()
                return
            except (StorageError, Refused) as error:
                if stopping() or time.monotonic() - began > self._settings.timeout_s:
                    raise
                yield f"the storage is not reachable: {error.message}; waiting"
            ending = time.monotonic() + rest
            while time.monotonic() < ending and not stopping():
                time.sleep(LOOK_S)
            rest = min(2 * rest, REST_MOST_S)

    def close(self) -> None:
        """End the uploads; see `Uploader.close`."""
        if self._uploader is not None:
            self._uploader.close()


def load_run(store: Store) -> RunRecord | None:
    """The description of the run at a URL; None when there is none.

    Raises:
        UsageError: it is not one of this release's.
    """
    data = store.read(RUN_FILE)
    try:
        return None if data is None else msgspec.json.decode(data, type=RunRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{store.url}/{RUN_FILE} is not a run's description: {error}", "another --out") from None


def load_settings(url: str, folder: Path) -> ExtractSettings:
    """The settings of the last job at a URL, for a job here.

    Raises:
        UsageError: there was none, or it needs what was not written down.
    """
    store = Store.open(url)
    data = store.read(JOB_FILE)
    if data is None:
        raise UsageError(f"there was no job at {store.url}", "hsbench extract DATA --out URL begins one")
    try:
        settings = msgspec.json.decode(data, type=ExtractSettings)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{store.url}/{JOB_FILE} cannot be read: {error}", "give the first command again") from None
    if not os.path.exists(settings.data):
        raise UsageError(
            f"the data set {settings.data} is not on this machine", "give the whole command: DATA, --out URL, …"
        )
    if mask_flags(settings.flags) != settings.flags or "***" in " ".join(settings.flags):
        raise UsageError("the server's flags held a secret, which is not stored", "give the whole first command again")
    here = settings.python if settings.python and os.path.exists(settings.python) else None
    return msgspec.structs.replace(settings, out=str(folder), store=store.url, python=here)


def save_settings(store: Store, settings: ExtractSettings) -> None:
    """Leave a job's settings at its URL, for `load_settings`."""
    store.replace(JOB_FILE, _portable(settings))


def _portable(settings: ExtractSettings) -> bytes:
    """What another machine needs of the settings; secrets in flags stay here."""
    shared = msgspec.structs.replace(settings, out="", dump_dir=None, flags=mask_flags(settings.flags), redo_bad=False)
    return msgspec.json.format(msgspec.json.encode(shared))
