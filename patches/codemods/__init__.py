"""Which model files the source patch edits, and where: one `Family` a model family.

To add a family, add an entry to `FAMILIES`: its files and, for each, the class whose `forward` runs the
decoder blocks. `block_loop` knows the shapes that such a loop has in the supported releases and picks the
one that it recognises in the source; a family whose loop has another shape needs a new `Style` there.
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
    """

    model: str
    bounds: tuple[str, str] = ("self.start_layer", "self.end_layer")


@dataclass(frozen=True)
class Family:
    """The edits that let the recorder see one model family: pairs of file, below `sglang/`, and loop."""

    name: str
    edits: tuple[tuple[str, BlockLoop], ...]


FAMILIES: dict[str, Family] = {
    family.name: family for family in (Family("llama", (("srt/models/llama.py", BlockLoop("LlamaModel")),)),)
}


def loops_by_file(families: Iterable[str]) -> dict[str, tuple[BlockLoop, ...]]:
    """File below `sglang/` → the loops to edit in it, each once though families share it."""
    found: dict[str, dict[BlockLoop, None]] = {}
    for name in families:
        for file, loop in FAMILIES[name].edits:
            found.setdefault(file, {})[loop] = None
    return {file: tuple(loops) for file, loops in sorted(found.items())}


def edit(source: bytes, file: str, loops: Sequence[BlockLoop]) -> bytes:
    """The patched bytes of `file`, already compiled once. Raises PatchError unless every anchor is there."""
    from patches.codemods import block_loop  # libcst is slow to load and seldom needed

    return block_loop.edit(source, file, loops)


def codemods_sha256() -> str:
    """Identity of the codemods: changes when any edit of theirs may."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
