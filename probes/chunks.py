"""Putting the dumps of one prompt together that the engine cut into several passes (chunked prefill)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.dumps import crc32, load, read_meta
from probes.errors import DumpError
from probes.meta import DONE_FILE, META_FILE, Meta

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = ".whole"


def join(folders: Sequence[Path | str]) -> Path:
    """One dump from its parts, beside the first of them as `req_N.whole`; the parts stay.

    The result is a dump as any other. Its `chunks` say of each part the dump, the pass and the number of tokens.

    Raises:
        DumpError: a part is damaged, or is not what comes next: it belongs to another request, does not begin where
            the part before it ends, or holds other tensors.
    """
    parts = [(Path(folder), read_meta(folder)) for folder in folders]
    if not parts:
        raise DumpError("there are no chunks to put together")
    _check_chain(parts)
    to = parts[0][0].with_name(parts[0][0].name + WHOLE)
    building = to.with_name(to.name + ".tmp")
    for old in (to, building):
        shutil.rmtree(old, ignore_errors=True)
    building.mkdir()
    _write(building, parts)
    os.rename(building, to)
    return to


def _check_chain(parts: Sequence[tuple[Path, Meta]]) -> None:
    first, have = parts[0][1], 0
    for folder, meta in parts:
        if meta.request_id != first.request_id:
            raise DumpError(f"{folder} is of request {meta.request_id}, the first chunk of {first.request_id}")
        if meta.prefix_len != have:
            raise DumpError(
                f"{folder} begins at token {meta.prefix_len}, {have} tokens are recorded before it",
                "the prefix came from a cache: start the server with --disable-radix-cache",
            )
        if _kinds(meta) != _kinds(first):
            raise DumpError(f"{folder} holds other tensors than the first chunk")
        have += meta.num_tokens


def _kinds(meta: Meta) -> dict[str, Any]:
    return {name: (t.after_block, t.norm, t.dtype, t.shape[1:]) for name, t in meta.tensors.items()}


def _write(building: Path, parts: Sequence[tuple[Path, Meta]]) -> None:
    import torch

    held = [load(folder) for folder, _ in parts]
    first = parts[0][1].raw
    tensors = {}
    for name, entry in first["tensors"].items():
        whole = torch.cat([tensors[name] for tensors in held])
        torch.save(whole, building / entry["file"])
        tensors[name] = {**entry, **_described(whole)}
    ids = [token for _, meta in parts for token in meta.token_ids]
    chunks = [{"dump": f.name, "pass": m.pass_index, "num_tokens": m.num_tokens} for f, m in parts]
    meta = {**first, "token_ids": ids, "num_tokens": len(ids), "chunks": chunks, "tensors": tensors}
    (building / META_FILE).write_text(json.dumps(meta), encoding="utf-8")
    (building / DONE_FILE).touch()


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "nbytes": tensor.nbytes, "crc32": crc32(tensor)}
