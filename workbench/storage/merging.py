"""`--merge URL`: shards at a URL become one data set by an index above them; no sample is moved or written again.

The shards are looked at as folders are (`workbench.extract.merge.check`), through a shadow of them on this disk: their
descriptions and indices, and for every other object an empty file of its size. Then the whole's side files are made,
its description, and last its `index.jsonl`, whose files are ``shard_I-of-N/…``.
"""

import concurrent.futures
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from workbench.errors import CheckFailed, UsageError
from workbench.extract.formats import layout
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job.events import Ended, Told
from workbench.extract.merge.check import Shard, check_files, listed, read_shards
from workbench.extract.merge.move import whole_record
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RECORD_FILE, RunRecord
from workbench.extract.shards import parse
from workbench.extract.writer import finalise
from workbench.render.text import size
from workbench.storage import light
from workbench.storage.address import writable_url
from workbench.storage.errors import called
from workbench.storage.parts import Parts, lines_of
from workbench.storage.remote import RUN_FILE
from workbench.storage.store import Store

AT_ONCE = 8
ARROW_FILES = ["dataset_info.json", "state.json"]


def merge_at(url: str, *, check: bool = False, python: str | None = None) -> Iterator[Told | Ended]:
    """Join the shards at a URL; an `Ended` comes last. Called again, it says that it is done.

    Args:
        url: What --out named.
        check: Read every object and compare its checksum first; else sizes are compared.
        python: Interpreter with torch, for the format with an Arrow data set.

    Raises:
        UsageError: shards are missing, overlap, differ or are not finished; names are told.
        CheckFailed: objects are not as their index says.
        StorageError: the store cannot be reached; nothing is half done by it, the same call does it all.
    """
    store = Store.open(writable_url(url))
    if (data := store.read(INDEX_FILE)) is not None:
        joined = lines_of(data, INDEX_FILE)[0]
        if check:
            _check_sums(store, joined)
        yield _end(store, joined, "nothing to merge: ")
        return
    with tempfile.TemporaryDirectory(prefix="hsbench-merge-") as name:
        shadow = Path(name) / "shards"
        with called(shadow, store.url):
            shards = _checked(store, shadow)
        yield _note(f"{len(shards)} shards, {sum(len(shard.lines) for shard in shards):,} rows")
        if check:
            _check_sums(store, [_placed(shard, line) for shard in shards for line in shard.lines])
        record = whole_record(shards)
        lines = [_placed(shard, line) for shard in shards for line in shard.lines]
        lines.sort(key=lambda line: line.index)
        _side_files(store, Path(name), record, lines, python)
        Parts(store).seal(record, lines, Path(name))
        yield _end(store, lines)


def _checked(store: Store, shadow: Path) -> list[Shard]:
    names = store.names()
    shadow.mkdir()
    for name, nbytes in names.items():
        shard, _, file = name.partition("/")
        if parse(shard) is None or file.startswith("index/"):
            continue
        path = shadow / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file in (RECORD_FILE, INDEX_FILE):
            path.write_bytes(store.read(name) or b"")
        else:
            path.touch()
            os.truncate(path, nbytes)
    begun = [
        name.partition("/")[0] for name in names if name.endswith(f"/{RUN_FILE}") and parse(name.partition("/")[0])
    ]
    open_ones = [shard for shard in begun if f"{shard}/{INDEX_FILE}" not in names]
    for shard in open_ones:
        _as_far_as_it_is(store.below(shard), shadow / shard)
    shards = read_shards(shadow, None)
    if open_ones:
        raise UsageError(
            f"{listed(open_ones)}: all rows are there, but its {INDEX_FILE} is not",
            f"hsbench extract --resume {store.url}/{open_ones[0]}",
        )
    check_files(shadow, shards, begun=False)
    return shards


def _as_far_as_it_is(shard: Store, folder: Path) -> None:
    """The description and the lines of a shard that is not finished, so that what is missing can be told."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD_FILE).write_bytes(shard.read(RUN_FILE) or b"")
    lines = Parts(shard).load()
    (folder / INDEX_FILE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines.values()))


def _placed(shard: Shard, line: IndexLine) -> IndexLine:
    """A line as the whole's index has it."""
    return msgspec.structs.replace(line, file=f"{shard.name}/{line.file}" if line.file else "", again=False)


def _check_sums(store: Store, lines: Sequence[IndexLine]) -> None:
    """Raise CheckFailed when an object is gone or is not what was written; the first few are named."""
    files = [line for line in lines if line.status == "written"]
    sizes = store.names()

    def whole(line: IndexLine) -> bool:
        return sizes.get(line.file) == line.nbytes and store.crc32(line.file, line.nbytes) == line.crc32

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "merge") as threads:
        wrong = [line.file for line, well in zip(files, threads.map(whole, files), strict=True) if not well]
    if wrong:
        raise CheckFailed(
            f"{len(wrong)} objects are not as they were written: {listed(wrong)}",
            "remove them and --resume their shards",
        )


def _side_files(store: Store, folder: Path, record: RunRecord, lines: Sequence[IndexLine], python: str | None) -> None:
    """Make and store what readers want beside samples, as if they lay there unsharded."""
    from workbench.server.engine import find_interpreter

    kind, written = layout(record.format), [line for line in lines if line.status == "written"]
    for line in written:
        (folder / kind.file_of(line.index)).parent.mkdir(parents=True, exist_ok=True)
    files = light.fetch_missing(store, folder, written) if kind.arrow else None
    with WorkerPool(find_interpreter(python) if kind.arrow else "", 1) as pool:
        made = finalise(folder, record, list(lines), pool, files)
    for name in [*made, *(ARROW_FILES if kind.arrow and written else [])]:
        store.put(folder / name, name, replace=True)


def _note(text: str) -> Told:
    return Told(time=time.time(), text=text)


def _end(store: Store, lines: Sequence[IndexLine], before: str = "") -> Ended:
    whole = [line for line in lines if line.status == "written"]
    tokens, nbytes = sum(line.tokens for line in whole), sum(line.nbytes for line in whole)
    text = f"{before}{len(whole):,} samples, {tokens:,} tokens, {size(nbytes)} at {store.url}"
    text += f"; {left} rows without a sample" if (left := len(lines) - len(whole)) else ""
    return Ended(time=time.time(), state="done", message=text, next_step=f"hsbench verify {store.url} --all")
