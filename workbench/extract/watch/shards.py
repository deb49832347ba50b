"""Watching a run of several shards: each shard as a run of its own, and all of them together.

Where servers and nodes are told in `.hsbench/cluster.jsonl`, they are named; where one job hands the shards out, its
own picture is that of the whole. A shard that is over and whose files did not change is not read again.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.extract.job.files import FOLDER, JobFiles
from workbench.extract.record import RECORD_FILE, RunRecord, load_record
from workbench.extract.shards import parse, shard_folders
from workbench.extract.watch.own import OwnRun
from workbench.extract.watch.together import (
    Told,
    caught_up,
    shard_rows,
    slowest,
    strangers,
    together,
    with_strangers,
)
from workbench.extract.watch.view import RunView

CLUSTER_FILE = f"{FOLDER}/cluster.jsonl"
TAIL = 1 << 15
"""Bytes of a shard's events that are read at first."""
MANY = 64
"""From so many shards on a look is taken every five seconds instead of every one."""


def is_sharded(folder: Path) -> bool:
    """Whether a folder holds shards, or will, and is not the whole yet."""
    if (folder / RECORD_FILE).exists():
        return False
    return (folder / CLUSTER_FILE).exists() or bool(shard_folders(folder))


class ShardsRun:
    """Follows all shards in one folder. Shards that come later are found at the next look.

    Raises:
        UsageError: at a look, when there is none any more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.step_s = 1.0
        self._whole: OwnRun | None = None
        self._runs: dict[Path, OwnRun] = {}
        self._seen: dict[Path, tuple[tuple[int, ...], RunView]] = {}
        self._records: dict[Path, tuple[tuple[int, int], RunRecord | None]] = {}
        self._cluster = Followed(self.folder / CLUSTER_FILE)

    def look(self) -> RunView:
        """Look at every shard that is not over."""
        folders = shard_folders(self.folder)
        if not folders and not (self.folder / CLUSTER_FILE).exists():
            raise UsageError(f"{self.folder} holds no shards any more", f"hsbench watch {self.folder} looks again")
        self.step_s = 5.0 if len(folders) >= MANY else 1.0
        views = {path.name: view for path in folders if (view := self._view(path)) is not None}
        cluster = self._cluster.look()
        records = {path.name: record for path in folders if (record := self._record(path)) is not None}
        of, rows = _division(folders, cluster, next(iter(records.values()), None))
        found = shard_rows(views, of, rows, cluster)
        if JobFiles(self.folder).load() is not None:
            self._whole = self._whole or OwnRun(self.folder)
            whole = caught_up(self._whole.look(), views.values())
        else:
            whole = together(str(self.folder), views, of, rows)
        whole = with_strangers(whole, strangers(records))
        return msgspec.structs.replace(whole, shards=found, slowest_shard=slowest(found))

    def _record(self, folder: Path) -> RunRecord | None:
        """What run a shard is of; read again only when its file changed."""
        with contextlib.suppress(OSError, UsageError):
            stat = os.stat(folder / RECORD_FILE)
            stamp, (before, record) = (stat.st_ino, stat.st_mtime_ns), self._records.get(folder, ((0, 0), None))
            if stamp != before:
                record = load_record(folder)
                self._records[folder] = (stamp, record)
            return record
        return None

    def _view(self, folder: Path) -> RunView | None:
        """One shard; None while it has no job that can be read."""
        stamp = JobFiles(folder).stamp()
        if folder in self._seen and self._seen[folder][0] == stamp:
            return self._seen[folder][1]
        with contextlib.suppress(UsageError):
            run = self._runs.setdefault(folder, OwnRun(folder, TAIL))
            view = run.look()
            if view.over and view.state != "killed":  # a process elsewhere may only have been silent
                self._seen[folder] = (stamp, view)
            return view
        return None


def _division(folders: Sequence[Path], cluster: Iterable[str], record: RunRecord | None) -> tuple[int, int | None]:
    """How many shards there are to be, and the rows of the data set if a shard has told them."""
    numbers = [of for name in (*(path.name for path in folders), *cluster) if (of := parse(name)) is not None]
    return max((of for _, of in numbers), default=0), record.source.rows if record is not None else None


class Followed:
    """The last line of each server in `cluster.jsonl`; only new lines are read."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._last: dict[str, Told] = {}
        self._at: dict[str, str] = {}
        """The shard that each server has."""

    def look(self) -> dict[str, Told]:
        """By shard's folder name: the server that has, or had, it last."""
        decoder = msgspec.json.Decoder(Told)
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0
            file.seek(self._offset)
            data = file.read()
            end = data.rfind(b"\n") + 1
            self._offset += end
            for line in data[:end].splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    self._take(decoder.decode(line))
        return self._last

    def _take(self, told: Told) -> None:
        before = self._at.pop(told.server, "")
        if isinstance(told.shard, str):
            self._at[told.server] = told.shard
            self._last[told.shard] = told
        elif before and self._last[before].server == told.server and self._last[before].state != "done":
            self._last[before] = msgspec.structs.replace(self._last[before], state="waiting", note=told.note)
