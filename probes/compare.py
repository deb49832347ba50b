"""Two captures of the same prompts, alone and in one batch: is every request given its own rows?

The measure is `measure.mean_error`, and beside it the error of the worst token, so that one wrong row among
many does not drown. A batch is computed with other matrix shapes than a prompt alone, so equal bits are not
to be expected: seven prompts of 2 to 105 tokens on the demo model in bfloat16, transformers, padded batch
against solo, every block, gave mean errors of 0 to 0.025 and 0.08 for the worst token. Rows of
another prompt are 0.04 (two of ten tokens differ) to about 1 away, and a single wrong row about 1. `MATCH`
and `WORST` lie between; `CLEAR` asks that the best other prompt be twice as far away as the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probes.errors import CallError
from probes.measure import mean_error, token_errors

MATCH = 0.05
WORST = 0.3
CLEAR = 2.0


@dataclass(frozen=True)
class RequestCheck:
    """The judgement on one request of a batch.

    Attributes:
        request: Its number, counted from 0 in the order given.
        num_tokens: Rows of its batch dump.
        error: Mean error against its own solo dump, the greatest of its tensors; None when the two cannot
            be compared (other length, width or names).
        worst_error: The greatest error of one token, and `worst_token` and `worst_tensor` say where.
        best: The request whose solo dump the rows fit best, None when none has their shape.
        best_error: The mean error against that one.
        bit_equal: Every tensor equals the solo dump's bit for bit.
        verdict: ``ok``, ``swapped`` (the rows are another request's), ``no match``, or ``unclear``
            (another prompt fits as well, as equal prompts do).
        summary: The verdict in words.
    """

    request: int
    num_tokens: int
    error: float | None
    worst_error: float | None
    worst_token: int | None
    worst_tensor: str | None
    best: int | None
    best_error: float | None
    bit_equal: bool
    verdict: Literal["ok", "swapped", "no match", "unclear"]
    summary: str


def compare(solo: Sequence[Mapping[str, Tensor]], batch: Sequence[Mapping[str, Tensor]]) -> list[RequestCheck]:
    """Compare the dump of each request in a batch with all dumps of the prompts sent alone.

    Args:
        solo: For each prompt the tensors captured when it was sent alone.
        batch: The tensors captured when all were sent together, in the same order.

    Raises CallError when the two lists differ in length or are empty.
    """
    if len(solo) != len(batch) or not solo:
        raise CallError(f"{len(solo)} solo dumps against {len(batch)} batch dumps")
    return [_check(number, found, solo) for number, found in enumerate(batch)]


def _check(number: int, found: Mapping[str, Tensor], solo: Sequence[Mapping[str, Tensor]]) -> RequestCheck:
    own = solo[number]
    errors = {other: error for other, dump in enumerate(solo) if (error := _distance(found, dump)) is not None}
    ranked = sorted(errors, key=lambda other: (errors[other], other != number))
    best = ranked[0] if ranked else None
    worst, tensor, token = _worst(found, own) if number in errors else (None, None, None)
    verdict, summary = _verdict(number, ranked, errors, worst)
    if verdict == "no match" and tensor is not None:
        summary += f"; token {token} of {tensor} is {worst:.3g} off"
    return RequestCheck(
        request=number,
        num_tokens=next((int(value.shape[0]) for value in found.values()), 0),
        error=errors.get(number),
        worst_error=worst,
        worst_token=token,
        worst_tensor=tensor,
        best=best,
        best_error=None if best is None else errors[best],
        bit_equal=number in errors and all(_same_bits(value, own[name]) for name, value in found.items()),
        verdict=verdict,
        summary=summary,
    )


def _distance(found: Mapping[str, Tensor], dump: Mapping[str, Tensor]) -> float | None:
    """The greatest mean error of any tensor; None when names or shapes differ."""
    if not found or found.keys() != dump.keys():
        return None
    if any(value.dim() != 2 or value.shape != dump[name].shape for name, value in found.items()):
        return None
    return max(mean_error(value, dump[name]) for name, value in found.items())


def _worst(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[float, str, int]:
    """Error, tensor and number of the token that is furthest from where it should be."""
    worst = (-1.0, "", 0)
    for name, value in found.items():
        errors = token_errors(value, own[name])
        token = int(errors.argmax()) if len(errors) else 0
        if len(errors) and float(errors[token]) > worst[0]:
            worst = (float(errors[token]), name, token)
    return worst


def _verdict(
    number: int, ranked: list[int], errors: dict[int, float], worst: float | None
) -> tuple[Literal["ok", "swapped", "no match", "unclear"], str]:
    if not ranked or not errors[ranked[0]] <= MATCH:
        return "no match", f"request {number} holds rows that fit none of the prompts"
    best, error = ranked[0], errors[ranked[0]]
    following = errors[ranked[1]] if len(ranked) > 1 else math.inf
    if len(ranked) > 1 and following <= MATCH and following < CLEAR * error:
        return "unclear", f"request {number} fits the prompts {best} and {ranked[1]} nearly as well"
    if best != number:
        return "swapped", f"request {number} holds the rows of request {best}"
    if worst is not None and worst > WORST:
        return "no match", f"request {number} holds its own rows but for some"
    return "ok", f"request {number} holds its own rows"


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = [value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)]
    return torch.equal(raw[0], raw[1])
