"""How many numbered entries a folder has, at a cost that does not grow with their number.

A folder is listed up to a bound. When it has more entries than that, the highest number is searched by asking for
names: in steps that double, then by halves.
"""

import heapq
import os
import re
from typing import NamedTuple

BOUND = 4096
"""Entries listed at most: two full `rows_` folders."""
NEWEST = 32
"""Files whose size and time stand for all."""
HOLES = 8
"""A search goes on over so many missing numbers less one: samples do not come in order, and some never do."""


class Counted(NamedTuple):
    """What is known of the entries `<prefix>N<suffix>` of one folder."""

    total: int
    highest: int
    """-1 without any."""
    newest: tuple[str, ...] = ()
    """Paths of the entries with the highest numbers, `NEWEST` at most; of an inexact count some may not exist."""
    oldest: str = ""
    """Path of the entry with the lowest number known."""
    exact: bool = True


def numbered(folder: str, prefix: str, suffixes: tuple[str, ...] = ("",), bound: int = BOUND) -> Counted:
    """Count the entries named `<prefix>N` and one of the suffixes. A folder that cannot be read has none."""
    seen, suffix, whole = _scan(folder, prefix, suffixes, bound)
    if whole:
        names = [_name(folder, prefix, number, suffix) for number in heapq.nlargest(NEWEST, seen)]
        oldest = _name(folder, prefix, min(seen), suffix) if seen else ""
        return Counted(len(seen), max(seen, default=-1), tuple(names), oldest)
    begins_at_0 = _near(folder, prefix, suffix, 0)
    if not seen and not begins_at_0:
        return Counted(0, -1, exact=False)
    lowest = 0 if begins_at_0 else min(seen)
    highest = _highest(folder, prefix, suffix, max(seen, default=0))
    newest = range(highest, max(lowest, highest - NEWEST + 1) - 1, -1)
    return Counted(
        highest - lowest + 1,
        highest,
        tuple(_name(folder, prefix, number, suffix) for number in newest),
        _name(folder, prefix, lowest, suffix),
        exact=False,
    )


def _scan(folder: str, prefix: str, suffixes: tuple[str, ...], bound: int) -> tuple[list[int], str, bool]:
    """The numbers in the first `bound` entries, the suffix they have, and whether those were all entries."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)({'|'.join(map(re.escape, suffixes))})")
    seen: list[int] = []
    suffix = suffixes[0]
    try:
        with os.scandir(folder) as entries:
            for place, entry in enumerate(entries):
                if place >= bound:
                    return seen, suffix, False
                if match := pattern.fullmatch(entry.name):
                    seen.append(int(match[1]))
                    suffix = match[2]
    except OSError:
        pass
    return seen, suffix, True


def _name(folder: str, prefix: str, number: int, suffix: str) -> str:
    return os.path.join(folder, f"{prefix}{number}{suffix}")


def _near(folder: str, prefix: str, suffix: str, number: int) -> bool:
    """Whether `number` or one of the few after it is there."""
    return any(os.path.exists(_name(folder, prefix, number + more, suffix)) for more in range(HOLES))


def _highest(folder: str, prefix: str, suffix: str, low: int) -> int:
    """The highest number there, from `low` on."""
    step = 1
    while _near(folder, prefix, suffix, low + step):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if _near(folder, prefix, suffix, middle):
            low = middle
        else:
            high = middle
    return low  # near `low` is one, near `low + 1` none: it is there itself
