"""The run's folder as the driver finds it: which shards there are, and what is in them."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from workbench.cluster.records import At
from workbench.errors import UsageError
from workbench.extract.index import IndexLine, read_lines
from workbench.extract.job.events import Ended
from workbench.extract.job.files import FOLDER, JobFiles, recent
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.record import RunRecord, Source, load_record, refuse_differences
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
    return one_division([numbers for path in shard_folders(out) if (numbers := parse(path.name)) is not None], str(out))


def one_division(shards: Iterable[tuple[int, int]], name: str) -> int | None:
    """The N that all these I/N in a folder or at a URL of this name share; None when there are none.

    Raises:
        UsageError: there are shards of several runs.
    """
    found = {of for _, of in shards}
    if len(found) > 1:
        shown = " and ".join(str(of) for of in sorted(found))
        raise UsageError(f"{name} has shards of runs cut into {shown}", "move those of one of them elsewhere")
    return found.pop() if found else None


def how_many(out: Path, asked: int | None, servers: int | None, rows: int) -> int | None:
    """Shards of this run; None while it takes the number of servers to say.

    Raises:
        UsageError: the run that is there has another number than is asked for.
    """
    return agreed(shards_there(out), str(out), asked, servers, rows)


def agreed(there: int | None, name: str, asked: int | None, servers: int | None, rows: int) -> int | None:
    """See `how_many`: with what is there, in a folder or at a URL of this name."""
    if there is not None and asked is not None and asked != there:
        raise UsageError(
            f"the run in {name} is cut into {there} shards, not {asked}", f"--shards {there}, or leave it out"
        )
    if there is not None:
        return there
    if asked is None and servers is None:
        return None
    return min(asked or A_SERVER * (servers or 1), rows)


def seems_done(out: Path) -> bool:
    """Whether the job of every shard there told that it is done. `look` says whether it is true."""
    of = shards_there(out)
    return of is not None and all(_ended(out / shard_name(shard, of)) for shard in range(of))


def refuse_another_run(out: Path, settings: ExtractSettings, source: Source) -> None:
    """Raise UsageError when the whole, or a shard, in `out` is not of the run that is asked for.

    A shard that is done is opened by no job any more, so nobody else would compare.

    Args:
        out: The run's folder.
        settings: What is asked for; layers that are not named are the folder's own.
        source: The data set that is asked for.
    """
    if (whole := load_record(out)) is not None:
        refuse_differences(whole, asked(whole, settings, source, (0, 1)))
    for path in shard_folders(out):
        record, numbers = load_record(path), parse(path.name)
        if record is not None and numbers is not None:
            refuse_differences(record, asked(record, settings, source, numbers), of=path.name)


def asked(old: RunRecord, settings: ExtractSettings, source: Source, shard: tuple[int, int]) -> RunRecord:
    """The run that is asked for, as far as it is known before there is a server."""
    states, engine = old.states, old.engine
    if settings.layers is not None:
        states = msgspec.structs.replace(states, after_block=settings.layers)
    if settings.model is not None and not _same_model(engine.model, settings.model):
        engine = msgspec.structs.replace(engine, model=settings.model)
    return msgspec.structs.replace(
        old, format=settings.format, source=source, shard=shard, states=states, engine=engine
    )


def _same_model(one: str, other: str) -> bool:
    """Whether two names may be of one model; what a hub's name was loaded from cannot be told from here."""
    if os.path.isabs(one) and os.path.isabs(other):
        return os.path.realpath(one) == os.path.realpath(other)
    return one == other or os.path.isabs(one) != os.path.isabs(other)


class Found(msgspec.Struct, frozen=True):
    """A shard as it lies on disk."""

    at: At
    done: bool


def look(out: Path, shard: int, of: int, rows: int) -> Found:
    """Count what a shard's index holds. Done is one that is whole and whose job said so after its side files."""
    folder = out / shard_name(shard, of)
    lines = {line.index: line for line in read_lines(folder) if isinstance(line, IndexLine)}
    ended = _ended(folder)
    return counted(shard, lines.values(), ended, ended and len(lines) == len(range(shard, rows, of)))


def counted(shard: int, lines: Collection[IndexLine], ended: bool, done: bool) -> Found:
    """A shard by the lines of its rows."""
    written = [line for line in lines if line.status == "written"]
    at = At(
        shard=shard,
        state="done" if ended else "stopped",
        written=len(written),
        refused=sum(line.status == "refused" for line in lines),
        quarantined=sum(line.status == "quarantined" for line in lines),
        tokens=sum(line.tokens for line in written),
        tokens_expected=sum(line.tokens for line in written) if ended else 0.0,
        nbytes=sum(line.nbytes for line in written),
    )
    return Found(at, done)


def _ended(folder: Path) -> bool:
    events, _ = recent(JobFiles(folder).events)
    return bool(events) and isinstance(events[-1], Ended) and events[-1].state == "done"
