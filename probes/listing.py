"""Which dumps a folder holds and what each of them is. No tensor is loaded and no pickle is executed."""

from __future__ import annotations

import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probes.errors import DumpError
from probes.meta import DONE_FILE, META_FILE, Meta, read_meta

OUR_PREFIX = "hs-"  # as in patches.recorder.settings, which this package does not import
HEALTH_PREFIX = "HEALTH_CHECK"
WARM_UP_ROWS = 8  # SGLang's own warm-up prompt is 6 tokens in the Llama family
TAIL_BYTES = 1 << 16
PICKLE_LIMIT = 1 << 20
INT_OPCODES = ("BININT", "BININT1", "BININT2", "LONG1", "INT")

Kind = Literal["ours", "warm-up", "health", "decode", "foreign", "incomplete"]
_UNFINISHED: tuple[Kind, str] = ("incomplete", f"no `{DONE_FILE}` file")


@dataclass(frozen=True)
class DumpEntry:
    """One dump. `tokens` is its number of rows, None when unknown; `note` says why it is of this kind."""

    name: str
    kind: Kind
    request_id: str | None
    tokens: int | None
    note: str


def list_dumps(dump_dir: Path | str, newest: int | None = None) -> list[DumpEntry]:
    """Name the dumps of a folder in the order of their numbers, only the last `newest` if given.

    A folder without `meta.json` comes from some other patch; what it is can only be guessed from the
    number of rows, and `note` then says so. A missing dump folder holds no dumps.
    """
    try:
        with os.scandir(dump_dir) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    folders.sort(key=lambda folder: (_number(folder.name), folder.name))
    if newest is not None:
        folders = folders[max(0, len(folders) - newest) :]
    return [entry for folder in folders if (entry := _entry(folder)) is not None]


def _number(name: str) -> int:
    match = re.fullmatch(r"req_(\d+)(\.whole)?(\.tmp)?", name)
    return int(match[1]) if match else -1


def _entry(folder: Path) -> DumpEntry | None:
    name = folder.name
    if name.endswith(".tmp"):
        return DumpEntry(name, "incomplete", None, None, "being written, or left behind by a killed server")
    try:
        files = set(os.listdir(folder))
    except OSError as error:
        return DumpEntry(name, "incomplete", None, None, f"cannot be read: {error.strerror}")
    tensors = sorted(file for file in files if file.endswith(".pt"))
    if META_FILE not in files:
        if tensors:
            return _without_meta(folder, tensors[0])
        return DumpEntry(name, "incomplete", None, None, "no tensors") if _number(name) >= 0 else None
    try:
        meta = read_meta(folder)
    except DumpError as error:
        return DumpEntry(name, "incomplete", None, None, error.message)
    kind, note = _kind(meta) if DONE_FILE in files else _UNFINISHED
    return DumpEntry(name, kind, meta.request_id, meta.num_tokens, note)


def _kind(meta: Meta) -> tuple[Kind, str]:
    if meta.request_id.startswith(OUR_PREFIX):
        return "ours", f"request id starts with {OUR_PREFIX}"
    if meta.request_id.startswith(HEALTH_PREFIX):
        return "health", f"request id starts with {HEALTH_PREFIX}"
    if "DECODE" in meta.forward_mode:
        return "decode", f"forward mode {meta.forward_mode}"
    if meta.pass_index == 0:
        return "warm-up", "the server's first prefill"
    return "foreign", "somebody else's request"


def _without_meta(folder: Path, file: str) -> DumpEntry:
    shape = peek_shape(folder / file)
    rows = shape[0] if shape and len(shape) == 2 else None
    kind: Kind = "foreign"
    note = f"no {META_FILE}: written by another patch"
    if rows == 1:
        kind, note = "decode", f"no {META_FILE}; one row: probably a decode step or a health probe"
    elif _number(folder.name) == 0 and rows is not None and rows <= WARM_UP_ROWS:
        kind, note = "warm-up", f"no {META_FILE}; first and short: probably the server's warm-up"
    return DumpEntry(folder.name, kind, None, rows, note)


def peek_shape(path: Path) -> tuple[int, ...] | None:
    """The shape of the first tensor in a `.pt` file, or None. The pickle is disassembled, never run."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next(item for item in archive.infolist() if item.filename.endswith("data.pkl"))
            if entry.file_size > PICKLE_LIMIT:
                return None
            return _first_shape(archive.read(entry))
    except Exception:  # any damage that a file can have; zipfile and pickletools raise many kinds
        return None


def _first_shape(pickled: bytes) -> tuple[int, ...] | None:
    """torch pickles a tensor as (storage by BINPERSID, offset, size tuple, stride tuple, …)."""
    numbers: list[int] | None = None
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "BINPERSID":
            numbers = []
        elif numbers is not None and opcode.name in INT_OPCODES:
            numbers.append(int(argument or 0))
        elif numbers is not None and "TUPLE" in opcode.name:
            return tuple(numbers[1:])
    return None


def find_by_request_id(dump_dir: Path | str, request_id: str) -> Path | None:
    """The folder of the newest finished dump of a request, looked up in `index.jsonl`, or None.

    The index is read from its end, so that waiting for a fresh dump stays cheap in a folder of many.
    """
    wanted = request_id.encode()
    for line in _lines_from_end(Path(dump_dir) / "index.jsonl"):
        if wanted not in line:
            continue
        try:
            found = json.loads(line)
            folder = Path(dump_dir) / f"req_{int(found['n'])}"
            if found["request_id"] == request_id and (folder / DONE_FILE).exists():
                return folder
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _lines_from_end(path: Path) -> Iterator[bytes]:
    """Lines of a file from the last to the first; an unfinished last line comes as it is."""
    try:
        with open(path, "rb") as file:
            position, rest = file.seek(0, os.SEEK_END), b""
            while position > 0:
                step = min(TAIL_BYTES, position)
                position = file.seek(position - step)
                first, *lines = (file.read(step) + rest).split(b"\n")
                yield from reversed(lines)
                rest = first
            yield rest
    except OSError:
        return
