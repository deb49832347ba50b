"""The recorder: runs inside SGLang and writes the hidden states of each prefill to disk.

It needs only the standard library and torch, because `hsbench patch apply` copies this package into an
SGLang tree that may live in another interpreter. The codemods call `begin`, then `capture` or `entering`
for each block, `final_capture` or `final_pair` at the final norm, and `finish`. None of these raises and
none waits for the disk: tensors are copied aside on the engine's thread, everything else happens on
threads of the recorder's own. Without `SGLANG_HS_DUMP_DIR` every call returns at once.

Environment, read at the first forward pass of a process:

======================  ==================================================================================
SGLANG_HS_DUMP_DIR      folder that receives the dumps; unset or empty means off
SGLANG_HS_DUMP_BLOCKS   numbers of the decoder blocks whose outputs are kept, such as ``2,15,27``;
                        default ``2, N//2, N-3`` for N blocks
SGLANG_HS_DUMP_FINAL    ``pre`` (default), ``post`` or ``both``: the last state before or after the final norm
SGLANG_HS_DUMP_ALL      ``1`` records requests of any id, not only those whose id starts with ``hs-``
SGLANG_HS_DUMP_WRITERS  number of writer threads, default 4
SGLANG_HS_DUMP_WAIT_MB  bytes that may wait for the disk before prefill is held back, in MiB, default 4096
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
from typing import Any

import torch

from .passes import Pass, Slot
from .pipeline import Recorder
from .settings import Settings

logger = logging.getLogger("sglang.hs_recorder")


def _engine_facts() -> dict[str, Any]:
    """Ranks, versions and the patch's hash, as far as this engine tells them."""
    facts: dict[str, Any] = {"tp_rank": 0, "tp_size": 1, "sglang_version": None, "patch_hash": None}
    with contextlib.suppress(Exception):
        from sglang.srt.runtime_context import get_parallel

        facts["tp_rank"], facts["tp_size"] = int(get_parallel().tp_rank), int(get_parallel().tp_size)
    with contextlib.suppress(Exception):
        import sglang

        facts["sglang_version"] = sglang.__version__
    with contextlib.suppress(Exception):
        manifest = Path(__file__).parents[1].joinpath("manifest.json").read_bytes()
        facts["patch_hash"] = hashlib.sha256(manifest).hexdigest()
    return facts


_recorder: Recorder | None = None
_started = False


def _start() -> Recorder | None:
    """Make this process's recorder at its first forward pass; only tensor-parallel rank 0 gets one."""
    global _recorder, _started  # noqa: PLW0603 - one recorder a process, made when its ranks are known
    _started = True
    try:
        settings = Settings.from_environment(os.environ)
        if settings is None:
            return None
        engine = _engine_facts()
        if engine["tp_rank"] == 0:
            _recorder = Recorder(settings, engine)
            logger.info("_hs_ recorder on: %s", settings)
    except Exception as error:
        logger.error("_hs_ recorder is off: %s", error)
    return _recorder


def begin(model: Any, forward_batch: Any) -> Pass | None:
    """Start of a forward pass over `model`'s blocks. Returns what the other calls take, or None."""
    recorder = _recorder if _started else _start()
    if recorder is None:
        return None
    try:
        return recorder.begin(model, forward_batch)
    except Exception as error:
        recorder.fail(None, "begin", error)
        return None


def capture(now: Pass | None, block: int, wrapped: Callable[..., None] | None) -> Callable[..., None] | None:
    """The engine's capture callback for the value that enters `block`, with ours added when wanted."""
    if now is None or now.failed or (slot := now.slots.get(block)) is None:
        return wrapped
    return _callback(now, slot, wrapped)


def entering(now: Pass | None, block: int, hidden: torch.Tensor, residual: torch.Tensor | None) -> None:
    """For loops that carry hidden states and residual apart: record their sum on entering `block`."""
    if now is None or now.failed or (slot := now.slots.get(block)) is None:
        return
    _keep(now, slot, lambda: hidden if residual is None else hidden + residual)


def final_capture(now: Pass | None, wrapped: Callable[..., None] | None = None) -> Callable[..., None] | None:
    """The engine's capture callback for the residual stream that goes into the final norm."""
    if now is None or _recorder is None or (slot := _recorder.final_slot(now, "pre")) is None:
        return wrapped
    return _callback(now, slot, wrapped)


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
    try:
        _recorder.finish(now)
    except Exception as error:
        _recorder.fail(now, "finish", error)


def _callback(now: Pass, slot: Slot, wrapped: Callable[..., None] | None) -> Callable[..., None]:
    def both(value: torch.Tensor, **how: Any) -> None:
        if wrapped is not None:
            wrapped(value, **how)
        _keep(now, slot, lambda: value)

    return both


def _keep(now: Pass, slot: Slot, value: Callable[[], torch.Tensor]) -> None:
    try:
        now.keep(slot, value())
    except Exception as error:
        if _recorder is not None:
            _recorder.fail(now, f"capture of {slot.name}", error)
