"""One forward pass while it is being recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch


class Span(NamedTuple):
    """The rows of one request inside the flattened batch of one EXTEND pass.

    `chunk` counts a prompt's passes from 0; None when the `prefix_len` tokens before these rows were not recorded.
    """

    request_id: str
    start: int
    length: int
    prefix_len: int
    chunk: int | None = 0


class Chunks:
    """Remembers how far each of the latest requests was recorded, to tell a next chunk from a prefix hit."""

    def __init__(self, remembered: int = 4096) -> None:
        self._remembered = remembered
        self._until: dict[str, tuple[int, int]] = {}

    def number(self, request_id: str, length: int, prefix_len: int) -> int | None:
        """The number of the chunk of `length` tokens that comes after `prefix_len` others. Call it once a pass."""
        until, last = self._until.pop(request_id, (0, -1))
        if prefix_len == 0:
            until, last = 0, -1
        if prefix_len != until:
            return None
        self._until[request_id] = (until + length, last + 1)
        if len(self._until) > self._remembered:
            del self._until[next(iter(self._until))]
        return last + 1


class Slot(NamedTuple):
    """What one recorded tensor is."""

    name: str
    after_block: int
    captured_entering: int | None
    norm: str | None


class Pass:
    """One EXTEND pass that holds at least one request to record."""

    def __init__(self, index: int, spans: list[Span], rows: int, requests: int, num_blocks: int) -> None:
        self.index = index
        self.spans = spans
        self.rows = rows
        self.requests = requests
        self.num_blocks = num_blocks
        self.slots: dict[int, Slot] = {}  # by the block that the value enters
        self.tensors: dict[str, tuple[Slot, torch.Tensor]] = {}
        self.token_ids: torch.Tensor | None = None
        self.model_class = ""
        self.failed = False

    def keep(self, slot: Slot, value: torch.Tensor) -> None:
        """Copy the wanted rows of `value` ([rows, hidden size]), whose storage the engine will reuse."""
        if value.dim() != 2 or value.shape[0] < self.rows:
            raise ValueError(f"{slot.name}: shape {tuple(value.shape)}, expected at least {self.rows} rows")
        self.tensors[slot.name] = (slot, self._rows_of(value))

    def keep_token_ids(self, token_ids: torch.Tensor) -> None:
        self.token_ids = self._rows_of(token_ids)

    def _rows_of(self, value: torch.Tensor) -> torch.Tensor:
        parts = [value.detach()[a:b] for a, b in self._runs()]
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)

    def _runs(self) -> list[tuple[int, int]]:
        """Neighbouring spans joined, so that a batch of our own requests is one copy."""
        runs: list[tuple[int, int]] = []
        for span in self.spans:
            if runs and runs[-1][1] == span.start:
                runs[-1] = (runs[-1][0], span.start + span.length)
            else:
                runs.append((span.start, span.start + span.length))
        return runs


def packed(now: Pass) -> Iterable[tuple[Span, int]]:
    """Each span with its first row in the copied tensors, where only wanted rows stand."""
    row = 0
    for span in now.spans:
        yield span, row
        row += span.length
