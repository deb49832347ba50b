"""The folders of a run's shards, ``OUT/shard_I-of-N``, by their names."""

import contextlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"shard_(0|[1-9]\d*)-of-([1-9]\d*)")


def shard_name(number: int, of: int) -> str:
    """Name of the folder of shard `number` of `of`, counted from 0."""
    return f"shard_{number}-of-{of}"


def parse(name: str) -> tuple[int, int] | None:
    """(I, N) of a folder's name, None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return int(match[1]), int(match[2])


def shard_folders(folder: Path) -> list[Path]:
    """Folders of shards in `folder`, by N and then by I; none where it cannot be read."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            numbers = parse(entry.name)
            if numbers is not None and entry.is_dir():
                found.append((numbers[::-1], Path(entry.path)))
    return [path for _, path in sorted(found)]
