"""Shards made by the writer, as jobs on several machines leave them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.unit.extract_support import local_pool, run_record, sample, write_both
from tests.unit.watch_support import make_job, picture
from workbench.extract.job.events import Ended, Told
from workbench.extract.merge import merge
from workbench.extract.record import Format
from workbench.extract.sample import Refused
from workbench.extract.shards import shard_name
from workbench.extract.writer import DatasetWriter

ROWS, OF = 11, 4
REFUSED, BAD = 5, 6
"""Rows without a sample: one that is never sent, one whose dump is no good."""


def write(folder: Path, kind: Format, shard: tuple[int, int] = (0, 1), rows: int = ROWS, **changes: Any) -> Path:
    """The rows of one shard, written and finalised; the job that did it has ended."""
    dumps = (folder.parent if shard == (0, 1) else folder.parent.parent) / f"dumps-{shard[0]}-{shard[1]}"
    with local_pool() as pool:
        writer = DatasetWriter(folder, run_record(kind, rows, shard=shard, **changes), pool)
        for index in writer.record.rows():
            one = sample(index)
            if index == REFUSED:
                writer.refuse(Refused(index, "mask", "nothing is trained on"))
            else:
                wrong = {"token_ids": [1] * len(one.input_ids)} if index == BAD else {}
                writer.write(one, write_both(dumps, one, **wrong))
        writer.finalise()
        writer.close()
    mine = range(shard[0], rows, shard[1])
    make_job(folder, [picture(10.0, 100, rows=len(mine), state="done")], alive=False)
    return folder


def cut(out: Path, kind: Format, of: int = OF, rows: int = ROWS, **changes: Any) -> Path:
    """All shards of a run."""
    for number in range(of):
        write(out / shard_name(number, of), kind, (number, of), rows, **changes)
    return out


def join(out: Path, **options: Any) -> Ended:
    """Merge, in this process; how it ended."""
    with local_pool() as pool:
        *told, end = merge(out, pool=pool, **options)
    assert all(isinstance(event, Told) for event in told)
    assert isinstance(end, Ended)
    return end


def contents(folder: Path) -> dict[str, Any]:
    """Every file that a reader sees: its digest, or its JSON without what tells of times; the index by row."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name.startswith(".hsbench/"):
            continue
        if name == "index.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{**line, "time": 0} for line in sorted(lines, key=lambda line: line["index"])]
            assert lines == sorted(lines, key=lambda line: line["index"])
        elif path.suffix == ".json" and name != "state.json":
            found[name] = json.loads(path.read_text())
        elif path.suffix == ".arrow" or name == "state.json":
            found[name] = "there"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
