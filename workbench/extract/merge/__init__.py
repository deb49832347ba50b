"""Making one data set of the shards in a folder, by renaming: no sample is written a second time.

::

    OUT/shard_I-of-N/rows_0-2000/data_7.pt   →   OUT/rows_0-2000/data_7.pt

Order: everything is checked; a journal says `moving`; samples and quarantine are renamed; index, side files, job and
record of the whole are written; the journal says `clearing`; the shards' folders go; the journal goes. Broken off
anywhere, the same call goes on. Until the record of the whole is there, its folder is of no run, so no reader takes a
part for the whole.
"""

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from workbench.errors import Missing, UsageError
from workbench.extract.durable import leftovers
from workbench.extract.formats import layout
from workbench.extract.index import IndexLine, read_lines
from workbench.extract.job.events import Ended, Told
from workbench.extract.job.files import JobFiles
from workbench.extract.merge.check import (
    QUARANTINE,
    Shard,
    check_files,
    check_sums,
    check_whole,
    listed,
    read_shards,
    refuse_no_shards,
    refuse_other_places,
    refuse_used,
)
from workbench.extract.merge.journal import JOURNAL_FILE, MergeJournal, load_journal, save_journal
from workbench.extract.merge.move import clear, move_quarantine, move_samples, whole_record, write_index, write_job
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RECORD_FILE, RunRecord, load_record, save_record
from workbench.extract.shards import parse, shard_folders
from workbench.extract.writer import finalise
from workbench.render.text import size

TELL_EVERY_S = 5.0


def merge(
    out: Path,
    *,
    check: bool = False,
    python: str | None = None,
    pool: WorkerPool | None = None,
    locked: bool = False,
) -> Iterator[Told | Ended]:
    """Join the shards in `out`; tells what it does, an `Ended` last. Called again, it goes on or says that it is done.

    Args:
        out: The folder that --out named.
        check: Read every file and compare its checksum first, of a whole too; else the sizes of shards' files are.
        python: Interpreter with torch, for the format with an Arrow data set.
        pool: Workers to use instead.
        locked: The caller is the job in `out` and holds its lock; it writes down by itself that it is done.

    Raises:
        UsageError: shards are missing, overlap, differ, are not finished or are being written; names are told.
        CheckFailed: files are not as their index says.
        Missing: the disk is full, or something may not be written.
    """
    out = out.absolute()
    if not out.is_dir():
        raise UsageError(f"there is no folder {out}", "give the folder that --out named")
    try:
        with contextlib.ExitStack() as stack:
            yield from _merge(out, check, _Tools(stack, python, pool), locked)
    except OSError as error:
        why = f"{error.filename or out}: {error.strerror or error}"
        raise Missing(why, f"is there room, and may it be written? hsbench extract --merge {out} goes on") from error


class _Tools:
    """What is needed seldom."""

    def __init__(self, stack: contextlib.ExitStack, python: str | None, pool: WorkerPool | None) -> None:
        self.stack, self._python, self._pool = stack, python, pool

    def pool(self, needed: bool) -> WorkerPool:
        """Workers; where none is needed no interpreter is looked for."""
        from workbench.server.engine import find_interpreter

        if self._pool is None:
            python = find_interpreter(self._python) if needed else ""
            self._pool = self.stack.enter_context(WorkerPool(python, 1))
        return self._pool


def _merge(out: Path, check: bool, tools: _Tools, locked: bool) -> Iterator[Told | Ended]:
    journal, record = load_journal(out), load_record(out)
    if journal is None:
        if record is not None:
            yield from _already(out, record, check)
            return
        refuse_no_shards(out)
    if not locked:
        tools.stack.enter_context(JobFiles(out).locked())
    if journal is None or journal.phase == "moving":
        shards = yield from _checked(out, journal, check, tools)
        of = shards[0].record.shard[1]
        save_journal(out, MergeJournal(of, "moving"))
        yield from _join(out, shards, tools, locked)
        save_journal(out, MergeJournal(of, "clearing"))
    yield from _clear(out)


def _already(out: Path, record: RunRecord, check: bool) -> Iterator[Told | Ended]:
    left = [path.name for path in shard_folders(out) if load_record(path) is not None]
    if left or record.shard != (0, 1):
        what = f"{out} is of a run already" + (f", and beside it lie {listed(left)}" if left else "")
        raise UsageError(what, "move the shards into a folder of their own, and merge that")
    lines = _lines(out)
    if check:
        yield from _paced(check_whole(out, record, lines), "{:,} of {:,} files read")
        yield _note(f"{sum(line.status == 'written' for line in lines):,} files have the checksum of their index")
    yield _end(out, lines, "nothing to merge: ")


def _checked(out: Path, journal: MergeJournal | None, check: bool, tools: _Tools) -> Generator[Told, None, list[Shard]]:
    """The shards, with nobody writing into them, and nothing wrong with them."""
    for folder in shard_folders(out):
        files = JobFiles(folder)
        if files.folder.is_dir():
            tools.stack.enter_context(files.locked())
    shards = read_shards(out, journal)
    if journal is None:
        refuse_used(out, layout(shards[0].record.format))
    refuse_other_places(out, shards)
    check_files(out, shards, begun=journal is not None)
    rows = sum(len(shard.lines) for shard in shards)
    yield _note(f"{len(shards)} shards, {rows:,} rows" + (": going on where it was broken off" if journal else ""))
    if check:
        yield from _paced(check_sums(out, shards), "{:,} of {:,} files read")
    return shards


def _join(out: Path, shards: Sequence[Shard], tools: _Tools, locked: bool) -> Iterator[Told]:
    """Make the whole; its record comes last."""
    record, lines = (
        whole_record(shards),
        sorted((line for s in shards for line in s.lines), key=lambda line: line.index),
    )
    yield from _paced(move_samples(out, shards), "{:,} of {:,} samples moved")
    move_quarantine(out, shards)
    write_index(out, lines)
    finalise(out, record, lines, tools.pool(layout(record.format).arrow))
    if not locked:
        write_job(out, shards, _end(out, lines))
    save_record(out, record)


def _clear(out: Path) -> Iterator[Told | Ended]:
    """Take away what is left of the shards."""
    record, lines = load_record(out), _lines(out)
    if record is None:
        raise UsageError(f"{out} was merged, and its {RECORD_FILE} is gone", "was the folder moved in part?")
    kept = clear(out, layout(record.format), record, lines)
    for left in leftovers(out):
        left.unlink(missing_ok=True)
    (out / JOURNAL_FILE).unlink(missing_ok=True)
    if kept:
        yield Told(
            time=time.time(), text=f"files of another origin stay where they are: {listed(kept)}", level="warning"
        )
    yield _end(out, lines)


def _lines(out: Path) -> list[IndexLine]:
    return [entry for entry in read_lines(out) if isinstance(entry, IndexLine)]


def _paced(steps: Iterable[tuple[int, int]], text: str) -> Iterator[Told]:
    """A line now and then."""
    told = time.monotonic()
    for done in steps:
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            yield _note(text.format(*done))


def _note(text: str) -> Told:
    return Told(time=time.time(), text=text)


def _end(out: Path, lines: Sequence[IndexLine], before: str = "") -> Ended:
    """What there is, in the words of a job that is done."""
    whole = [line for line in lines if line.status == "written"]
    bad = sum(line.status == "quarantined" for line in lines)
    nbytes, tokens = sum(line.nbytes for line in whole), sum(line.tokens for line in whole)
    text = f"{before}{len(whole):,} samples, {tokens:,} tokens, {size(nbytes)} in {out}"
    text += f"; {refused} rows refused" if (refused := len(lines) - len(whole) - bad) else ""
    text += f"; {bad} in quarantine, {out}{QUARANTINE}" if bad else ""
    return Ended(time=time.time(), state="done", message=text, next_step=f"hsbench verify {out} --all")


def merge_url(url: str, *, check: bool = False, python: str | None = None) -> Iterator[Told | Ended]:
    """The same at a URL, where nothing is moved: see `workbench.storage.merging`."""
    from workbench.storage.merging import merge_at

    yield from merge_at(url, check=check, python=python)


def refuse_part_of_whole(folder: Path) -> None:
    """Raise UsageError when a job would write into a shard of a run that is merged, or is being merged."""
    numbers, out = parse(folder.name), folder.parent
    if numbers is None:
        return
    if load_journal(out) is not None:
        raise UsageError(f"{out} is being merged", f"hsbench extract --merge {out} goes on with it")
    if load_record(out) is not None:
        raise UsageError(
            f"{out} is a whole already, merged of its shards", f"hsbench extract --resume {out}, or another --out"
        )
