"""Where a run lies, as its driver uses it: a folder that every node sees, or a URL (far.py)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from workbench.cluster import folder, place
from workbench.cluster.folder import Found
from workbench.extract.index import IndexLine, read_lines
from workbench.extract.job.events import Ended, Told
from workbench.extract.job.files import JobFiles
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.merge import merge
from workbench.extract.merge.journal import load_journal
from workbench.extract.record import RunRecord, Source, load_record
from workbench.extract.shards import shard_folders


class Ground(Protocol):
    """What there is decides what is left to do."""

    run: str
    """Short id of the run, the same for all its drivers."""
    staging: str | None
    """Where its shards are staged on every node, if that was said."""

    def joining(self) -> bool:
        """Whether shards were begun to be joined, and have to be before all else."""

    def joined(self) -> RunRecord | None:
        """The whole, where it is one data set already."""

    def joined_rows(self) -> int:
        """Rows of the whole that have a line."""

    def refuse_other_use(self) -> None:
        """Raise UsageError when something there is of no run of shards."""

    def refuse_another_run(self, settings: ExtractSettings, source: Source) -> None:
        """Raise UsageError when the whole, or a shard, is not of the run that is asked for."""

    def seems_done(self) -> bool:
        """Whether every shard says so. `found` says whether it is true."""

    def how_many(self, asked: int | None, servers: int | None, rows: int) -> int | None:
        """Shards of this run; None while it takes the number of servers to say."""

    def found(self, rows: int, of: int) -> list[Found]:
        """Every shard as it is."""

    def begin(self, token: str, settings: ExtractSettings, cluster: Cluster) -> None:
        """Say that this driver works there now, and leave what a hand needs to know that it sees the same."""

    def pause(self, paused: bool) -> None:
        """Tell the shards that lie there to pause, or to go on."""

    def check(self) -> None:
        """Raise when another driver works there."""

    def join(self, python: str | None) -> Iterator[Told | Ended]:
        """Make one data set of the shards."""


class Folder:
    """See `Ground`. Its lock, which the job holds, keeps other drivers away."""

    staging: str | None = None

    def __init__(self, out: Path, run: str) -> None:
        self.out, self.run = out, run

    def joining(self) -> bool:
        """See `Ground`."""
        return load_journal(self.out) is not None

    def joined(self) -> RunRecord | None:
        """See `Ground`."""
        return load_record(self.out)

    def joined_rows(self) -> int:
        """See `Ground`."""
        return len({line.index for line in read_lines(self.out) if isinstance(line, IndexLine)})

    def refuse_other_use(self) -> None:
        """See `Ground`."""
        folder.refuse_other_use(self.out)

    def refuse_another_run(self, settings: ExtractSettings, source: Source) -> None:
        """See `Ground`."""
        folder.refuse_another_run(self.out, settings, source)

    def seems_done(self) -> bool:
        """See `Ground`."""
        return folder.seems_done(self.out)

    def how_many(self, asked: int | None, servers: int | None, rows: int) -> int | None:
        """See `Ground`."""
        return folder.how_many(self.out, asked, servers, rows)

    def found(self, rows: int, of: int) -> list[Found]:
        """See `Ground`."""
        return [folder.look(self.out, shard, of, rows) for shard in range(of)]

    def begin(self, token: str, settings: ExtractSettings, cluster: Cluster) -> None:
        """See `Ground`."""
        place.leave_token(self.out, token)

    def pause(self, paused: bool) -> None:
        """See `Ground`."""
        for shard in shard_folders(self.out):
            JobFiles(shard).hold(paused)

    def check(self) -> None:
        """See `Ground`."""

    def join(self, python: str | None) -> Iterator[Told | Ended]:
        """See `Ground`."""
        yield from merge(self.out, python=python, locked=True)
