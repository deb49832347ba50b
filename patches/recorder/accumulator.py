"""Standing in for the accumulator that DeepSeek and Qwen MoE blocks hand their captured states to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Accumulator:
    """Gives every value to `keep`, and passes everything on to the engine's own accumulator.

    Args:
        wrapped: A list (until 0.5.20), or an object with `capture`; None when the engine wants nothing here.
            It never learns of us, so that the model returns what it would have returned.
        keep: Must copy what it keeps: the value's storage stays the engine's.
    """

    def __init__(self, wrapped: Any, keep: Callable[[torch.Tensor], None]) -> None:
        self._wrapped = wrapped
        self._keep = keep

    def append(self, value: torch.Tensor) -> None:
        if self._wrapped is not None:
            self._wrapped.append(value)
        self._keep(value)

    def capture(self, value: torch.Tensor, **how: Any) -> None:
        if self._wrapped is not None:
            self._wrapped.capture(value, **how)
        self._keep(value)

    def __len__(self) -> int:
        return 0 if self._wrapped is None else len(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)
