"""From a dump to a training sample: every claim checked first, then one file under a temporary name.

The caller syncs it, while this process goes on with another dump, and publishes it by renaming. A dump that fails is a
`SampleError`: its message says what is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probes.dumps import load
from probes.errors import DumpError, ProbeError
from probes.meta import Meta, TensorMeta, read_meta
from probes.quick import Facts, complaint, facts
from probes.samplefile import FINAL_NORM, Kind, as_kind, save

READ_BYTES = 1 << 22


class SampleError(ProbeError):
    """This dump cannot become a sample; others may."""

    kind = "sample"


class WriteError(ProbeError):
    """The disk does not take the sample; it will not take others either."""

    kind = "space"


@dataclass(frozen=True)
class Expected:
    """What every sample of a run must be: the blocks that its aux tensors follow, in order, and the tensors' form."""

    kind: Kind
    after_block: tuple[int, ...]
    num_blocks: int
    hidden_size: int
    dtype: str


@dataclass(frozen=True)
class Written:
    """One file as written. `crc32` is over the whole file; `ids` and `mask` are `digest`s; `facts` in order."""

    nbytes: int
    crc32: str
    tokens: int
    trained: int
    ids: str
    mask: str
    facts: tuple[Facts, ...]
    tensor_bytes: int
    final_norm: str
    request_id: str


def convert(
    folder: str,
    target: str,
    *,
    kind: str,
    input_ids: list[int],
    mask: str,
    states: dict[str, Any],
) -> Written:
    """Check the dump in `folder` and write it to `target`, which must not exist; it is not synced yet.

    Args:
        folder: A finished dump.
        target: The file to make; its folder exists.
        kind: One of `samplefile.KINDS`.
        input_ids: The ids that were sent.
        mask: One character a token, ``1`` where the token is trained on.
        states: The fields of `Expected` but its kind.

    Raises SampleError for a dump that is wrong, WriteError for a target that cannot be written.
    """
    expected = Expected(as_kind(kind), **{**states, "after_block": tuple(states["after_block"])})
    try:
        meta, tensors = read_meta(folder), load(folder)
    except DumpError as error:
        raise SampleError(error.message, error.next_step) from None
    check_mask(mask, len(input_ids))
    check_ids(meta, input_ids)
    claims = wanted(meta, expected)
    found = tuple(_sound(claim, tensors[claim.name], expected) for claim in claims)
    ids, trained = torch.tensor(input_ids, dtype=torch.int64), torch.tensor([int(c) for c in mask], dtype=torch.int64)
    held = [tensors[claim.name] for claim in claims]
    nbytes, crc = _write(Path(target), expected.kind, ids, trained, held)
    return Written(
        nbytes=nbytes,
        crc32=crc,
        tokens=len(input_ids),
        trained=mask.count("1"),
        ids=digest(ids),
        mask=digest(trained),
        facts=found,
        tensor_bytes=sum(state.nbytes for state in held),
        final_norm=FINAL_NORM[expected.kind],
        request_id=meta.request_id,
    )


def digest(values: Tensor) -> str:
    """First 16 hexadecimal digits of the sha256 of int64 values, little-endian."""
    return hashlib.sha256(values.to(torch.int64).contiguous().numpy().astype("<i8").tobytes()).hexdigest()[:16]


def check_mask(mask: str, tokens: int) -> None:
    """Raise SampleError unless the mask is 0 and 1, one a token, and trains on something."""
    if len(mask) != tokens:
        raise SampleError(f"the loss mask has {len(mask)} entries for {tokens} tokens")
    if set(mask) - {"0", "1"}:
        raise SampleError("the loss mask has other values than 0 and 1")
    if "1" not in mask:
        raise SampleError("the loss mask is all zero: nothing to train on")


def check_ids(meta: Meta, input_ids: Sequence[int]) -> None:
    """Raise SampleError unless the dump is of exactly these ids, computed in one piece."""
    if meta.prefix_len:
        raise SampleError(
            f"the first {meta.prefix_len} tokens came from the prefix cache or an earlier chunk",
            "serve with --disable-radix-cache --chunked-prefill-size -1",
        )
    if len(meta.token_ids) != len(input_ids):
        raise SampleError(f"the dump has {len(meta.token_ids)} tokens, {len(input_ids)} were sent")
    for place, (found, sent) in enumerate(zip(meta.token_ids, input_ids, strict=True)):
        if found != sent:
            raise SampleError(f"the dump is of another prompt: token {place} is {found}, {sent} was sent")


def wanted(meta: Meta, expected: Expected) -> list[TensorMeta]:
    """The claims of the aux tensors in order and of the last state on the side of the norm that the kind wants."""
    aux = [claim for claim in meta.tensors.values() if claim.norm is None]
    blocks = tuple(claim.after_block for claim in aux)
    if blocks != expected.after_block:
        raise SampleError(f"the dump holds the outputs of blocks {list(blocks)}, not {list(expected.after_block)}")
    if any(claim.captured_entering != claim.after_block + 1 for claim in aux):
        raise SampleError(f"captured on entering {[claim.captured_entering for claim in aux]}: not the blocks' outputs")
    if meta.num_blocks != expected.num_blocks:
        raise SampleError(f"the dump is of a model of {meta.num_blocks} blocks, not {expected.num_blocks}")
    norm = FINAL_NORM[expected.kind]
    last = [claim for claim in meta.tensors.values() if claim.norm == norm]
    if len(last) != 1:
        raise SampleError(
            f"{expected.kind} wants the last state {norm}-norm, the dump has it {meta.final_norm}-norm",
            f"serve with SGLANG_HS_DUMP_FINAL={norm} (or both)",
        )
    if last[0].after_block != expected.num_blocks - 1:
        raise SampleError(f"the last state is that of block {last[0].after_block}, not {expected.num_blocks - 1}")
    return [*aux, last[0]]


def _sound(claim: TensorMeta, tensor: Tensor, expected: Expected) -> Facts:
    if claim.dtype != expected.dtype:
        raise SampleError(f"{claim.name} is {claim.dtype}, not {expected.dtype}")
    if tensor.shape[1] != expected.hidden_size:
        raise SampleError(f"{claim.name} is {tensor.shape[1]} wide, not {expected.hidden_size}")
    found = facts(tensor)
    if reason := complaint(claim.name, found):
        raise SampleError(reason)
    return found


def _write(path: Path, kind: Kind, ids: Tensor, mask: Tensor, states: list[Tensor]) -> tuple[int, str]:
    """Write, and read back what the disk is given. A full disk leaves nothing behind."""
    try:
        save(path, kind, ids, mask, states)
        return file_crc32(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            path.unlink()
        if isinstance(error, (OSError, RuntimeError)) or type(error).__name__ == "SafetensorError":
            raise WriteError(f"{path} cannot be written: {error}", "is the disk full?") from None
        raise


def file_crc32(path: Path) -> tuple[int, str]:
    """Size in bytes and crc32, eight hexadecimal digits, of a whole file."""
    size = value = 0
    with open(path, "rb", buffering=0) as file:
        while part := file.read(READ_BYTES):
            value, size = zlib.crc32(part, value), size + len(part)
    return size, f"{value:08x}"
