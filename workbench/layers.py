"""What a list of layer ids means: which blocks' outputs, by the convention of whoever wrote the ids.

Every convention is a rule from ids to boundaries. Boundary b is the residual stream that enters block b, so it is
the output of block b-1; boundary 0 are the embeddings, boundary N what enters the final norm. The rules:

====================  ====================================================  ================================
convention            id k is boundary                                      without ids, for N blocks
====================  ====================================================  ================================
``eagle3``            k+1; k in deepseek_v2 unless the first id is 1;       boundaries 2, N//2, N-3
                      k in gpt_oss if the largest id is N
``specforge``         as ``eagle3``, through whose setter the ids go        ids 1, N//2-1, N-4
``dflash``            k+1                                                   there is no default
``vllm``              k                                                     ids 2, N//2, N-3
``speculators``       k, as its launcher hands the ids to vLLM              ids 2, N//2, N-3, N
``speculators-v0.4``  k+1, as the generators of v0.3 and v0.4 did           ids 2, N//2, N-3, N-1
``after-block``       k+1: hsbench's own, the numbers of the blocks         ids 2, N//2, N-3
====================  ====================================================  ================================

`eagle3` and `dflash` are the functions `set_eagle3_layers_to_capture` and `set_dflash_layers_to_capture` of SGLang's
model files, 0.5.15.post1 to 0.5.23; the tests run those functions themselves. The gpt_oss rule came with 0.5.17.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from workbench.errors import UsageError

FAMILY_OF = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GptOssForCausalLM": "gpt_oss",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v2",
    "DeepseekV32ForCausalLM": "deepseek_v2",
    "KimiK25ForConditionalGeneration": "deepseek_v2",
    "Glm4MoeForCausalLM": "glm4_moe",
}
"""Architecture of a `config.json` → the family whose file in SGLang holds the rule."""

WITHOUT_DFLASH = frozenset({"qwen2", "glm4_moe"})
"""Families whose file has no `set_dflash_layers_to_capture`."""

CONVENTIONS = ("eagle3", "dflash", "speculators", "speculators-v0.4", "vllm", "specforge", "after-block")
IN_SGLANG = frozenset({"eagle3", "dflash", "specforge"})
"""Conventions whose ids SGLang turns into capture points by the rule of the model's family."""

FINAL = {
    "eagle3": "after the final norm",
    "dflash": "after the final norm",
    "specforge": "after the final norm",
    "vllm": "before the final norm, if N is among the ids; else there is none",
    "speculators": "before the final norm",
    "speculators-v0.4": "before the final norm",
    "after-block": "before the final norm, unless --final says otherwise",
}
"""On which side of the final norm each convention takes the last state."""


class State(msgspec.Struct, frozen=True):
    """One captured state.

    `id` is None for a default that SGLang does not express in ids. `after_block` is -1 for the embeddings.
    `entering` is the boundary; the number of blocks stands for the final norm.
    """

    id: int | None
    after_block: int
    entering: int


class Reading(msgspec.Struct, frozen=True):
    """What the ids mean. `elsewhere` says which blocks each other convention would take for the same ids."""

    convention: str
    family: str | None
    num_blocks: int
    states: tuple[State, ...]
    final: str
    elsewhere: dict[str, tuple[int, ...] | str]
    warnings: tuple[str, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(state.after_block for state in self.states)


def family_of(architectures: tuple[str, ...]) -> str | None:
    """The family of a model, None for one that the tables do not have."""
    return next((FAMILY_OF[name] for name in architectures if name in FAMILY_OF), None)


def read(convention: str, family: str | None, num_blocks: int, ids: tuple[int, ...] | None) -> Reading:
    """What `ids` mean by `convention` for a model of this family; None stands for the convention's default.

    Raises:
        UsageError: the ids mean no state of the model, or the family's rule is not known.
    """
    states = _states(convention, family, num_blocks, ids)
    given = tuple(state.id for state in states if state.id is not None)
    elsewhere: dict[str, tuple[int, ...] | str] = {}
    for other in CONVENTIONS if given else ():
        if other != convention:
            try:
                elsewhere[other] = tuple(s.after_block for s in _states(other, family, num_blocks, given))
            except UsageError as error:
                elsewhere[other] = error.message
    warnings = _warnings(convention, family, num_blocks, states, elsewhere)
    return Reading(convention, family, num_blocks, states, FINAL[convention], elsewhere, tuple(warnings))


def _states(convention: str, family: str | None, count: int, ids: tuple[int, ...] | None) -> tuple[State, ...]:
    if ids is None:
        default = _default(convention, count)
        if convention == "eagle3":
            _rule_of(convention, family)
            return tuple(State(None, b - 1, b) for b in default)
        ids = default
    if list(ids) != sorted(set(ids)):
        raise UsageError(
            f"ids {','.join(map(str, ids))} do not ascend: engines hand states over in the order of the blocks",
            "give each id once, the smallest first",
        )
    boundaries = _rule_of(convention, family)(ids, count)
    for number, boundary in zip(ids, boundaries, strict=True):
        _check(convention, family, count, number, boundary)
    return tuple(State(number, b - 1, b) for number, b in zip(ids, boundaries, strict=True))


def _default(convention: str, count: int) -> tuple[int, ...]:
    """The ids that the convention takes by itself; for `eagle3` these are boundaries."""
    if convention == "dflash":
        raise UsageError("the dflash convention has no default ids", "give them with --ids")
    found = (1, count // 2 - 1, count - 4) if convention == "specforge" else (2, count // 2, count - 3)
    if list(found) != sorted(set(found)):
        raise UsageError(f"{count} blocks are too few for the default of {convention}", "give --ids")
    more = {"speculators": (count,), "speculators-v0.4": (count - 1,)}
    return (*found, *more.get(convention, ()))


Rule = Callable[[tuple[int, ...], int], tuple[int, ...]]
"""From ids and the number of blocks to boundaries."""


def _same(ids: tuple[int, ...], _count: int) -> tuple[int, ...]:
    return ids


def _next(ids: tuple[int, ...], _count: int) -> tuple[int, ...]:
    return tuple(number + 1 for number in ids)


def _deepseek(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    return _next(ids, count) if ids[0] == 1 else ids


def _gpt_oss(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    return ids if max(ids) == count else _next(ids, count)


_EAGLE3: dict[str, Rule] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3_moe", "glm4_moe"), _next),
    "deepseek_v2": _deepseek,
    "gpt_oss": _gpt_oss,
}


def _rule_of(convention: str, family: str | None) -> Rule:
    if convention in ("vllm", "speculators"):
        return _same
    if convention not in IN_SGLANG:
        return _next
    if family is None:
        raise UsageError(
            f"what {convention} ids mean depends on SGLang's file for the model, and this model's is not known here",
            "say which blocks you mean: --convention after-block",
        )
    if convention == "dflash" and family in WITHOUT_DFLASH:
        raise UsageError(f"SGLang's {family} takes no dflash ids", "use --convention eagle3")
    return _next if convention == "dflash" else _EAGLE3[family]


def _check(convention: str, family: str | None, count: int, number: int, boundary: int) -> None:
    """Refuse an id whose state the model does not have, or which the engine would leave out."""
    if number < 0 or boundary > count:
        raise UsageError(
            f"id {number} is outside the model: by the {convention} convention its {count} blocks end before it",
            f"the last block is {count - 1}",
        )
    if boundary == count and convention in IN_SGLANG and family != "gpt_oss":
        raise UsageError(
            f"{convention} id {number} is the output of the last block, which SGLang's {family} leaves out",
            "it is the final state, which every dump holds",
        )


def _warnings(
    convention: str,
    family: str | None,
    count: int,
    states: tuple[State, ...],
    elsewhere: dict[str, tuple[int, ...] | str],
) -> list[str]:
    blocks = tuple(state.after_block for state in states)
    found = []
    differ = [name for name, other in elsewhere.items() if isinstance(other, tuple) and other != blocks]
    if differ:
        found.append(f"the same ids mean other blocks in {', '.join(differ)}")
    if family == "deepseek_v2" and convention in ("eagle3", "specforge") and states[0].id is not None:
        does = "is" if states[0].id == 1 else "is not"
        found.append(f"deepseek_v2 adds 1 to eagle3 ids only when the first is 1, which it {does} here")
    if family == "gpt_oss" and convention in IN_SGLANG and states[-1].entering == count:
        found.append("SGLang before 0.5.17 cannot take the state that enters the final norm of gpt_oss as one of these")
    if states[0].after_block < 0:
        found.append("the first of these are the embeddings, which hsbench does not record")
    if convention in ("speculators", "speculators-v0.4", "vllm"):
        found.append("SGLang hands its last state over after the final norm; here it is meant before")
    return found
