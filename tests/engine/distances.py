"""How far two runs' states are apart."""

from collections.abc import Iterator
from pathlib import Path

import torch


def distances(rows: int, one: Path, other: Path) -> Iterator[float]:
    """Of every row, the greatest mean per-token relative distance of a state; ids and masks must be equal."""
    for index in range(rows):
        a, b = (torch.load(out / f"rows_0-2000/data_{index}.pt", weights_only=True) for out in (one, other))
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert torch.equal(a["loss_mask"], b["loss_mask"])
        pairs = zip(a["hidden_states"], b["hidden_states"], strict=True)
        yield max(float(((x.float() - y.float()).norm(dim=1) / x.float().norm(dim=1)).mean()) for x, y in pairs)
