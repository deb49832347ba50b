"""What one sample file holds, for a person: ids, mask, and every state's statistics with its histogram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.samplefile import as_kind, load
from probes.stats import describe


def describe_sample(path: str, kind: str, tensors: int | None = None) -> dict[str, Any]:
    """One sample: {"ids": […], "mask": […] or None, "states": [TensorStats, …]}.

    Args:
        path: The file.
        kind: One of `samplefile.KINDS`.
        tensors: States that it has; needed for `specforge` unless they are 4.

    Raises DumpError for a file that is damaged or of another shape.
    """
    held = load(Path(path), as_kind(kind), tensors)
    mask = held.loss_mask
    return {
        "ids": held.input_ids.tolist(),
        "mask": None if mask is None else mask.tolist(),
        "states": [describe(state) for state in held.states],
    }
