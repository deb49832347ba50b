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

CHUNK = 1 << 18
"""Elements widened to float32 at once: 1 MiB, which stays in a core's cache."""
TINY, HUGE = 1e-15, 1e18
"""Row norms between these are exact enough in float32: no square of theirs under- or overflows."""


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
    """Every finite element is the same, or every row is."""
    low: float
    high: float
    std: float
    row_norm: float | None


def facts(tensor: Tensor) -> Facts:
    """Look at a tensor of any float dtype. NaN and infinities are counted and left out of the rest."""
    rows, width = tensor.shape
    norms, total, low, high = [torch.empty(0, dtype=torch.float64)], 0.0, math.inf, -math.inf
    step = max(1, CHUNK // max(1, width))
    for start in range(0, rows, step):
        part = tensor[start : start + step].to(torch.float32)
        sizes = _row_norms(part)
        norms.append(sizes)
        if not bool(torch.isfinite(sizes).all()):
            part = part[torch.isfinite(sizes)]
        if part.numel():
            least, most = torch.aminmax(part)
            low, high = min(low, float(least)), max(high, float(most))
            total += float(part.sum(dim=-1).sum(dtype=torch.float64))
    return _facts(tensor, torch.cat(norms), low, high, total)


def _row_norms(part: Tensor) -> Tensor:
    """L2 norms as float64. Rows whose squares leave the range of float32 are done again in float64."""
    norms: Tensor = torch.linalg.vector_norm(part, dim=-1).to(torch.float64)
    odd = ~((norms > TINY) & (norms < HUGE))
    if bool(odd.any()):
        norms[odd] = torch.linalg.vector_norm(part[odd], dim=-1, dtype=torch.float64)
    return norms


def _facts(tensor: Tensor, norms: Tensor, low: float, high: float, total: float) -> Facts:
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
        constant=low == high or _repeated(tensor, norms),
        low=low if kept.numel() else 0.0,
        high=high if kept.numel() else 0.0,
        std=math.sqrt(max(0.0, variance)),
        row_norm=float(typical.median()) if kept.numel() else None,
    )


def _repeated(tensor: Tensor, norms: Tensor) -> bool:
    """One row over and over: a buffer that was never overwritten."""
    if tensor.shape[0] < 2 or not bool((norms == norms[0]).all()):
        return False
    return bool((tensor == tensor[:1]).all())


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
