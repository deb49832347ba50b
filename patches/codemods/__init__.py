"""Which model files the source patch edits, and where: one `Family` a model family.

To add a family, add an entry to `FAMILIES`: its files and, for each, the class whose `forward` runs the
decoder blocks. `block_loop` and `final_norm` know the shapes that such a `forward` has in the supported
releases and pick the one that they recognise in the source; a family of another shape needs a new `Style`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BlockLoop:
    """The loop over the decoder blocks in one class.

    Args:
        model: Class whose `forward` holds the loop.
        bounds: Source text of the two arguments of the loop's `range`.
        inherits: Base class; a `model` with no `forward` of its own has nothing to edit if it derives from it.
    """

    model: str
    bounds: tuple[str, str] = ("self.start_layer", "self.end_layer")
    inherits: str | None = None


@dataclass(frozen=True)
class Family:
    """The edits that let the recorder see one model family.

    Args:
        name: The family's name, that of its model file.
        edits: Pairs of file, below `sglang/`, and loop.
    """

    name: str
    edits: tuple[tuple[str, BlockLoop], ...]


QWEN2 = ("srt/models/qwen2.py", BlockLoop("Qwen2Model"))
QWEN2_MOE = ("srt/models/qwen2_moe.py", BlockLoop("Qwen2MoeModel"))
_UNTIL_OVERLAP = ("normal_start_layer", "normal_end_layer")
"""The blocks that two-batch overlap leaves alone; without it, all of them."""

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", (("srt/models/llama.py", BlockLoop("LlamaModel")),)),
        Family("qwen2", (QWEN2,)),
        Family("qwen3", (QWEN2, ("srt/models/qwen3.py", BlockLoop("Qwen3Model", inherits="Qwen2Model")))),
        Family(
            "qwen3_moe",
            (QWEN2_MOE, ("srt/models/qwen3_moe.py", BlockLoop("Qwen3MoeModel", inherits="Qwen2MoeModel"))),
        ),
        Family("gpt_oss", (("srt/models/gpt_oss.py", BlockLoop("GptOssModel")),)),
        Family("deepseek_v2", (("srt/models/deepseek_v2.py", BlockLoop("DeepseekV2Model", _UNTIL_OVERLAP)),)),
        Family("glm4_moe", (("srt/models/glm4_moe.py", BlockLoop("Glm4MoeModel", _UNTIL_OVERLAP)),)),
    )
}


def loops_by_file(families: Iterable[str]) -> dict[str, tuple[BlockLoop, ...]]:
    """File below `sglang/` → the loops to edit in it, each once though families share it."""
    found: dict[str, dict[BlockLoop, None]] = {}
    for name in families:
        for file, loop in FAMILIES[name].edits:
            found.setdefault(file, {})[loop] = None
    return {file: tuple(loops) for file, loops in sorted(found.items())}


def edit(source: bytes, file: str, loops: Sequence[BlockLoop]) -> bytes:
    """The patched bytes of `file`, already compiled once. Raises PatchError unless every anchor is there.

    They are `source` itself when every class in it inherits its loop from a file that is edited instead.
    """
    from patches.codemods import block_loop  # libcst is slow to load and seldom needed

    return block_loop.edit(source, file, loops)


def codemods_sha256() -> str:
    """Identity of the codemods: changes when any edit of theirs may."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
