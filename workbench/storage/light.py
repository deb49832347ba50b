"""The ids and mask of a stored sample, kept without its states, for the Arrow data set that is written at the end.

A safetensors file is eight bytes with the length of its header, little-endian, a JSON header with the type, shape and
place of each tensor, and the tensors' bytes (the format's own description, huggingface/safetensors, README). So two
tensors of it are a few ranges, of a file here or of an object there.
"""

import concurrent.futures
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.errors import CheckFailed
from workbench.extract.durable import replace_bytes
from workbench.extract.index import IndexLine
from workbench.extract.job.files import FOLDER as JOB_FOLDER
from workbench.storage.store import Store

FOLDER = f"{JOB_FOLDER}/light"
KEPT = ("token_ids", "loss_mask")
LONGEST_HEADER = 1 << 20
AT_ONCE = 16
Slice = Callable[[int, int], bytes]
"""Bytes from one place up to another."""


def light_name(index: int) -> str:
    """Where a row's is, below the staging folder."""
    return f"{FOLDER}/{index}.safetensors"


def light_bytes(read: Slice) -> bytes:
    """A file with the kept tensors only.

    Raises:
        CheckFailed: it is not such a file, or lacks one of them.
    """
    try:
        (length,) = struct.unpack("<Q", read(0, 8))
        if length > LONGEST_HEADER:
            raise ValueError(f"a header of {length} B")
        header = json.loads(read(8, 8 + length))
        made, blobs, place = {}, [], 0
        for name in KEPT:
            begin, end = header[name]["data_offsets"]
            blobs.append(read(8 + length + begin, 8 + length + end))
            made[name] = {**header[name], "data_offsets": [place, place + end - begin]}
            place += end - begin
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckFailed(f"a stored sample lacks ids or mask: {error}", "hsbench verify URL --all") from None
    text = json.dumps(made).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def keep_light(folder: Path, line: IndexLine, path: Path) -> None:
    """Keep a row's ids and mask when its file is about to be freed."""

    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return file.read(end - start)

    target = folder / light_name(line.index)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "rb") as file:
        replace_bytes(target, light_bytes(read))


def fetch_missing(store: Store, folder: Path, lines: Sequence[IndexLine]) -> dict[str, str]:
    """Get what other machines' starts kept from the stored samples; the place of each row's, by row number."""
    missing = [line for line in lines if not (folder / light_name(line.index)).exists()]
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def fetch(line: IndexLine) -> None:
        data = light_bytes(lambda start, end: store.slice(line.file, start, end))
        replace_bytes(folder / light_name(line.index), data)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE, "light") as threads:
        list(threads.map(fetch, missing))
    return {str(line.index): light_name(line.index) for line in lines}
