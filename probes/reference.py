"""Is each captured tensor what it claims to be? Judged against a float32 forward pass with transformers.

The measure is the mean over tokens, without the first, of ||x_t - r_t|| / ||r_t|| (`measure.mean_error`).
The bounds below come from the demo model (30 blocks, hidden size 576), a bfloat16 forward pass against a
float32 one, every block, prompts of 2, 8 and 40 tokens:

========================  =================  ================  =================
mean error against        2 tokens           8 tokens          40 tokens
========================  =================  ================  =================
the block itself          0.004 to 0.015     0.005 to 0.015    0.004 to 0.013
the block before          0.13 to 1.0        0.18 to 1.3       0.21 to 0.98
the block after           0.13 to 0.64       0.18 to 0.65      0.20 to 0.60
the other side of norm    0.97 to 14         0.98 to 18        0.98 to 19
nearest other / itself    at least 14        at least 16       at least 19
========================  =================  ================  =================

`MATCH` (0.05) leaves three times the greatest error of a right capture, for deeper models and other
kernels, and is less than half of the least distance of a wrong one. `CLEAR` (2) asks that the nearest other
state be twice as far away: where blocks hardly differ (random weights) a small error proves nothing, and
the verdict is ``unclear``. A prompt under `WEAK_TOKENS` leaves so few tokens to average over that one odd
token decides; its verdict is marked weak.

Where a router chooses experts, two right computations differ by more: a near tie falls one way in bfloat16 and the
other in float32, and that token goes its own way from there on. On an H200 a DeepSeek-V3 shape with random weights
(8 blocks, 4 of 16 experts, 48 and 333 tokens) gave mean errors of 0.011 at block 1, 0.027 to 0.047 at block 4, 0.069
to 0.103 at blocks 6 and 7, against 0.41 and more for any other state, and the same engine on one and on two GPUs
differed by 0.06 to 0.08 itself. So for routed models `MATCH` bounds the median token, which such ties leave alone, and
`ROUTED` (0.25) the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from probes.errors import DumpError
from probes.measure import mean_error, median_error
from probes.meta import Meta
from probes.model import ReferenceModel, States, load_model

MATCH = 0.05
CLEAR = 2.0
ROUTED = 0.25
WEAK_TOKENS = 8
EMBEDDINGS = -1
"""Stands for the state that enters block 0, where a block's number is expected."""

Verdict = Literal["ok", "wrong block", "wrong norm", "unclear", "no match", "unclaimed"]
Candidate = tuple[int, str | None]
"""A state of the model: block number and side of the norm (only the last block has one)."""


@dataclass(frozen=True)
class TensorCheck:
    """The judgement on one tensor.

    Attributes:
        claimed: The block that the tensor claims to follow, None without a claim.
        claimed_norm: For the last state the claimed side of the final norm, ``pre`` or ``post``.
        error: Mean error against the claimed state.
        error_median: Error of the median token against the best state.
        error_before: The same against the block before (-1, the embeddings, before block 0).
        error_after: The same against the block after, None for the last.
        error_other_norm: For the last state, the error against the other side of the norm.
        best_block: The block of the state with the least error, -1 for the embeddings.
        best_norm: ``pre`` or ``post`` when that is the last block's, else None.
        best: The same in words; ``none`` when every error is infinite (NaN or infinity in the tensor).
        best_error: Its error.
        next_error: The least error among all other states.
        verdict: ``ok``; ``wrong block`` or ``wrong norm`` (another state fits); ``unclear`` (others fit
            nearly as well); ``no match`` (none fits); ``unclaimed`` (a state fits, but there was no claim).
        weak: The prompt is too short for the verdict to be relied on.
    """

    name: str
    claimed: int | None
    claimed_norm: str | None
    error: float | None
    error_median: float
    error_before: float | None
    error_after: float | None
    error_other_norm: float | None
    best_block: int
    best_norm: str | None
    best: str
    best_error: float
    next_error: float
    verdict: Verdict
    weak: bool
    num_tokens: int


def reference(
    model_path: Path | str,
    token_ids: Sequence[int],
    tensors: Mapping[str, Tensor],
    meta: Meta | None,
    *,
    device: str = "cpu",
    available: int | None = None,
) -> list[TensorCheck]:
    """Load the model in float32, run the prompt and judge every tensor of its dump.

    Args:
        model_path: A folder with config.json and unquantised safetensors.
        token_ids: The whole prompt.
        tensors: The captured tensors, each [tokens, hidden size].
        meta: What they claim; None for a dump without claims, whose states are then only named.
        device: ``cpu`` or ``cuda``.
        available: Bytes of memory that may be used; by default what is free.

    Raises ModelError, MemoryShort, PackageMissing, or DumpError when the dump does not fit the prompt.
    """
    check_prompt(token_ids, tensors, meta)
    return reference_with(load_model(model_path, device, available), token_ids, tensors, meta)


def reference_with(
    model: ReferenceModel, token_ids: Sequence[int], tensors: Mapping[str, Tensor], meta: Meta | None
) -> list[TensorCheck]:
    """`reference` with a model that is already loaded."""
    check_prompt(token_ids, tensors, meta)
    return judge(model.states(token_ids), tensors, meta)


def check_prompt(token_ids: Sequence[int], tensors: Mapping[str, Tensor], meta: Meta | None) -> None:
    """Raise DumpError unless the tensors can be this whole prompt's."""
    if meta is not None and meta.prefix_len:
        raise DumpError(
            f"the first {meta.prefix_len} tokens came from the server's cache and have no states in the dump",
            "start the server with --disable-radix-cache --chunked-prefill-size -1",
        )
    if meta is not None and tuple(token_ids) != meta.token_ids:
        raise DumpError("the dump is of another prompt: its token ids differ")
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.shape[0] != len(token_ids):
            raise DumpError(f"{name} holds {list(tensor.shape)} for a prompt of {len(token_ids)} tokens")


def judge(states: States, tensors: Mapping[str, Tensor], meta: Meta | None) -> list[TensorCheck]:
    """Judge every tensor against every state of the reference."""
    candidates = _candidates(states)
    if meta is not None and meta.num_blocks != len(states.blocks):
        raise DumpError(
            f"the dump is of a model of {meta.num_blocks} blocks, the reference has {len(states.blocks)}",
            "is this the model that the server runs?",
        )
    checks = []
    for name, tensor in tensors.items():
        if tensor.shape != states.pre.shape:
            raise DumpError(f"{name} is {list(tensor.shape)}, the reference's states are {list(states.pre.shape)}")
        claim = meta.tensors.get(name) if meta is not None else None
        claimed = _candidate(claim.after_block, claim.norm, len(states.blocks)) if claim else None
        errors = {candidate: mean_error(tensor, state) for candidate, state in candidates.items()}
        best = min(errors, key=errors.__getitem__)
        typical = median_error(tensor, candidates[best])
        checks.append(_check(name, claimed, errors, typical, tensor.shape[0], routed=states.routed))
    return checks


def _candidates(states: States) -> dict[Candidate, Tensor]:
    last = len(states.blocks) - 1
    found: dict[Candidate, Tensor] = {(EMBEDDINGS, None): states.embeddings}
    found |= {(block, None): state for block, state in enumerate(states.blocks[:-1])}
    found[last, "pre"] = states.pre
    found[last, "post"] = states.post
    return found


def _candidate(block: int, norm: str | None, count: int) -> Candidate:
    return (block, norm or "pre") if block == count - 1 else (block, None)


def _check(
    name: str,
    claimed: Candidate | None,
    errors: dict[Candidate, float],
    typical: float,
    tokens: int,
    *,
    routed: bool,
) -> TensorCheck:
    best, following = sorted(errors, key=errors.__getitem__)[:2]
    last = max(block for block, _ in errors)

    def of(block: int, norm: str | None = None) -> float | None:
        return errors.get(_candidate(block, norm, last + 1))

    block, norm = claimed or (None, None)
    other = {"pre": "post", "post": "pre"}.get(norm or "")
    return TensorCheck(
        name=name,
        claimed=block,
        claimed_norm=norm,
        error=None if block is None else of(block, norm),
        error_median=typical,
        error_before=None if block is None else of(block - 1),
        error_after=None if block is None else of(block + 1),
        error_other_norm=None if block is None or other is None else of(block, other),
        best_block=best[0],
        best_norm=best[1],
        best=_words(best) if math.isfinite(errors[best]) else "none",
        best_error=errors[best],
        next_error=errors[following],
        verdict=_verdict(claimed, best, errors[best], errors[following], typical if routed else None),
        weak=tokens < WEAK_TOKENS,
        num_tokens=tokens,
    )


def _verdict(
    claimed: Candidate | None, best: Candidate, error: float, following: float, typical: float | None
) -> Verdict:
    """`typical` is the median token's error for a routed model, None for any other."""
    matches = error <= MATCH if typical is None else typical <= MATCH and error <= ROUTED
    if not math.isfinite(error) or not matches:
        return "no match"
    if following < CLEAR * error:
        return "unclear"
    if claimed is None:
        return "unclaimed"
    if claimed == best:
        return "ok"
    return "wrong norm" if claimed[0] == best[0] else "wrong block"


def _words(candidate: Candidate) -> str:
    block, norm = candidate
    if norm == "post":
        return "after the final norm"
    return "embeddings" if block == EMBEDDINGS else f"block {block}"
