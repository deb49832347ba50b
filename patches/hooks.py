"""The built-in route: SGLang itself captures the states, and two of its `--forward-hooks` hand them to the recorder.

Nothing is edited. `--enable-return-aux-hidden-states` makes the model return what entered the chosen blocks beside
its normed output; the hook on the model takes it from there. The state before the final norm only passes through
the norm, so a second hook keeps what the norm returned until the model returns. SGLang registers hooks after it has
captured its CUDA graphs, so they see eager passes only, which every prefill must be for a dump anyway.

Two things could go wrong in silence, so both are checked in every pass and make it fail in the recorder:

- the engine captures on entering other blocks than asked for, as `--speculative-algorithm` and the model's file
  decide together what a layer id means;
- the norm was not called as a module (a fused all-reduce can do its work): then the model's output is not the very
  tensor that the norm's hook saw last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from patches.identity import source_sha256

if TYPE_CHECKING:
    from torch import Tensor

ROUTE = "builtin"
MODELS = ("model", "language_model.model")
"""Where a served model keeps the module that runs its blocks: itself, or the language model inside it (Kimi)."""


def specs() -> list[dict[str, Any]]:
    """The value of `--forward-hooks`, before it is written as JSON."""
    return [
        {"name": "hsbench_norm", "target_modules": [f"{m}.norm" for m in MODELS], "hook_factory": "patches.hooks:norm"},
        {"name": "hsbench_model", "target_modules": list(MODELS), "hook_factory": "patches.hooks:model"},
    ]


class _Normed(NamedTuple):
    """One call of the final norm: its output, and the residual stream that went into it."""

    output: Tensor
    residual: Tensor


_last: dict[int, _Normed] = {}
"""By `id` of the norm; taken out by the model's hook of the same pass."""

Hook = Callable[[Any, tuple[Any, ...], Any], None]


def norm(config: dict[str, Any]) -> Hook:
    """Factory of the hook on the final norm."""
    return _after_norm


def model(config: dict[str, Any]) -> Hook:
    """Factory of the hook on the module that runs the blocks."""
    from patches import recorder

    recorder.come_by(ROUTE, source_sha256())
    return _after_model


def _after_norm(module: Any, args: tuple[Any, ...], output: Any) -> None:
    """A norm that adds first is given two tensors, and returns the sum beside its result."""
    if isinstance(output, tuple):
        _last[id(module)] = _Normed(output[0], output[1])
    elif len(args) < 2 or args[1] is None:
        _last[id(module)] = _Normed(output, args[0])


def _after_model(module: Any, args: tuple[Any, ...], output: Any) -> None:
    from patches import recorder

    normed = _last.pop(id(module.norm), None)
    batch = next((arg for arg in args if hasattr(arg, "forward_mode")), None)
    if batch is None:
        return
    now = recorder.begin(module, batch)
    if now is None:
        return
    try:
        hidden, aux = _parts(output)
        states = _by_block(module, now.slots, aux)
        residual = _residual(normed, hidden) if recorder.wants_final(now, "pre") else hidden
    except ValueError as error:
        recorder.refuse(now, "built-in route", error)
        return
    for block, state in states:
        recorder.entering(now, block, state, None)
    recorder.final_pair(now, (hidden, residual))
    recorder.finish(now, hidden)


def _parts(output: Any) -> tuple[Tensor, Any]:
    """The normed output and what was captured. Raises ValueError when nothing was captured."""
    if isinstance(output, tuple) and len(output) == 2 and hasattr(output[0], "data_ptr"):
        return output[0], output[1]
    raise ValueError("the model returned no captured states: is --enable-return-aux-hidden-states in force?")


def _by_block(module: Any, wanted: Iterable[int], aux: Any) -> list[tuple[int, Tensor]]:
    """Pairs of the block that a state entered, and the state. SGLang captures in the order of the blocks."""
    entered = getattr(module, "layers_to_capture", None)
    if entered is None:
        raise ValueError(f"{type(module).__name__} does not say on entering which blocks it captures")
    blocks = sorted({int(block) for block in entered})
    if blocks != sorted(wanted):
        raise ValueError(f"the engine captures on entering blocks {blocks}, wanted are {sorted(wanted)}")
    states = list(aux) if isinstance(aux, list) else list(aux.chunk(len(blocks), dim=-1))
    if len(states) != len(blocks):
        raise ValueError(f"the engine captured {len(states)} states for {len(blocks)} blocks")
    return list(zip(blocks, states, strict=True))


def _residual(normed: _Normed | None, hidden: Tensor) -> Tensor:
    """The state before the final norm, if the norm that was seen is the one that made `hidden`."""
    if normed is None or normed.output.data_ptr() != hidden.data_ptr():
        raise ValueError("the final norm was not called as a module, so the state before it was not seen")
    return normed.residual
