"""Runs the `forward` of a model class from an SGLang source file, with stand-ins for everything around it.

The stand-ins are arithmetic: block k adds 2**k to the residual stream, which starts at 1000, and the final norm
changes its sign. So every value tells where it was taken.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

from patches.recorder.accumulator import Accumulator

BLOCKS = 4


class Log(list[Any]):
    """A stand-in for the recorder that writes down what it is given."""

    def begin(self, _model: Any, batch: Any) -> str:
        self.append(("begin", batch.name))
        return "pass"

    def capture(self, now: str, block: int, wrapped: Any) -> Any:
        return self._callback((now, block), wrapped)

    def accumulate(self, now: str, block: int, wrapped: Any) -> Any:
        return Accumulator(wrapped, lambda value: self.append((now, block, number(value))))

    def final_capture(self, now: str, wrapped: Any = None) -> Any:
        return self._callback((now, "final"), wrapped)

    def _callback(self, what: tuple[Any, ...], wrapped: Any) -> Any:
        def both(value: torch.Tensor) -> None:
            self.append((*what, number(value)))
            if wrapped is not None:
                wrapped(value)

        return both

    def entering(self, now: str, block: int, hidden: torch.Tensor, residual: torch.Tensor | None) -> None:
        self.append((now, block, number(hidden if residual is None else hidden + residual)))

    def final_pair(self, now: str, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        self.append((now, "final", number(pair[1])))
        return pair

    def finish(self, now: str, hidden: torch.Tensor) -> None:
        self.append((now, "finish", number(hidden)))


def number(value: torch.Tensor) -> int:
    return int(value[0, 0])


class AuxList(list[torch.Tensor]):
    capture = list.append


class Packer(AuxList):
    """0.5.17 and later, DeepSeek: knows how many captures must come."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected

    def finalize(self) -> list[torch.Tensor]:
        assert len(self) == self.expected
        return list(self)


class Names(dict[str, Any]):
    """The module's globals: whatever is not named here is a mock."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return MagicMock(name=name)


class Layer:
    """A block, in the way of any release: with the residual apart, or with one stream."""

    def __init__(self, block: int, apart: bool, topk: bool) -> None:
        self.block, self.apart, self.topk = block, apart, topk
        self._is_layer_to_capture = block == 2

    def __call__(
        self,
        _positions: Any,
        hidden: torch.Tensor,
        _batch: Any,
        *more: Any,
        capture_output: Any = None,
        captured_last_layer_outputs: Any = None,
        **_others: Any,
    ) -> Any:
        residual = more[0] if self.apart else None
        stream = hidden if residual is None else hidden + residual
        if capture_output is not None:
            capture_output(stream)
        if captured_last_layer_outputs is not None:
            accumulator = captured_last_layer_outputs
            getattr(accumulator, "append" if self.apart else "capture")(stream)
        added = torch.full_like(stream, 2**self.block)
        result = (added, stream) if self.apart else (stream + added,)
        whole = (*result, None) if self.topk else result
        return whole if len(whole) > 1 else whole[0]


def _final_norm(
    hidden: torch.Tensor, _batch: Any, _norm: Any, capture: Any = None, capture_output: Any = None, **_: Any
) -> torch.Tensor:
    for callback in (capture, capture_output):
        if callback is not None:
            callback(hidden)
    return -hidden


def _names(log: Log) -> Names:
    no = dict.fromkeys(
        (
            "is_prefill_context_parallel_enabled",
            "is_cp_v2_active",
            "dsa_use_prefill_cp",
            "mla_use_prefill_cp",
            "nsa_use_prefill_cp",
        ),
        lambda *_: False,
    )
    return Names(
        **no,
        __builtins__=builtins,
        _hs_recorder=log,
        torch=torch,
        nullcontext=contextlib.nullcontext,
        AuxHiddenStateList=AuxList,
        AuxHiddenStatePacker=Packer,
        snapshot=lambda hidden, residual: hidden + residual,
        finish_layer_stack=lambda hidden, residual, _batch: (hidden, residual),
        residual_batch=SimpleNamespace(
            start=lambda _batch: None,
            complete_output=lambda hidden, _batch: hidden,
            final_norm=_final_norm,
            norm=_final_norm,
        ),
    )


def run_forward(source: bytes, model: str, log: Log, captured: tuple[int, ...] = (2,)) -> Any:
    """The result of `model.forward` of this source; `captured` is what the engine itself wants captured."""
    (found,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == model]
    (forward,) = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    text = ast.unparse(forward)
    names = _names(log)
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module([forward], []), "forward", "exec", flags, dont_inherit=True), names)
    apart, topk = "hidden_states, residual" in text and "residual_batch" not in text, "topk_indices" in text
    layers = [Layer(block, apart, topk) for block in range(BLOCKS)]
    for layer in layers:
        layer._is_layer_to_capture = layer.block in captured
    this = SimpleNamespace(
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True),
        embed_tokens=lambda _ids: torch.full((2, 3), 1000.0),
        layers=layers,
        start_layer=0,
        end_layer=BLOCKS,
        first_k_dense_replace=1,
        layers_to_capture=list(captured),
        norm=lambda hidden, residual: (-hidden - residual, hidden + residual),
        config=MagicMock(),
        use_dsa=False,
        _dsa_forward_uses_topk=lambda: False,
        dsa_enable_prefill_cp=False,
        mla_enable_prefill_cp=False,
        llama_4_scaling_config=None,
        next_full_attention_layer_id={},
    )
    mode = MagicMock(is_idle=lambda: False)
    batch = SimpleNamespace(name="batch", can_run_tbo=False, forward_mode=mode, attn_cp_metadata=None)
    result = names["forward"](this, None, torch.zeros(2), batch)
    if isinstance(result, tuple):
        return number(result[0]), [number(value) for value in result[1]]
    return number(result)
