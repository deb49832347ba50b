"""The three kinds of sample file, written and read. Reading executes no pickle.

===============  ======================  ==============================================================================
kind             name                    contents
===============  ======================  ==============================================================================
speculators-v1   data_N.pt               `input_ids` [L], `hidden_states` a list of [L, H] (aux, then the last state),
                                         `loss_mask` [L]; read by `speculators.train.data` 0.3 to 0.7
speculators      hs_N.safetensors        `token_ids` [L], `hidden_states` [L, K, H]; `loss_mask` [L] is ours, so that a
                                         file needs no other to be understood; read by speculators 0.5 and later
specforge        data_N.ckpt             `input_ids` [L], `loss_mask` [L], `aux_hidden_state` [1, L, 3H], `hidden_state`
                                         [1, L, H]; read by SpecForge's offline reader
===============  ======================  ==============================================================================

The last state is before the final norm in the first two and after it in the third. Ids and masks are int64. The bytes
depend on the contents alone, so runs that were cut into shards and runs that were not can be compared by checksums.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast, get_args

import torch
from torch import Tensor

from probes.dumps import load_file
from probes.errors import CallError, DumpError, PackageMissing, one_line
from probes.meta import Norm

Kind = Literal["speculators-v1", "speculators", "specforge"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FINAL_NORM: dict[Kind, Norm] = {"speculators-v1": "pre", "speculators": "pre", "specforge": "post"}


@dataclass(frozen=True)
class SampleFile:
    """One sample: ids and mask [L], and the states [L, H] in order, the last one last."""

    input_ids: Tensor
    loss_mask: Tensor | None
    states: tuple[Tensor, ...]


def as_kind(name: str) -> Kind:
    """The kind of that name. Raises CallError for another."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise CallError(f"unknown format {name!r}; known are {', '.join(KINDS)}")


def save(path: Path, kind: Kind, ids: Tensor, mask: Tensor, states: Sequence[Tensor]) -> None:
    """Write one sample. Each tensor is stored by itself: torch.save would write the whole storage behind a view."""
    if kind == "speculators":
        held = {"token_ids": ids, "hidden_states": torch.stack(tuple(states), dim=1), "loss_mask": mask}
        _safetensors().save_file(held, path)
        return
    if kind == "speculators-v1":
        whole: dict[str, Any] = {"input_ids": ids, "hidden_states": [_own(s) for s in states], "loss_mask": mask}
    else:
        aux = torch.cat(tuple(states[:-1]), dim=-1).unsqueeze(0)
        whole = {"input_ids": ids, "loss_mask": mask, "aux_hidden_state": aux, "hidden_state": _own(states[-1])[None]}
    _torch_save(whole, path)


class _Target:
    """A file that is being written, as torch.save takes one.

    It has no name: torch.save to a path stores the path's stem in the archive. It is unbuffered, since a tensor comes
    as one write. An error is kept until the archive is closed, because torch would make another one of it.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: memoryview | bytes) -> int:
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing waits here."""


def _torch_save(whole: dict[str, Any], path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        target = _Target(file.fileno())
        torch.save(whole, cast(IO[bytes], target))
        if target.error is not None:
            raise target.error


def _own(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()
    return tensor if whole else tensor.contiguous().clone()


def load(path: Path, kind: Kind, tensors: int | None = None) -> SampleFile:
    """Read one sample, its tensors mapped from the file.

    Args:
        path: The file.
        kind: What it is.
        tensors: Number of states, needed to take `specforge`'s side-by-side tensor apart; else 4.

    Raises DumpError with one line for a file that is damaged or of another shape.
    """
    held = _load_safetensors(path) if kind == "speculators" else load_file(path)
    if not isinstance(held, dict):
        raise DumpError(f"{path} holds a {type(held).__name__}, not a sample")
    try:
        return _take_apart(held, kind, (tensors or 4) - 1)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        keys = ", ".join(sorted(map(str, held)))
        raise DumpError(f"{path} is not a {kind} sample: {type(error).__name__}: {error} (it holds {keys})") from None


def _take_apart(held: dict[str, Any], kind: Kind, aux: int) -> SampleFile:
    ids = _vector(held["token_ids" if kind == "speculators" else "input_ids"], "ids")
    mask = _vector(held["loss_mask"], "loss_mask") if kind != "speculators" or "loss_mask" in held else None
    if kind == "speculators-v1":
        states = tuple(held["hidden_states"])
        if not isinstance(held["hidden_states"], list) or not all(isinstance(s, Tensor) for s in states):
            raise TypeError("hidden_states is not a list of tensors")
    elif kind == "speculators":
        states = held["hidden_states"].unbind(dim=1)
    else:
        side_by_side, last = held["aux_hidden_state"], held["hidden_state"]
        if side_by_side.dim() != 3 or last.dim() != 3 or side_by_side.shape[0] != 1 or last.shape[0] != 1:
            raise ValueError(f"shapes {list(side_by_side.shape)} and {list(last.shape)}, expected [1, L, …]")
        if side_by_side.shape[-1] != aux * last.shape[-1]:
            raise ValueError(f"aux_hidden_state is {side_by_side.shape[-1]} wide, expected {aux} x {last.shape[-1]}")
        states = (*side_by_side[0].split(last.shape[-1], dim=-1), last[0])
    if not states or any(state.dim() != 2 or not state.is_floating_point() for state in states):
        raise ValueError(f"hidden states of shapes {[list(state.shape) for state in states]}")
    return SampleFile(ids, mask, states)


def _vector(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() != 1:
        raise ValueError(f"{name} is not a vector")
    return value


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    library = _safetensors()
    try:
        held: dict[str, Tensor] = library.load_file(path)
    except FileNotFoundError:
        raise DumpError(f"{path} does not exist") from None
    except Exception as error:  # SafetensorError, OSError, and ValueError of damaged headers
        raise DumpError(f"{path} cannot be read: {type(error).__name__}: {one_line(str(error), 200)}") from None
    return held


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise PackageMissing(f"this format needs safetensors: {error}", "install it beside the engine") from None
    return safetensors.torch
