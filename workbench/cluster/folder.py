"""The run's folder as the driver finds it: which shards there are, and what is in them."""

from pathlib import Path

import msgspec

from workbench.cluster.records import At
from workbench.errors import UsageError
from workbench.extract.index import IndexLine, read_lines
from workbench.extract.job.events import Ended
from workbench.extract.job.files import FOLDER, JobFiles, recent
from workbench.extract.shards import parse, shard_folders, shard_name

A_SERVER = 4
"""Shards a server: the less that is left when one is lost, and the evener the end; each costs seconds of its own."""


def refuse_other_use(out: Path) -> None:
    """Raise UsageError when something in the folder is of no run of shards."""
    if not out.is_dir():
        return
    others = sorted(p.name for p in out.iterdir() if p.name != FOLDER and parse(_shard_of(p.name)) is None)
    if others:
        shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise UsageError(
            f"{out} is not empty ({shown}) and is of no run of shards",
            "name a new or empty --out; a run of one machine goes on without --ray",
        )


def _shard_of(name: str) -> str:
    return name.removesuffix(".quarantine")


def shards_there(out: Path) -> int | None:
    """Into how many shards the run in `out` is cut; None when there is none yet.

    Raises:
        UsageError: there are shards of several runs.
    """
    found = {numbers[1] for path in shard_folders(out) if (numbers := parse(path.name)) is not None}
    if len(found) > 1:
        shown = " and ".join(str(of) for of in sorted(found))
        raise UsageError(f"{out} has shards of runs cut into {shown}", "move those of one of them elsewhere")
    return found.pop() if found else None


def how_many(out: Path, asked: int | None, servers: int | None, rows: int) -> int | None:
    """Shards of this run; None while it takes the number of servers to say.

    Raises:
        UsageError: the run that is there has another number than is asked for.
    """
    there = shards_there(out)
    if there is not None and asked is not None and asked != there:
        raise UsageError(
            f"the run in {out} is cut into {there} shards, not {asked}", f"--shards {there}, or leave it out"
        )
    if there is not None:
        return there
    if asked is None and servers is None:
        return None
    return min(asked or A_SERVER * (servers or 1), rows)


class Found(msgspec.Struct, frozen=True):
    """A shard as it lies on disk."""

    at: At
    done: bool


def look(out: Path, shard: int, of: int, rows: int) -> Found:
    """Count what a shard's index holds. Done is one that is whole and whose job said so after its side files."""
    folder = out / shard_name(shard, of)
    lines = {line.index: line for line in read_lines(folder) if isinstance(line, IndexLine)}
    written = [line for line in lines.values() if line.status == "written"]
    events, _ = recent(JobFiles(folder).events)
    ended = bool(events) and isinstance(events[-1], Ended) and events[-1].state == "done"
    at = At(
        shard=shard,
        state="done" if ended else "stopped",
        written=len(written),
        refused=sum(line.status == "refused" for line in lines.values()),
        quarantined=sum(line.status == "quarantined" for line in lines.values()),
        tokens=sum(line.tokens for line in written),
        tokens_expected=sum(line.tokens for line in written) if ended else 0.0,
        nbytes=sum(line.nbytes for line in written),
    )
    return Found(at, ended and len(lines) == len(range(shard, rows, of)))
