"""Statistics of one tensor, exact for 16-bit floats and fast enough for dumps of hundreds of megabytes.

A 16-bit float has 65,536 possible values, so counting how often each bit pattern occurs (one pass, in
integers) gives every statistic of the elements exactly, in float64, with no accumulator that could
overflow or lose small terms. Other dtypes are widened to float64 a chunk at a time and the chunks' means
and sums of squares are merged (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances", 1979). 100 MB of bfloat16 take about 0.1 s on two cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from probes.errors import DumpError

BINS = 24
CHUNK = 1 << 18
"""Elements handled at once: 2 MiB as float64, which stays in a core's cache."""
INNER_SHARE = 0.05
OCTAVES_A_BIN = (1, 2, 4, 8)
LOWEST = -1023
"""Octave of zeros and of float64 subnormals."""


@dataclass(frozen=True)
class TensorStats:
    """Statistics of one tensor.

    NaN and infinities are counted and left out of `min`, `max`, `mean`, `std` and the histogram; without
    a finite element the four are None. `std` is the population's (divided by n). `token_norms` are the L2
    norms of the rows (all but the last dimension flattened; none for fewer than two dimensions); a row
    that holds NaN or infinity has such a norm. See `histogram_edges` about the bins.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    zeros: int
    zero_share: float
    nan: int
    inf: int
    token_norms: tuple[float, ...]
    histogram: tuple[int, ...]
    edges: tuple[float, ...]


def describe(tensor: Tensor) -> TensorStats:
    """Statistics of a real tensor of any shape and dtype, empty ones included."""
    if tensor.is_complex():
        raise DumpError(f"a tensor of {tensor.dtype} has no minimum and no maximum")
    tally = _Tally()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        _count_patterns(tally, tensor)
    else:
        for chunk in _pieces(tensor.reshape(-1), CHUNK):
            tally.add(chunk.to(torch.float64))
    edges, counts = _histogram(tally.octaves, tally.largest())
    return TensorStats(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        bytes=tensor.nbytes,
        min=tally.low if tally.count else None,
        max=tally.high if tally.count else None,
        mean=tally.mean if tally.count else None,
        std=math.sqrt(tally.squares / tally.count) if tally.count else None,
        zeros=tally.zeros,
        zero_share=tally.zeros / max(1, tensor.numel()),
        nan=tally.nan,
        inf=tally.inf,
        token_norms=token_norms(tensor),
        histogram=counts,
        edges=edges,
    )


def token_norms(tensor: Tensor) -> tuple[float, ...]:
    """L2 norm of each row, in float64."""
    if tensor.dim() < 2 or tensor.numel() == 0:
        return ()
    rows = tensor.reshape(-1, tensor.shape[-1])
    step = max(1, 2 * CHUNK // rows.shape[1])
    parts = [torch.linalg.vector_norm(part.to(torch.float64), dim=-1) for part in _pieces(rows, step)]
    return tuple(torch.cat(parts).tolist())


def histogram_edges(top: int, octaves: int) -> tuple[float, ...]:
    """Edges of the 24 symmetric-log bins: 0 and, on each side, 2^top divided by powers of 2^octaves.

    Each side has 12 bins of `octaves` powers of two, of which the innermost reaches down to 0. A bin
    holds its edge of smaller magnitude and not the other; zeros are in the first bin right of 0.
    """
    half = BINS // 2
    right = [_power(top - (half - 1 - i) * octaves) for i in range(half)]
    return (*(-edge for edge in reversed(right)), 0.0, *right)


class _Tally:
    """Running counts and moments of elements, each with a weight."""

    def __init__(self) -> None:
        self.nan = self.inf = self.zeros = self.count = 0
        self.mean = self.squares = 0.0
        self.low, self.high = math.inf, -math.inf
        self.octaves = torch.zeros(4096, dtype=torch.int64)
        """Finite elements by the sign and the exponent of their float64 form."""

    def add(self, values: Tensor, weights: Tensor | None = None) -> None:
        """Add float64 values; `weights` (int64) say how often each occurs, once if not given."""
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            self.nan += _total(torch.isnan(values), weights)
            self.inf += _total(torch.isinf(values), weights)
            values, weights = values[finite], None if weights is None else weights[finite]
        if values.numel() == 0:
            return
        self.zeros += _total(values == 0, weights)
        low, high = torch.aminmax(values)
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self._add_octaves(values, weights)
        self._add_moments(values, weights)

    def _add_octaves(self, values: Tensor, weights: Tensor | None) -> None:
        key = (values + 0.0).view(torch.int64).bitwise_right_shift(52).bitwise_and_(0xFFF)  # -0 + 0 is +0
        counts = torch.bincount(key, None if weights is None else weights.double(), minlength=4096)
        self.octaves += counts.to(torch.int64)

    def _add_moments(self, values: Tensor, weights: Tensor | None) -> None:
        many = values.numel() if weights is None else int(weights.sum())
        mean = float((values if weights is None else values * weights).sum()) / many
        apart = (values - mean).square_()
        squares = float((apart if weights is None else apart * weights).sum())
        delta, total = mean - self.mean, self.count + many
        self.squares += squares + delta * delta * self.count * many / total
        self.mean += delta * many / total
        self.count = total

    def largest(self) -> float:
        return max(abs(self.low), abs(self.high)) if self.count else 0.0


def _pieces(tensor: Tensor, size: int) -> Iterator[Tensor]:
    return (tensor[start : start + size] for start in range(0, tensor.shape[0], size))


def _total(hits: Tensor, weights: Tensor | None) -> int:
    return int(hits.sum() if weights is None else weights[hits].sum())


def _count_patterns(tally: _Tally, tensor: Tensor) -> None:
    """Add a tensor of 16-bit floats through the number of times that each bit pattern occurs."""
    counts = torch.zeros(1 << 16, dtype=torch.int64)
    for chunk in _pieces(tensor.reshape(-1).view(torch.int16), CHUNK):
        pattern = chunk.to(torch.int32).bitwise_and_(0xFFFF)
        counts += torch.bincount(pattern, minlength=1 << 16)
    present = counts.nonzero().reshape(-1)
    values = present.to(torch.int16).view(tensor.dtype).to(torch.float64)
    tally.add(values, counts[present])


def _histogram(by_exponent: Tensor, largest: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts, in the finest bins that keep the nonzero elements out of the innermost two."""
    top = math.frexp(largest)[1] if largest else 0
    magnitudes = by_exponent[:2048] + by_exponent[2048:]
    nonzero = int(magnitudes.sum() - magnitudes[0])
    octaves = OCTAVES_A_BIN[-1]
    for octaves in OCTAVES_A_BIN:
        border = top - (BINS // 2 - 1) * octaves - LOWEST
        if int(magnitudes[1 : max(1, border)].sum()) <= INNER_SHARE * nonzero:
            break
    right = _side(by_exponent[:2048], top, octaves)
    left = _side(by_exponent[2048:], top, octaves)
    return histogram_edges(top, octaves), (*reversed(left), *right)


def _side(by_exponent: Tensor, top: int, octaves: int) -> list[int]:
    """Counts of one sign's bins from the innermost to the outermost."""
    half, found = BINS // 2, [0] * (BINS // 2)
    for key in by_exponent.nonzero().reshape(-1).tolist():
        bin_from_top = (top - 1 - (key + LOWEST)) // octaves
        found[max(0, half - 1 - bin_from_top)] += int(by_exponent[key])
    return found


def _power(exponent: int) -> float:
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf
