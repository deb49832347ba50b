"""The few facts of a tensor that decide whether a sample is sound, in one pass over its rows.

`stats.describe` is exact and has a histogram; this is for every tensor of a terabyte. The typical size of a state is
`row_norm`, the median L2 norm of the rows without the first: the first token is an attention sink, a hundred times
larger than the rest, so a mean or standard deviation would say more about the prompt's length than about the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 20
"""Elements widened to float32 at once: 4 MiB."""


@dataclass(frozen=True)
class Facts:
    """Facts of one [rows, width] tensor. `std` is the population's; `row_norm` None when no row is finite."""

    rows: int
    width: int
    dtype: str
    bad_rows: int
    """Rows that hold NaN or an infinity."""
    first_bad: int | None
    zero_rows: int
    constant: bool
    """Every element is the same, or every row is."""
    low: float
    high: float
    std: float
    row_norm: float | None


def facts(tensor: Tensor) -> Facts:
    """Look at a tensor of any float dtype. NaN and infinities are counted and left out of the rest."""
    rows, width = tensor.shape
    norms, lows, highs, total = [], [], [], 0.0
    step = max(1, CHUNK // max(1, width))
    for start in range(0, rows, step):
        part = tensor[start : start + step].to(torch.float32)
        low, high = torch.aminmax(part, dim=-1)
        norms.append(torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64))
        lows.append(low)
        highs.append(high)
        total += float(torch.nan_to_num(part.sum(dim=-1, dtype=torch.float64), posinf=0.0, neginf=0.0).sum())
    return _facts(tensor, _joined(norms), _joined(lows), _joined(highs), total)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0)


def _facts(tensor: Tensor, norms: Tensor, low: Tensor, high: Tensor, total: float) -> Facts:
    good = torch.isfinite(norms)
    bad = (~good).nonzero().reshape(-1)
    kept = norms[good]
    count = max(1, kept.numel() * tensor.shape[1])
    variance = float(kept.square().sum()) / count - (total / count) ** 2
    typical = kept[1:] if kept.numel() > 1 else kept
    return Facts(
        rows=tensor.shape[0],
        width=tensor.shape[1],
        dtype=str(tensor.dtype).removeprefix("torch."),
        bad_rows=bad.numel(),
        first_bad=int(bad[0]) if bad.numel() else None,
        zero_rows=int((kept == 0).sum()),
        constant=_constant(tensor, low, high),
        low=float(low[good].min()) if kept.numel() else 0.0,
        high=float(high[good].max()) if kept.numel() else 0.0,
        std=math.sqrt(max(0.0, variance)),
        row_norm=float(typical.median()) if kept.numel() else None,
    )


def _constant(tensor: Tensor, low: Tensor, high: Tensor) -> bool:
    """One value everywhere, or one row repeated (a buffer that was never overwritten)."""
    if tensor.numel() < 2 or not bool((low == low[0]).all()) or not bool((high == high[0]).all()):
        return False
    return bool(low[0] == high[0]) or (tensor.shape[0] > 1 and bool((tensor == tensor[:1]).all()))


def complaint(name: str, found: Facts) -> str:
    """What is wrong with a tensor whatever it claims to be; empty when nothing is."""
    if found.rows == 0:
        return f"{name} has no rows"
    if found.bad_rows:
        return f"{name}: {found.bad_rows} of {found.rows} rows hold NaN or Inf, the first is row {found.first_bad}"
    if found.zero_rows == found.rows:
        return f"{name} is all zero"
    if found.zero_rows:
        return f"{name}: {found.zero_rows} of {found.rows} rows are all zero"
    return f"{name} is constant" if found.constant else ""
