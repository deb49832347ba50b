"""The recorder: runs inside SGLang and writes the hidden states of each prefill to disk.

It needs only the standard library and torch, because `hsbench patch apply` copies this package into an
SGLang tree that may live in another interpreter. The codemods call `begin`, then `capture`, `accumulate` or
`entering` for each block, `final_capture` or `final_pair` at the final norm, and `finish`. None of these
raises and none waits for the disk: tensors are copied aside on the engine's thread, everything else happens
on threads of the recorder's own. Without `SGLANG_HS_DUMP_DIR` every call returns at once.

Of the tensor-parallel ranks only rank 0 writes. The others ask the engine for the same states and drop them,
because handing one out can take a collective operation, and in those all ranks must take part alike.

Environment, read at the first forward pass of a process:

======================  ==================================================================================
SGLANG_HS_DUMP_DIR      folder that receives the dumps; unset or empty means off
SGLANG_HS_DUMP_BLOCKS   numbers of the decoder blocks whose outputs are kept, such as ``2,15,27``;
                        default ``2, N//2, N-3`` for N blocks
SGLANG_HS_DUMP_FINAL    ``pre`` (default), ``post`` or ``both``: the last state before or after the final norm
SGLANG_HS_DUMP_ALL      ``1`` records requests of any id, not only those whose id starts with ``hs-``
SGLANG_HS_DUMP_WRITERS  number of writer threads, default 4
SGLANG_HS_DUMP_WAIT_MB  bytes that may wait for the disk before prefill is held back, in MiB, default 4096
SGLANG_HS_DUMP_PLAIN    ``1`` copies and saves inside the forward pass, only to measure what that costs
SGLANG_HS_ROUTE         ``patch`` (default), ``plugin`` or ``builtin``: which copy of the recorder records; a
                        copy that the engine reaches by another route stays off
======================  ==================================================================================

Layout: ``DIR/req_N/`` with one ``.pt`` file a tensor ([tokens, hidden size]), ``meta.json`` and an empty
``done``, built as ``req_N.tmp`` and renamed. ``index.jsonl`` gains a line for each finished dump,
``errors.jsonl`` one for each failure, ``recorder.json`` says what was seen and skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .accumulator import Accumulator
from .passes import Pass, Slot, Span
from .pipeline import Recorder
from .ranks import read_ranks
from .settings import OUR_PREFIX, Settings

logger = logging.getLogger("sglang.hs_recorder")


class _Route(NamedTuple):
    """How the engine reaches this copy of the recorder, and a hash of all that hooks it in."""

    name: str
    patch_hash: str | None


_route: _Route | None = None


def come_by(name: str, patch_hash: str) -> None:
    """Called by the plug-in and by the hooks, before the first forward pass: this copy is theirs."""
    global _route  # noqa: PLW0603 - one route a process
    _route = _Route(name, patch_hash)


def _this_route() -> _Route:
    if _route is not None:
        return _route
    patch_hash = None
    with contextlib.suppress(OSError):
        manifest = Path(__file__).parents[1].joinpath("manifest.json").read_bytes()
        patch_hash = hashlib.sha256(manifest).hexdigest()
    return _Route("patch", patch_hash)


def _engine_facts(route: _Route) -> dict[str, Any]:
    """What every dump states about the engine that wrote it."""
    facts: dict[str, Any] = {"sglang_version": None, "route": route.name, "patch_hash": route.patch_hash}
    with contextlib.suppress(Exception):
        import sglang

        facts["sglang_version"] = sglang.__version__
    return facts


_recorder: Recorder | None = None
_started = False


def _start() -> Recorder | None:
    """Make this process's recorder at its first forward pass, when its ranks are known."""
    global _recorder, _started  # noqa: PLW0603 - one recorder a process
    _started = True
    engine: dict[str, Any] = {}
    settings = None
    route = _this_route()
    if (os.environ.get("SGLANG_HS_ROUTE") or "patch") != route.name:
        return None
    try:
        settings = Settings.from_environment(os.environ)
        if settings is None:
            return None
        ranks = read_ranks()
        if ranks.scattered:
            raise ValueError(f"no rank sees whole states with {', '.join(ranks.scattered)}")
        engine = {"tp_rank": ranks.tp_rank, "tp_size": ranks.tp_size, **_engine_facts(route)}
        _recorder = Recorder(settings, engine, writes=engine["tp_rank"] == 0)
        logger.info("_hs_ recorder on: %s", settings)
    except Exception as error:
        logger.error("_hs_ recorder is off: %s", error)
        if settings is not None and engine.get("tp_size", 1) > 1:
            _recorder = Recorder(settings, engine, writes=False)  # in step with the other ranks
    return _recorder


def begin(model: Any, forward_batch: Any) -> Pass | None:
    """Start of a forward pass over `model`'s blocks. Returns what the other calls take, or None."""
    recorder = _recorder if _started else _start()
    if recorder is None:
        return None
    with recorder.on_engine_thread():
        try:
            return recorder.begin(model, forward_batch)
        except Exception as error:
            ours = [Span(str(rid), 0, 0, 0) for rid in forward_batch.rids or () if str(rid).startswith(OUR_PREFIX)]
            recorder.fail(None, "begin", error, ours)
            return None


def capture(now: Pass | None, block: int, wrapped: Callable[..., None] | None) -> Callable[..., None] | None:
    """The engine's capture callback for the value that enters `block`, with ours added when wanted."""
    if now is None or (slot := now.slots.get(block)) is None:
        return wrapped
    return _callback(now, slot, wrapped)


def accumulate(now: Pass | None, block: int, wrapped: Any) -> Any:
    """The engine's accumulator for the value that enters `block`, with ours around it when wanted."""
    if now is None or (slot := now.slots.get(block)) is None:
        return wrapped
    return Accumulator(wrapped, lambda value: _keep(now, slot, lambda: value))


def entering(now: Pass | None, block: int, hidden: torch.Tensor, residual: torch.Tensor | None) -> None:
    """For loops that carry hidden states and residual apart: record their sum on entering `block`."""
    if now is None or (slot := now.slots.get(block)) is None:
        return
    _keep(now, slot, lambda: _whole(hidden) if residual is None else _whole(hidden) + residual)


def _whole(hidden: torch.Tensor) -> torch.Tensor:
    """With fused all-reduce a block may hand on only its own rank's part of its output, and marks it."""
    if getattr(hidden, "_sglang_needs_allreduce_fusion", False):
        raise ValueError("the block before left a partial sum of this rank: start without fused all-reduce")
    return hidden


def final_capture(now: Pass | None, wrapped: Callable[..., None] | None = None) -> Callable[..., None] | None:
    """The engine's capture callback for the residual stream that goes into the final norm."""
    if now is None or _recorder is None or (slot := _recorder.final_slot(now, "pre")) is None:
        return wrapped
    return _callback(now, slot, wrapped)


def wants_final(now: Pass, norm: str) -> bool:
    """Whether the last state on this side of the final norm, ``pre`` or ``post``, is to be kept."""
    return _recorder is not None and _recorder.final_slot(now, norm) is not None


def final_pair(now: Pass | None, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Record the residual that a fused add-and-norm returned beside its result; hands `pair` back."""
    if now is not None and _recorder is not None and (slot := _recorder.final_slot(now, "pre")) is not None:
        _keep(now, slot, lambda: pair[1])
    return pair


def finish(now: Pass | None, hidden: torch.Tensor) -> None:
    """End of the blocks: `hidden` is the state after the final norm."""
    if now is None or _recorder is None:
        return
    if (slot := _recorder.final_slot(now, "post")) is not None:
        _keep(now, slot, lambda: hidden)
    if now.failed:
        return
    with _recorder.on_engine_thread():
        try:
            _recorder.finish(now)
        except Exception as error:
            _recorder.fail(now, "finish", error)


def refuse(now: Pass | None, where: str, why: Exception) -> None:
    """Give this pass up, for a reason that the caller has seen; it becomes an error of its requests."""
    if now is not None and _recorder is not None:
        _recorder.fail(now, where, why)


def _callback(now: Pass, slot: Slot, wrapped: Callable[..., None] | None) -> Callable[..., None]:
    def both(value: torch.Tensor, **how: Any) -> None:
        if wrapped is not None:
            wrapped(value, **how)
        _keep(now, slot, lambda: value)

    return both


def _keep(now: Pass, slot: Slot, value: Callable[[], torch.Tensor]) -> None:
    if now.failed or _recorder is None or not _recorder.writes:
        return
    with _recorder.on_engine_thread():
        try:
            now.keep(slot, value())
        except Exception as error:
            _recorder.fail(now, f"capture of {slot.name}", error)
