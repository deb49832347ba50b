"""A dump folder seen from outside: its highest `req_N`, and the bytes that wait in it."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from workbench.extract.record import RECORD_FILE
from workbench.extract.watch.counting import BOUND, Counted, numbered

TAIL = 1 << 16
"""Bytes of the recorder's index that are read."""
WEIGHED = 4
"""Dumps whose files are measured."""
BESIDE = 64
"""Folders looked into when a dump folder is searched."""


class Dumps(NamedTuple):
    """One look at a dump folder. None is what cannot be known."""

    highest: int | None
    waiting: int
    """Dumps that are there."""
    waiting_bytes: int | None
    exact: bool
    """Whether `waiting` is a count; else it is a lower bound."""


def look(folder: Path) -> Dumps:
    """Count without listing more than a bounded part. The highest N is the recorder's own where it keeps an index."""
    seen = numbered(str(folder), "req_")
    told = _from_index(folder)
    highest = max(seen.highest, told)
    waiting, exact = _waiting(folder, seen)
    mean = _mean(seen)
    nbytes = 0 if waiting == 0 else None if mean is None else round(waiting * mean)
    return Dumps(highest if highest >= 0 else None, waiting, nbytes, exact)


def find(folder: Path) -> Path | None:
    """A dump folder in `folder` or beside it, the last changed one of several."""
    found = [one for parent in (folder, folder.parent) for one in _folders(parent) if one != folder and is_dumps(one)]
    return max(found, key=_changed, default=None)


def is_dumps(folder: Path) -> bool:
    """Whether a recorder writes there: by its status file, or by entries named `req_N`."""
    if os.path.exists(folder / RECORD_FILE):  # a data set, which has an index too
        return False
    if os.path.exists(folder / "recorder.json"):
        return True
    return bool(numbered(str(folder), "req_", bound=BESIDE).total) or _from_index(folder) >= 0


def _folders(parent: Path) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for place, entry in enumerate(entries):
            if place >= BOUND or len(found) >= BESIDE:
                break
            if entry.is_dir() and not re.match(r"rows_\d|\.", entry.name):
                found.append(Path(entry.path))
    return found


def _changed(folder: Path) -> float:
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return 0.0


def _from_index(folder: Path) -> int:
    """The highest N in the last lines of the recorder's index; -1 without one."""
    data = b""
    with contextlib.suppress(OSError), open(folder / "index.jsonl", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        data = file.read(TAIL)
    return max((_number(line) for line in data.splitlines()), default=-1)


def _number(line: bytes) -> int:
    try:
        entry: Any = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return -1  # the first line is cut, and so may be the last
    number = entry.get("n") if isinstance(entry, dict) else None
    return number if isinstance(number, int) else -1


def _waiting(folder: Path, seen: Counted) -> tuple[int, bool]:
    """How many dumps are there. Most file systems count a folder's folders in its link count, beside 2 of its own."""
    if seen.exact:
        return seen.total, True
    with contextlib.suppress(OSError):
        links = os.stat(folder).st_nlink
        if links > 2:
            return links - 2, True
    return min(seen.total, BOUND), False


def _mean(seen: Counted) -> float | None:
    """Mean size of the newest dumps; None without any."""
    sizes = [size for path in seen.newest[: 2 * WEIGHED] if (size := _weigh(path))][:WEIGHED]
    return sum(sizes) / len(sizes) if sizes else None


def _weigh(dump: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(dump) as entries:
        for place, entry in enumerate(entries):
            if place >= BOUND:
                break
            total += entry.stat().st_size
    return total
