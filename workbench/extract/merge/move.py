"""The steps of a merge. Each can be done again after it was broken off anywhere, and finds what is left to do."""

import contextlib
import errno
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from workbench.errors import CheckFailed
from workbench.extract.audit.structure import ARROW_FILES
from workbench.extract.durable import TEMPORARY, publish, sync_folder, temporary_name
from workbench.extract.formats import Layout
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job import roster
from workbench.extract.job.events import Ended, JobEvent, Progress
from workbench.extract.job.files import FOLDER, JobFile, JobFiles, Journal, recent
from workbench.extract.merge.check import QUARANTINE, Shard, walk
from workbench.extract.record import RECORD_FILE, RunRecord
from workbench.extract.shards import parse, shard_folders
from workbench.server import processes

KEPT = f"{FOLDER}/shards"
"""Where the shards' own job files go."""


def move_samples(out: Path, shards: Sequence[Shard]) -> Iterator[tuple[int, int]]:
    """Rename every sample into `out`; yields (those in place, all) as it goes.

    Raises:
        CheckFailed: a file went away meanwhile.
    """
    done, count = 0, sum(1 for shard in shards for _ in shard.written())
    for shard in shards:
        touched: set[Path] = set()
        for line in shard.written():
            source, target = shard.folder / line.file, out / line.file
            if target.parent not in touched:
                target.parent.mkdir(parents=True, exist_ok=True)
                touched |= {target.parent, source.parent}
            try:
                os.replace(source, target)
            except FileNotFoundError:
                if not target.exists():
                    raise CheckFailed(f"{source} is gone", "did something else change the shards?") from None
            done += 1
            yield done, count
        for folder in (*touched, out):
            sync_folder(folder)


def move_quarantine(out: Path, shards: Sequence[Shard]) -> None:
    """Put the bad dumps of all shards into the one quarantine of the whole."""
    whole = out.with_name(out.name + QUARANTINE)
    for shard in shards:
        place = shard.folder.with_name(shard.name + QUARANTINE)
        if not place.is_dir():
            continue
        whole.mkdir(exist_ok=True)
        for sample in sorted(place.iterdir()):
            _move(sample, whole / sample.name)
        place.rmdir()
        sync_folder(whole)


def _move(source: Path, target: Path) -> None:
    """Rename, or copy where the whole's folder is a mount of its own. A copy gets its name when it is complete."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        building = temporary_name(target)
        shutil.rmtree(building, ignore_errors=True)
        shutil.copytree(source, building)
        os.replace(building, target)
        shutil.rmtree(source)


def write_index(out: Path, lines: Iterable[IndexLine]) -> None:
    """The whole's index, as one file."""
    path = out / INDEX_FILE
    building = temporary_name(path)
    with open(building, "wb") as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    publish(building, path)


def whole_record(shards: Sequence[Shard]) -> RunRecord:
    """The run as if it had never been cut; begun when its first shard was."""
    created = min(shard.record.created for shard in shards)
    return msgspec.structs.replace(shards[0].record, shard=(0, 1), created=created)


def write_job(out: Path, shards: Sequence[Shard], told: Ended) -> None:
    """A job that is done, so that watching and --resume find one. Without one in the shards none is made."""
    parts = [JobFiles(shard.folder) for shard in shards]
    before = next((job for part in parts if (job := part.load()) is not None), None)
    if before is None:
        return
    files, me = JobFiles(out), psutil.Process()
    old = files.load()
    whole: JobFile = msgspec.structs.replace(
        before,
        start=old.start + 1 if old is not None else 1,
        pid=me.pid,
        since_boot=processes.since_boot(me),
        started=time.time(),
        host=platform.node(),
        settings=msgspec.structs.replace(before.settings, out=str(files.out), shard=(0, 1)),
    )
    files.save(whole)
    journal = Journal(files)
    picture = _picture(parts, shards)
    for event in (picture, msgspec.structs.replace(told, start=whole.start)):
        journal.append(event)
    journal.close()
    roster.note(files.out)


def _picture(files: Sequence[JobFiles], shards: Sequence[Shard]) -> Progress:
    """What all shards come to; rates of it are those of one server, since the seconds of all are added."""
    last = [event for one in files if (event := _last(recent(one.events)[0])) is not None]
    lines = [line for shard in shards for line in shard.lines]
    written = [line for line in lines if line.status == "written"]
    tokens = sum(line.tokens for line in written)
    return Progress(
        time=time.time(),
        state="done",
        rows=len(lines),
        written=len(written),
        refused=sum(line.status == "refused" for line in lines),
        quarantined=sum(line.status == "quarantined" for line in lines),
        tokens=tokens,
        tokens_expected=tokens,
        nbytes=sum(line.nbytes for line in written),
        samples_here=sum(event.samples_here for event in last),
        tokens_here=sum(event.tokens_here for event in last),
        bytes_here=sum(event.bytes_here for event in last),
        seconds_here=sum(event.seconds_here for event in last),
        restarts=sum(event.restarts for event in last),
        retries=sum(event.retries for event in last),
        plain_tok_s=next((event.plain_tok_s for event in last if event.plain_tok_s), None),
        slowest=tuple(sorted((slow for event in last for slow in event.slowest), key=lambda s: -s.seconds)[:5]),
    )


def _last(events: Sequence[JobEvent]) -> Progress | None:
    return next((event for event in reversed(events) if isinstance(event, Progress) and event.rows), None)


def clear(out: Path, kind: Layout, record: RunRecord, lines: Sequence[IndexLine]) -> list[str]:
    """Take the shards away: their own job files are kept below the whole's, their side files are of no more use.

    Returns files that are not ours, below `out`; they stay, and so do their folders.
    """
    kept = []
    for folder in shard_folders(out):
        _keep_job(out, folder)
        numbers = parse(folder.name)
        assert numbers is not None
        ours = {RECORD_FILE, INDEX_FILE, *(ARROW_FILES if kind.arrow else ())}
        ours |= set(kind.side_files(record, [line for line in lines if line.index % numbers[1] == numbers[0]]))
        for name in list(walk(folder)):
            if name in ours or name.endswith(TEMPORARY) or (kind.arrow and name.endswith(".arrow")):
                os.unlink(folder / name)
        _remove_empty(folder)
        kept += [f"{folder.name}/{name}" for name in walk(folder)] if folder.exists() else []
    sync_folder(out)
    return kept


def _keep_job(out: Path, folder: Path) -> None:
    source, target = folder / FOLDER, out / KEPT / folder.name
    if not source.is_dir():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(source, target)


def _remove_empty(folder: Path) -> None:
    """Remove the folders in a tree that hold nothing, and the tree itself if that is all of it."""
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(parent)
