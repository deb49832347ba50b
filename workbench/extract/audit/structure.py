"""Which files a data set should have and has: index, sample files, side files, strays. Nothing is opened but JSON."""

import collections
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.extract.audit.report import Problem
from workbench.extract.durable import TEMPORARY
from workbench.extract.formats import Layout, layout
from workbench.extract.index import INDEX_FILE, IndexLine, read_lines
from workbench.extract.record import FORMATS, RECORD_FILE, RunRecord, load_record
from workbench.extract.shards import shard_folders

ARROW_FILES = ("state.json", "dataset_info.json")
OWN_FOLDER = ".hsbench/"
"""Where a job keeps its own files inside a data set."""
OF_A_URL = re.compile(r"index/(run\.json|job\.json|cluster\.json|part-\d{6,}\.jsonl)")
"""What a run keeps beside its samples where --out is a URL, `file://` among them."""
LISTED = 20
"""Row numbers named in one message."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A data set as it lies there. Without a `record` it was written by something else."""

    folder: Path
    layout: Layout
    record: RunRecord | None
    lines: dict[int, IndexLine]
    """The last line of each row."""
    files: dict[int, str]
    """Sample file by row."""
    problems: tuple[Problem, ...]

    def written(self) -> list[IndexLine]:
        """Lines of rows that have a sample."""
        return [line for line in self.lines.values() if line.status == "written"]


def look(folder: Path, partial: bool = False) -> Found:
    """Look at a data set's structure.

    Args:
        folder: The data set's folder.
        partial: Rows that are not done yet are no problem.

    Raises:
        UsageError: there is no data set.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "name the folder that hsbench extract wrote")
    record = load_record(folder)
    if record is None:
        _refuse_shards(folder)
    names = sorted(_walk(folder))
    kind = layout(record.format) if record is not None else _guess(folder, names)
    files, doubled = _sample_files(kind, names)
    lines, problems = _index(folder, record)
    problems += doubled
    if record is not None:
        problems += _missing(record, lines, partial)
        problems += _against_index(folder, lines, files)
        problems += _side_files(folder, kind, record, lines)
    problems += _strays(kind, record, names, set(files.values()))
    return Found(folder=folder, layout=kind, record=record, lines=lines, files=files, problems=tuple(problems))


def _refuse_shards(folder: Path) -> None:
    """Raise UsageError for the folder of a run whose shards are not joined: each of them is a data set."""
    if found := shard_folders(folder):
        raise UsageError(
            f"{folder} holds {len(found)} {'shards' if len(found) > 1 else 'shard'} of a run, not joined",
            f"hsbench extract --merge {folder} once all are done, or verify each: hsbench verify {found[0]} --partial",
        )


def _walk(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield (Path(parent) / name).relative_to(folder).as_posix()


def _guess(folder: Path, names: list[str]) -> Layout:
    """The format that most files look like."""
    counts = {kind: sum(layout(kind).index_of(name) is not None for name in names) for kind in FORMATS}
    best = max(FORMATS, key=lambda kind: counts[kind])
    if not counts[best] and (folder / OWN_FOLDER).is_dir():
        raise UsageError(f"{folder} holds no samples yet, only a job's own files", f"hsbench watch {folder} shows it")
    if not counts[best]:
        raise UsageError(f"{folder} holds no samples of a known format", f"known are {', '.join(FORMATS)}")
    return layout(best)


def _sample_files(kind: Layout, names: list[str]) -> tuple[dict[int, str], list[Problem]]:
    files = {row: name for name in names if (row := kind.index_of(name)) is not None}
    problems = []
    for name in names:
        row = _number(name)
        if row in files and files[row] != name and Path(name).name == Path(files[row]).name:
            problems.append(
                Problem(check="duplicates", index=row, file=name, message=f"a second file for row {row}: {files[row]}")
            )
    return files, problems


def _number(name: str) -> int | None:
    digits = Path(name).name.split(".")[0].rpartition("_")[2]
    return int(digits) if digits.isdecimal() else None


def _index(folder: Path, record: RunRecord | None) -> tuple[dict[int, IndexLine], list[Problem]]:
    lines: dict[int, IndexLine] = {}
    problems: list[Problem] = []
    if record is None:
        message = f"no {RECORD_FILE}: not written by hsbench, so nothing is known of checksums, blocks or the source"
        return lines, [Problem(check="index", message=message, warning=True)]
    for entry in read_lines(folder):
        if isinstance(entry, IndexLine):
            problems += _doubled_line(entry, lines)
            lines[entry.index] = entry
        else:
            cut = "a torn last line: the run was killed or is still writing"
            message = cut if entry.last else f"line {entry.number} is damaged: {entry.reason}"
            problems.append(Problem(check="index", file=INDEX_FILE, message=message, warning=entry.last))
    if not (folder / INDEX_FILE).exists():
        problems.append(Problem(check="index", file=INDEX_FILE, message="it is missing"))
    return lines, problems + _doubled_files(lines)


def _doubled_line(entry: IndexLine, lines: dict[int, IndexLine]) -> list[Problem]:
    """A second line is right only where the writer says that the row was done again."""
    if entry.index not in lines or entry.again:
        return []
    message = f"row {entry.index} is in the index twice"
    return [Problem(check="duplicates", index=entry.index, file=entry.file, message=message)]


def _doubled_files(lines: dict[int, IndexLine]) -> list[Problem]:
    counts = collections.Counter(line.file for line in lines.values() if line.file)
    return [
        Problem(check="duplicates", file=file, message=f"{count} rows name this file")
        for file, count in counts.items()
        if count > 1
    ]


def _missing(record: RunRecord, lines: dict[int, IndexLine], partial: bool) -> list[Problem]:
    rows = record.rows()
    missing = [row for row in rows if row not in lines]
    foreign = [row for row in lines if row not in rows]
    problems = []
    if missing and not partial:
        message = f"{len(missing)} of {len(rows)} rows are missing: {ranges(missing)}"
        problems.append(Problem(check="rows", index=missing[0], message=message))
    if foreign:
        message = f"rows that are not of this shard or source: {ranges(foreign)}"
        problems.append(Problem(check="rows", index=foreign[0], message=message))
    return problems


def ranges(rows: list[int]) -> str:
    """Row numbers in few words, such as ``3, 5-9``."""
    runs: list[list[int]] = []
    for row in sorted(rows):
        if runs and runs[-1][1] == row - 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:LISTED]]
    return ", ".join(words) + (", …" if len(runs) > LISTED else "")


def _against_index(folder: Path, lines: dict[int, IndexLine], files: dict[int, str]) -> list[Problem]:
    problems = []
    for line in lines.values():
        if line.status != "written":
            continue
        try:
            size = os.stat(folder / line.file).st_size
        except OSError:
            problems.append(Problem(check="files", index=line.index, file=line.file, message="it is missing"))
            continue
        if size != line.nbytes:
            message = f"it has {size} bytes, the index says {line.nbytes}" + (": cut off" if size < line.nbytes else "")
            problems.append(Problem(check="files", index=line.index, file=line.file, message=message))
    for row, file in files.items():
        known = lines.get(row)
        if known is None or known.status != "written":
            message = "a sample that the index does not know" if known is None else f"its row was {known.status}"
            problems.append(Problem(check="files", index=row, file=file, message=message))
    return problems


def _side_files(folder: Path, kind: Layout, record: RunRecord, lines: dict[int, IndexLine]) -> list[Problem]:
    """Side files must say what they would say if they were made from the index now."""
    problems = []
    written = [line for row in sorted(lines) if (line := lines[row]).status == "written"]
    for name, expected in kind.side_files(record, written).items():
        try:
            held = json.loads((folder / name).read_bytes())
        except FileNotFoundError:
            problems.append(Problem(check="side files", file=name, message="it is missing: the run was not finished"))
            continue
        except (OSError, ValueError) as error:
            problems.append(Problem(check="side files", file=name, message=f"it cannot be read: {error}"))
            continue
        if held != json.loads(json.dumps(expected)):
            problems.append(Problem(check="side files", file=name, message=_what_differs(held, expected)))
    if kind.arrow:
        for name in ARROW_FILES:
            if not (folder / name).exists():
                message = "it is missing: the run was not finished"
                problems.append(Problem(check="side files", file=name, message=message))
    return problems


def _what_differs(held: object, expected: dict[str, object]) -> str:
    if not isinstance(held, dict):
        return "it is not an object"
    keys = [key for key in sorted({*held, *expected}) if held.get(key) != json.loads(json.dumps(expected.get(key)))]
    return f"it differs from the index in {', '.join(keys[:5])}"


def _strays(kind: Layout, record: RunRecord | None, names: list[str], samples: set[str]) -> list[Problem]:
    known = {RECORD_FILE, INDEX_FILE}
    if record is not None:
        known |= set(kind.side_files(record, []))
    problems = []
    for name in names:
        base = Path(name).name
        if name in known or name in samples or base == "sample_lengths.json":
            continue
        if name.startswith(OWN_FOLDER) or OF_A_URL.fullmatch(name):
            continue
        if kind.arrow and (name in ARROW_FILES or name.endswith(".arrow")):
            continue
        if base.endswith(TEMPORARY) and base.startswith("."):
            message = "a temporary file: the run was killed or is still writing"
            problems.append(Problem(check="strays", file=name, message=message, warning=True))
        elif kind.takes(name):
            message = "a file that readers would take for a sample"
            problems.append(Problem(check="strays", file=name, message=message))
        else:
            problems.append(
                Problem(check="strays", file=name, message=f"a file of another origin: {name}", warning=True)
            )
    return problems
