"""The measure of all comparisons: relative error a token."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def token_errors(found: Tensor, expected: Tensor) -> Tensor:
    """||x_t - r_t|| / ||r_t|| for each token t of two [tokens, hidden size] tensors, in float32.

    A token whose error is not a number (NaN or infinity in either) counts as infinitely wrong.
    """
    found, expected = found.to(expected.device, torch.float32), expected.to(torch.float32)
    apart = torch.linalg.vector_norm(found - expected, dim=-1)
    size = torch.linalg.vector_norm(expected, dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.nan_to_num(apart / size, nan=math.inf, posinf=math.inf)


def mean_error(found: Tensor, expected: Tensor) -> float:
    """Mean of `token_errors`, without the first token when there are more.

    The first token is an attention sink: from an early block on its activations are a hundred times larger
    than all others and nearly the same in every block, so its error says nothing about the block. A norm
    over the whole tensor is this token's error alone. Tensors of unequal shape are infinitely apart.
    """
    if found.shape != expected.shape or found.shape[0] == 0:
        return math.inf
    errors = token_errors(found, expected)
    return float((errors[1:] if len(errors) > 1 else errors).mean())


def median_error(found: Tensor, expected: Tensor) -> float:
    """Median of `token_errors`, without the first token when there are more; see `mean_error`."""
    if found.shape != expected.shape or found.shape[0] == 0:
        return math.inf
    errors = token_errors(found, expected)
    return float((errors[1:] if len(errors) > 1 else errors).median())
