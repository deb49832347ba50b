"""How many tokens a run has left: of all rows, or from enough of them to say how sure that is."""

import math
from collections.abc import Sequence

import msgspec

from workbench.extract.dataset import Dataset, Tally
from workbench.extract.sample import Refused, Sample

LOOK_AT = 512
"""Rows at most; a stride through the data set, since sources are often sorted."""
Z95 = 1.96


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of `rows` rows, refused ones counting nothing.

    The interval is mean ± 1.96 standard errors, with the correction for a finite population (Cochran, "Sampling
    Techniques", 2.8); it has no width when all rows were looked at.
    """

    rows: int
    looked_at: int
    tokens: float
    tokens_low: float
    longest: int
    shortest: Sample | None
    """The shortest sample that was seen; None when there was none."""


def estimate(data: Dataset, rows: Sequence[int], *, check: bool = True) -> Estimate:
    """Look at up to `LOOK_AT` rows, spread evenly.

    Raises:
        CheckFailed: with `check`, too many of them are refused.
    """
    count = min(LOOK_AT, len(rows))
    lengths: list[int] = []
    shortest: Sample | None = None
    for row in data.samples(rows[number * len(rows) // count] for number in range(count)):
        if isinstance(row, Refused):
            lengths.append(0)
            continue
        if shortest is None or len(row.input_ids) < len(shortest.input_ids):
            shortest = row
        lengths.append(len(row.input_ids))
    if check:
        data.tally.check()
    data.tally = Tally()
    return from_lengths(len(rows), lengths, shortest)


def from_lengths(rows: int, lengths: Sequence[int], shortest: Sample | None) -> Estimate:
    """The estimate for `rows` rows of which these lengths were seen."""
    seen = len(lengths)
    mean = sum(lengths) / max(1, seen)
    half = 0.0
    if 1 < seen < rows:
        variance = sum((length - mean) ** 2 for length in lengths) / (seen - 1)
        half = Z95 * math.sqrt(variance / seen * (1 - seen / rows))
    return Estimate(
        rows=rows,
        looked_at=seen,
        tokens=mean * rows,
        tokens_low=max(0.0, mean - half) * rows,
        longest=max(lengths, default=0),
        shortest=shortest,
    )
