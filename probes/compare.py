"""Two captures of the same prompts, alone and in one batch: is every request given its own rows?

The measure is `measure.mean_error`, and beside it the error of the worst token, so that one wrong row among
many does not drown. A batch is computed with other matrix shapes than a prompt alone, so equal bits are not
to be expected: seven prompts of 2 to 105 tokens on the demo model in bfloat16, transformers, padded batch
against solo, every block, gave mean errors of 0 to 0.025 and 0.08 for the worst token. Rows of
another prompt are 0.04 (two of ten tokens differ) to about 1 away, and a single wrong row about 1. `MATCH`
and `WORST` lie between; `CLEAR` asks that the best other prompt be twice as far away as the best one.

Where a router chooses experts, a near tie may fall the other way in the other shape and send that token elsewhere for
the rest of the network: on a DeepSeek-V3 shape with random weights, whose scores all but tie, prompts of 7 to 333
tokens were 0.02 to 0.09 from themselves, the median token 0.009 to 0.042, single tokens up to 0.73. For routed models
`MATCH` bounds the median token, `reference.ROUTED` the mean, and `WORST_ROUTED` the worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probes.errors import CallError
from probes.measure import mean_error, median_error, token_errors
from probes.reference import ROUTED

MATCH = 0.05
WORST = 0.3
WORST_ROUTED = 0.9
CLEAR = 2.0


@dataclass(frozen=True)
class RequestCheck:
    """The judgement on one request of a batch.

    Attributes:
        request: Its number, counted from 0 in the order given.
        num_tokens: Rows of its batch dump.
        error: Mean error against its own solo dump, the greatest of its tensors; None when the two cannot
            be compared (other length, width or names).
        median_error: Error of the median token against its own solo dump, the greatest of its tensors.
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
    median_error: float | None
    worst_error: float | None
    worst_token: int | None
    worst_tensor: str | None
    best: int | None
    best_error: float | None
    bit_equal: bool
    verdict: Literal["ok", "swapped", "no match", "unclear"]
    summary: str


@dataclass(frozen=True)
class Bounds:
    """Errors that a match stays within: of the mean, the median and the worst token."""

    mean: float
    median: float
    worst: float


DENSE_BOUNDS = Bounds(MATCH, math.inf, WORST)
ROUTED_BOUNDS = Bounds(ROUTED, MATCH, WORST_ROUTED)


def compare(
    solo: Sequence[Mapping[str, Tensor]], batch: Sequence[Mapping[str, Tensor]], *, routed: bool = False
) -> list[RequestCheck]:
    """Compare the dump of each request in a batch with all dumps of the prompts sent alone.

    Args:
        solo: For each prompt the tensors captured when it was sent alone.
        batch: The tensors captured when all were sent together, in the same order.
        routed: Whether a router chooses experts in this model.

    Raises CallError when the two lists differ in length or are empty.
    """
    if len(solo) != len(batch) or not solo:
        raise CallError(f"{len(solo)} solo dumps against {len(batch)} batch dumps")
    bounds = ROUTED_BOUNDS if routed else DENSE_BOUNDS
    return [_check(number, found, solo, bounds) for number, found in enumerate(batch)]


def _check(
    number: int, found: Mapping[str, Tensor], solo: Sequence[Mapping[str, Tensor]], bounds: Bounds
) -> RequestCheck:
    own = solo[number]
    errors = {other: error for other, dump in enumerate(solo) if (error := _distance(found, dump)) is not None}
    ranked = sorted(errors, key=lambda other: (errors[other], other != number))
    best = ranked[0] if ranked else None
    worst, tensor, token = _worst(found, own) if number in errors else (None, None, None)
    median = _distance(found, own, median_error)
    verdict, summary = _verdict(number, ranked, errors, (median, worst), bounds)
    if verdict == "no match" and tensor is not None:
        summary += f"; token {token} of {tensor} is {worst:.3g} off"
    return RequestCheck(
        request=number,
        num_tokens=next((int(value.shape[0]) for value in found.values()), 0),
        error=errors.get(number),
        median_error=median,
        worst_error=worst,
        worst_token=token,
        worst_tensor=tensor,
        best=best,
        best_error=None if best is None else errors[best],
        bit_equal=number in errors and all(_same_bits(value, own[name]) for name, value in found.items()),
        verdict=verdict,
        summary=summary,
    )


def _distance(
    found: Mapping[str, Tensor], dump: Mapping[str, Tensor], error: Callable[[Tensor, Tensor], float] = mean_error
) -> float | None:
    """The greatest error of any tensor; None when names or shapes differ."""
    if not found or found.keys() != dump.keys():
        return None
    if any(value.dim() != 2 or value.shape != dump[name].shape for name, value in found.items()):
        return None
    return max(error(value, dump[name]) for name, value in found.items())


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
    number: int,
    ranked: list[int],
    errors: dict[int, float],
    own: tuple[float | None, float | None],
    bounds: Bounds,
) -> tuple[Literal["ok", "swapped", "no match", "unclear"], str]:
    """`own` are the errors of the median and of the worst token against the request's own solo dump."""
    if not ranked or not errors[ranked[0]] <= bounds.mean:
        return "no match", f"request {number} holds rows that fit none of the prompts"
    best, error = ranked[0], errors[ranked[0]]
    following = errors[ranked[1]] if len(ranked) > 1 else math.inf
    if len(ranked) > 1 and following <= bounds.mean and following < CLEAR * error:
        return "unclear", f"request {number} fits the prompts {best} and {ranked[1]} nearly as well"
    if best != number:
        return "swapped", f"request {number} holds the rows of request {best}"
    if any(
        error is not None and error > bound for error, bound in zip(own, (bounds.median, bounds.worst), strict=True)
    ):
        return "no match", f"request {number} holds its own rows but for some"
    return "ok", f"request {number} holds its own rows"


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = [value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)]
    return torch.equal(raw[0], raw[1])
