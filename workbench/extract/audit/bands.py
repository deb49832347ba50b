"""Which samples are unlike the others, judged by the run itself.

Huge ranges in middle blocks are normal, so nothing is judged against fixed bounds. For each state the median over all
samples of the logarithm of `row_norm`, and the median distance from it, make a band. A sample is out of it when it is
further than `WIDTHS` such distances away and more than a factor of `FACTOR`: a state from the other side of the
final norm, one of another model, or two states of a sample swapped. One block too many or too few changes the size
of a state by less; only a server or the reference tell that.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.extract.audit.report import Problem

WIDTHS = 10.0
FACTOR = 2.0
ENOUGH_SAMPLES = 8
ENOUGH_TOKENS = 8
"""Shorter samples are not judged: the median of few rows is anything."""


def judge(
    facts: Mapping[int, Sequence[Mapping[str, Any]]], files: Mapping[int, str]
) -> tuple[list[Problem], list[dict[str, Any]]]:
    """Problems, and for each state the run's medians.

    Args:
        facts: For each row the facts of its states in order, as `probes.quick.Facts` has them.
        files: For each row its file.
    """
    count = max((len(states) for states in facts.values()), default=0)
    problems, medians = [], []
    for place in range(count):
        name = "last state" if place == count - 1 else f"aux {place}"
        sizes = {row: size for row, states in facts.items() if (size := _size(states, place)) is not None}
        stds = [float(states[place]["std"]) for states in facts.values() if place < len(states)]
        middle = statistics.median(sizes.values()) if sizes else None
        std = statistics.median(stds) if stds else None
        medians.append({"name": name, "row_norm": None if middle is None else math.exp(middle), "std": std})
        if middle is not None and len(sizes) >= ENOUGH_SAMPLES:
            problems += _outside(name, sizes, middle, files)
    return problems, medians


def _size(states: Sequence[Mapping[str, Any]], place: int) -> float | None:
    if place >= len(states) or states[place]["rows"] < ENOUGH_TOKENS or not states[place]["row_norm"]:
        return None
    return math.log(states[place]["row_norm"])


def _outside(name: str, sizes: Mapping[int, float], middle: float, files: Mapping[int, str]) -> list[Problem]:
    distance = statistics.median(abs(size - middle) for size in sizes.values())
    band = max(WIDTHS * distance, math.log(FACTOR))
    return [
        Problem(
            check="statistics",
            index=row,
            file=files.get(row, ""),
            message=f"{name} has rows of size {math.exp(size):.3g}, the run's median is {math.exp(middle):.3g}",
        )
        for row, size in sizes.items()
        if abs(size - middle) > band
    ]
