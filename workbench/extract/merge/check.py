"""Whether shards make one whole: all of them, finished, of one run, no row twice, every file as its index says."""

import concurrent.futures
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from workbench.errors import CheckFailed, UsageError
from workbench.extract.audit.structure import ARROW_FILES, ranges
from workbench.extract.durable import TEMPORARY
from workbench.extract.formats import Layout, layout
from workbench.extract.index import INDEX_FILE, IndexLine, Torn, read_lines
from workbench.extract.job.files import FOLDER
from workbench.extract.merge.journal import MergeJournal
from workbench.extract.pool import cores
from workbench.extract.record import RECORD_FILE, RunRecord, differences, load_record
from workbench.extract.shards import parse, shard_folders, shard_name

NAMED = 8
"""Shards, or files, named in one message."""
READ_BYTES = 1 << 22
QUARANTINE = ".quarantine"


class Shard(msgspec.Struct, frozen=True):
    """One shard as it lies there."""

    folder: Path
    number: int
    record: RunRecord
    lines: tuple[IndexLine, ...]
    """The last line of each row, in the order of the rows."""

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.folder.name

    def written(self) -> Iterator[IndexLine]:
        """The lines that have a file."""
        return (line for line in self.lines if line.status == "written")


def listed(names: Sequence[str]) -> str:
    """Names in a message, cut to a few."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def read_shards(out: Path, journal: MergeJournal | None) -> list[Shard]:
    """The shards in `out`, finished and of one run, and together every row once.

    Raises:
        UsageError: shards are missing, overlap, are not finished or of several runs; each is named.
        CheckFailed: an index is damaged.
    """
    refuse_no_shards(out)
    folders = shard_folders(out)
    of = _one_number(out, folders, journal)
    begun = [(path, record) for path in folders if (record := load_record(path)) is not None]
    if not begun:
        raise UsageError(f"no shard in {out} has a sample yet", f"hsbench watch {out}")
    _refuse_wrong_names(begun)
    first = begun[0][1]
    _refuse_missing(out, {path.name for path, _ in begun}, of, first.source.rows)
    _refuse_other_runs(begun)
    shards = [_read(path, record) for path, record in begun]
    _refuse_unfinished(shards)
    _refuse_overlaps(shards)
    return shards


def refuse_no_shards(out: Path) -> None:
    """Raise UsageError when nothing in `out` has the name of a shard."""
    if not shard_folders(out):
        inside = parse(out.name) is not None
        raise UsageError(
            f"there are no shards in {out}",
            f"hsbench extract --merge {out.parent}" if inside else "hsbench extract DATA --out DIR --shard I/N",
        )


def _one_number(out: Path, folders: list[Path], journal: MergeJournal | None) -> int:
    """How many shards there should be, by their names."""
    numbers: dict[int, str] = {}
    for path in folders:
        if (of := parse(path.name)) is not None:
            numbers.setdefault(of[1], path.name)
    if journal is not None:
        numbers.setdefault(journal.of, f"a merge of {journal.of} shards that was begun")
    if len(numbers) > 1:
        raise UsageError(
            f"{out} holds shards of several divisions: {listed(list(numbers.values()))}",
            "move those of the other run away; their rows overlap",
        )
    return next(iter(numbers))


def _refuse_wrong_names(begun: list[tuple[Path, RunRecord]]) -> None:
    for path, record in begun:
        if record.shard != parse(path.name):
            twin = shard_name(*record.shard)
            raise UsageError(
                f"{path.name} holds the rows of shard {record.shard[0]}/{record.shard[1]}, "
                f"so it overlaps {twin}: was it renamed or copied?",
                f"give it back the name {twin}, or move it away",
            )


def _refuse_missing(out: Path, names: set[str], of: int, rows: int) -> None:
    """A shard that no row belongs to need not be there."""
    wanted = [shard_name(number, of) for number in range(min(of, rows))]
    missing = [name for name in wanted if name not in names]
    if missing:
        number = parse(missing[0])
        assert number is not None
        raise UsageError(
            f"{len(missing)} of {len(wanted)} shards are missing in {out}: {listed(missing)}",
            f"hsbench extract DATA --out {out} --shard {number[0]}/{of} makes the first of them",
        )


def _refuse_other_runs(begun: list[tuple[Path, RunRecord]]) -> None:
    first, model = begun[0]
    for path, record in begun[1:]:
        if lines := differences(model, msgspec.structs.replace(record, shard=model.shard)):
            raise UsageError(
                f"{path.name} is of another run than {first.name}: {'; '.join(lines)}",
                "make it again as the others were made, or move it away",
            )


def _read(folder: Path, record: RunRecord) -> Shard:
    lines: dict[int, IndexLine] = {}
    for entry in read_lines(folder):
        if isinstance(entry, IndexLine):
            lines[entry.index] = entry
        elif isinstance(entry, Torn) and not entry.last:
            raise CheckFailed(
                f"{folder / INDEX_FILE}, line {entry.number}: {entry.reason}", "hsbench verify says what is whole"
            )
    return Shard(folder, record.shard[0], record, tuple(lines[row] for row in sorted(lines)))


def _refuse_unfinished(shards: list[Shard]) -> None:
    left = {}
    for shard in shards:
        have = {line.index for line in shard.lines}
        if missing := sum(row not in have for row in shard.record.rows()):
            left[shard.name] = (
                shard.folder,
                f"{shard.name} has {missing:,} of {len(shard.record.rows()):,} rows to go",
            )
    if left:
        folder = next(iter(left.values()))[0]
        raise UsageError(listed([text for _, text in left.values()]), f"hsbench extract --resume {folder}")


def _refuse_overlaps(shards: list[Shard]) -> None:
    """The rows of shards are apart by their numbers, so an overlap is a row that is not of its shard."""
    owners = {number: shard.name for shard in shards for number in [shard.number]}
    for shard in shards:
        of = shard.record.shard[1]
        foreign = [line.index for line in shard.lines if line.index not in shard.record.rows()]
        if foreign:
            others = sorted({owners.get(row % of, "no shard") for row in foreign})
            raise UsageError(
                f"{shard.name} holds rows of {listed(others)}: {ranges(foreign)}",
                "its index was put together by something else; make the shard again in an empty folder",
            )


def check_files(out: Path, shards: Sequence[Shard], begun: bool) -> None:
    """Every file that an index names is there with its size, once, and no other that readers would take.

    Args:
        out: Where the whole goes.
        shards: All of them.
        begun: Files may have been moved to `out` already.

    Raises:
        CheckFailed: one is not; the first few are named.
    """
    kind = layout(shards[0].record.format)
    problems: list[str] = []
    for shard in shards:
        found = (_file_problem(out, shard, line, kind, begun) for line in shard.written())
        problems += [problem for problem in found if problem]
        problems += [f"{shard.name}/{name} is a sample of no row" for name in _strays(shard, kind)]
    if problems:
        raise CheckFailed(
            f"files are not as their index says: {listed(problems)}",
            f"nothing was moved; hsbench extract --resume {shards[0].folder.parent}/shard_I-of-N makes them again"
            if not begun
            else "hsbench verify says more, once they are put right",
        )


def _file_problem(out: Path, shard: Shard, line: IndexLine, kind: Layout, begun: bool) -> str:
    """What is wrong with a row's file; empty when nothing is."""
    where = f"{shard.name}/{line.file}"
    if line.file != kind.file_of(line.index):
        return f"{where} is no file of row {line.index}"
    sizes = [_size(shard.folder / line.file), _size(out / line.file) if begun else None]
    there = [size for size in sizes if size is not None]
    if len(there) > 1:
        return f"{where} is there twice, and in {out.name}"
    if not there:
        return f"{where} is missing"
    return "" if there[0] == line.nbytes else f"{where} has {there[0]} bytes, the index says {line.nbytes}"


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _strays(shard: Shard, kind: Layout) -> Iterator[str]:
    known = {line.file for line in shard.written()}
    for name in walk(shard.folder):
        sample = kind.takes(name) or kind.index_of(name) is not None
        if sample and name not in known and not name.startswith(f"{FOLDER}/") and not name.endswith(TEMPORARY):
            yield name


def walk(folder: Path) -> Iterator[str]:
    """Paths of all files below a folder, with forward slashes."""
    for parent, _, names in os.walk(folder):
        for name in names:
            yield (Path(parent) / name).relative_to(folder).as_posix()


def check_whole(out: Path, record: RunRecord, lines: Sequence[IndexLine]) -> Iterator[tuple[int, int]]:
    """Read every file of a data set that is joined already; yields (files read, files) as it goes.

    Raises:
        CheckFailed: one is missing or differs; the first few are named.
    """
    whole, kind = Shard(out, 0, record, tuple(lines)), layout(record.format)
    step = f"remove them; hsbench extract --resume {out} makes them again"
    if problems := [problem for line in whole.written() if (problem := _file_problem(out, whole, line, kind, False))]:
        raise CheckFailed(f"files are not as their index says: {listed(problems)}", step)
    yield from check_sums(out, [whole], step)


def check_sums(
    out: Path, shards: Sequence[Shard], next_step: str = "remove them and --resume their shards"
) -> Iterator[tuple[int, int]]:
    """Read every file and compare its crc32 with the index; yields (files read, files) as it goes.

    Raises:
        CheckFailed: one differs; the first few are named.
    """
    files = [(shard, line) for shard in shards for line in shard.written()]
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(cores(), "merge") as threads:
        sums = threads.map(lambda one: _crc32(out, *one), files)
        for number, ((shard, line), found) in enumerate(zip(files, sums, strict=True), start=1):
            if found != line.crc32:
                wrong.append(f"{shard.name}/{line.file} has the checksum {found}, the index says {line.crc32}")
            yield number, len(files)
    if wrong:
        raise CheckFailed(f"{len(wrong)} files are not as they were written: {listed(wrong)}", next_step)


def _crc32(out: Path, shard: Shard, line: IndexLine) -> str:
    path, value = shard.folder / line.file, 0
    with open(path if path.exists() else out / line.file, "rb", buffering=0) as file:
        while part := file.read(READ_BYTES):
            value = zlib.crc32(part, value)
    return f"{value:08x}"


def refuse_other_places(out: Path, shards: Sequence[Shard]) -> None:
    """Raise UsageError when a shard cannot be renamed into `out`: another file system, or a link."""
    here = os.stat(out).st_dev
    for shard in shards:
        if shard.folder.is_symlink():
            raise UsageError(f"{shard.name} is a link", f"move {shard.folder.resolve()} to {shard.folder}")
        places = {shard.folder, *((shard.folder / line.file).parent for line in shard.written())}
        if any(os.stat(place).st_dev != here for place in places if place.exists()):
            raise UsageError(
                f"{shard.name} lies on another file system than {out}, so it cannot be renamed",
                f"copy it into a folder of {out} first: cp -a, then give the copy its name",
            )


def refuse_used(out: Path, kind: Layout) -> None:
    """Raise UsageError when `out` holds what the whole would lie among or over."""
    own = {RECORD_FILE, INDEX_FILE, "data_config.json", "sample_lengths.json", *ARROW_FILES}
    bad = []
    for path in sorted(out.iterdir()):
        if parse(path.name.removesuffix(QUARANTINE)) is not None or path.name == FOLDER:
            continue
        inside = [f"{path.name}/{name}" for name in walk(path)] if path.is_dir() else [path.name]
        if path.name in own or any(kind.takes(name) or kind.index_of(name) is not None for name in inside):
            bad.append(path.name)
    whole = out.with_name(out.name + QUARANTINE)
    bad += [str(whole)] if whole.exists() and any(out.glob(f"shard_*{QUARANTINE}")) else []
    if bad:
        raise UsageError(
            f"{out} holds more than shards: {listed(bad)}", "a merge begins beside no other data set; move them away"
        )
