"""Does the last state lead to the log-probabilities that the server itself gave for the prompt?

The state goes through the final norm and the LM head in float32, which needs two weights and no model, so
it works for models far too big to load. Both sides of the norm are tried: the state as if taken before the
norm, and as if after it. The measure is the mean over tokens of the absolute difference of log-probability,
in nats. On the demo model, a bfloat16 forward pass against its own log-probabilities (which it computes from
bfloat16 logits), eight prompts of 2 to 43 tokens:

================================  =================
state taken as                    mean difference
================================  =================
what it is                        0.010 to 0.038
pre-norm taken as post-norm       195 to 2175
post-norm taken as pre-norm       3.5 to 31
the block before, as pre-norm     0.28 to 4.4
rows shifted by one token         0.81 to 8.9
================================  =================

`MATCH` (0.15) lies between. The other side must be beyond it and `CLEAR` (3) times as far off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from probes.errors import CallError, DumpError, ModelError
from probes.meta import Norm
from probes.weights import read_config, read_weight, weight_files

MATCH = 0.15
CLEAR = 3.0
POSITIONS = 256
"""Positions compared at most: the head costs 2 x hidden size x vocabulary operations for each."""
VOCAB_CHUNK = 8192
PREFIXES = ("", "language_model.", "model.language_model.", "model.")
SCALED = (
    "final_logit_softcapping",
    "logits_scaling",
    "logit_scale",
    "lm_head_multiplier",
    "mup_width_multiplier",
)


@dataclass(frozen=True)
class LogitsCheck:
    """The judgement on one last state.

    `error` and `worst` are the mean and greatest absolute difference of log-probability, in nats, with the
    state on the `claimed` side of the norm, `error_other` the mean on the `other` side. `fits` is the side
    with the lesser error. The verdict is ``ok``, ``wrong norm`` (the other side fits), ``unclear`` (both do),
    ``no match``, or ``nothing to compare`` (a prompt of one token has no log-probability).
    """

    claimed: Norm
    other: Norm
    fits: Norm | None
    error: float | None
    worst: float | None
    worst_token: int | None
    error_other: float | None
    verdict: Literal["ok", "wrong norm", "unclear", "no match", "nothing to compare"]
    compared: int


def check(
    model_path: Path | str,
    final: Tensor,
    norm: Norm,
    token_ids: Sequence[int],
    server_logprobs: Sequence[float | None],
) -> LogitsCheck:
    """Compare the last state of a prompt with the server's log-probabilities.

    Args:
        model_path: A folder with config.json and safetensors; only the final norm and the LM head are read.
        final: The last state, [tokens, hidden size].
        norm: The side of the final norm that it claims to be on.
        token_ids: The prompt.
        server_logprobs: For each token the log-probability that the server gave it after the ones before,
            natural logarithm, None for the first (SGLang: the first of each of
            `meta_info.input_token_logprobs`).

    Raises ModelError, PackageMissing, DumpError for a state of another shape, CallError for a bad list.
    """
    if norm not in ("pre", "post"):
        raise CallError(f"norm is {norm!r}, must be pre or post")
    if len(server_logprobs) != len(token_ids):
        raise CallError(f"{len(server_logprobs)} log-probabilities for {len(token_ids)} tokens")
    head = Head.read(Path(model_path))
    if tuple(final.shape) != (len(token_ids), head.norm.shape[0]):
        raise DumpError(
            f"the last state is {list(final.shape)}, expected [{len(token_ids)}, {head.norm.shape[0]}]",
            "is this the model that the server runs?",
        )
    known = [t for t in range(1, len(token_ids)) if server_logprobs[t] is not None][:POSITIONS]
    if not known:
        return _result(norm, {}, [])
    rows = final[[t - 1 for t in known]].to(torch.float32)
    targets = torch.tensor([token_ids[t] for t in known])
    server = torch.tensor([server_logprobs[t] for t in known], dtype=torch.float32)
    found = head.log_probabilities(torch.cat([head.normed(rows), rows]), targets.repeat(2))
    apart = torch.nan_to_num((found.reshape(2, -1) - server).abs(), nan=math.inf)
    return _result(norm, {"pre": apart[0], "post": apart[1]}, known)


@dataclass(frozen=True)
class Head:
    """Final RMS norm and LM head of a model, as stored: [hidden size] and [vocabulary, hidden size]."""

    norm: Tensor
    weight: Tensor
    epsilon: float

    @classmethod
    def read(cls, folder: Path) -> Head:
        """Read the two weights. Raises ModelError for families whose head does more than multiply."""
        whole = read_config(folder)
        config = whole.get("text_config") or whole
        _refuse_unknown(folder, config)
        tied = config.get("tie_word_embeddings", whole.get("tie_word_embeddings", False))
        heads = [f"{prefix}lm_head.weight" for prefix in PREFIXES]
        embeddings = [f"{prefix}embed_tokens.weight" for prefix in _inside_model()]
        norm = read_weight(folder, [f"{prefix}norm.weight" for prefix in _inside_model()])
        weight = read_weight(folder, embeddings + heads if tied else heads + embeddings)
        if weight.dim() != 2 or norm.shape != weight.shape[1:]:
            raise ModelError(f"{folder}: norm {list(norm.shape)} and LM head {list(weight.shape)} do not fit")
        return cls(norm.to(torch.float32), weight, float(config["rms_norm_eps"]))

    def normed(self, state: Tensor) -> Tensor:
        """Root mean square norm (Zhang and Sennrich, 2019) of float32 rows."""
        scale = torch.rsqrt(state.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return state * scale * self.norm

    def log_probabilities(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of one target token a row; the vocabulary is widened to float32 in parts."""
        if int(targets.min()) < 0 or int(targets.max()) >= self.weight.shape[0]:
            raise ModelError(
                f"token id {int(targets.max())} is outside the LM head's {self.weight.shape[0]} rows",
                "is this the model that the server runs?",
            )
        parts = []
        for start in range(0, self.weight.shape[0], VOCAB_CHUNK):
            part = self.weight[start : start + VOCAB_CHUNK].to(torch.float32)
            parts.append(torch.logsumexp(rows @ part.T, dim=-1))
        chosen = (rows * self.weight[targets].to(torch.float32)).sum(dim=-1)
        return chosen - torch.logsumexp(torch.stack(parts), dim=0)


def _inside_model() -> list[str]:
    return ["model.", "language_model.model.", "model.language_model.", "model.language_model.model."]


def _refuse_unknown(folder: Path, config: dict[str, Any]) -> None:
    family = str(config.get("model_type", ""))
    scaled = [name for name in SCALED if config.get(name) not in (None, 1, 1.0)]
    if "rms_norm_eps" not in config or family.startswith("gemma") or scaled:
        reason = f"scales its logits ({scaled[0]})" if scaled else "has another final norm than x / rms(x) * w"
        raise ModelError(
            f"the log-probability check does not know the head of {family or folder}: it {reason}",
            "check with the float32 reference instead",
        )
    if any(name.endswith("lm_head.bias") for name in weight_files(folder)):
        raise ModelError("the log-probability check does not know an LM head with a bias")


def _result(claimed: Norm, apart: dict[Norm, Tensor], known: list[int]) -> LogitsCheck:
    other: Norm = "post" if claimed == "pre" else "pre"
    if not apart:
        return LogitsCheck(claimed, other, None, None, None, None, None, "nothing to compare", 0)
    error, error_other = float(apart[claimed].mean()), float(apart[other].mean())
    worst = int(apart[claimed].argmax())
    return LogitsCheck(
        claimed=claimed,
        other=other,
        fits=claimed if error <= error_other else other,
        error=error,
        worst=float(apart[claimed][worst]),
        worst_token=known[worst],
        error_other=error_other,
        verdict=_verdict(error, error_other),
        compared=len(known),
    )


def _verdict(error: float, error_other: float) -> Literal["ok", "wrong norm", "unclear", "no match"]:
    least, most = sorted((error, error_other))
    if not least <= MATCH:
        return "no match"
    if most <= MATCH or most < CLEAR * least:
        return "unclear"
    return "ok" if error == least else "wrong norm"
