"""Looking at finished sample files: whole, of the right shape, sound, and on the claimed side of the final norm.

A state after an RMS norm lies on an ellipsoid: divided by the norm's weight w, each row has root mean square 1
(x / rms(x) * w, Zhang and Sennrich, 2019). A state before the norm does not, so one weight tells the sides apart.
`norm_distance` is the median over rows of |rms(x / w) - 1|: 0.0006 after the norm in bfloat16, and on the demo
model 15 and more before it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probes import samplefile
from probes.convert import digest, file_crc32
from probes.dumps import load as load_dump
from probes.errors import DumpError, ModelError
from probes.measure import mean_error
from probes.meta import Meta, TensorMeta, read_meta
from probes.quick import Facts, complaint, facts
from probes.samplefile import FINAL_NORM, Kind, SampleFile, as_kind
from probes.weights import read_config, read_weight

ON_ELLIPSOID = 0.05
"""A last state nearer than this is after the norm."""
NORM_NAMES = tuple(
    f"{prefix}norm.weight"
    for prefix in ("model.", "language_model.model.", "model.language_model.", "model.language_model.model.")
)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file. `check` is one of `unreadable`, `shape`, `ids`, `mask`, `values`, `norm`."""

    check: str
    message: str


@dataclass(frozen=True)
class FileAudit:
    """What one file is. Digests are those of `convert.digest`; facts are of the states in order."""

    nbytes: int = 0
    crc32: str = ""
    tokens: int = 0
    trained: int | None = None
    ids: str = ""
    mask: str = ""
    facts: tuple[Facts, ...] = ()
    norm_distance: float | None = None
    faults: tuple[Fault, ...] = ()


def audit_file(
    path: str,
    *,
    kind: str,
    tensors: int | None = None,
    hidden_size: int | None = None,
    dtype: str | None = None,
    model: str | None = None,
) -> FileAudit:
    """Read one sample file whole and judge it. What is wrong comes as faults; nothing about the file raises.

    Args:
        path: The file.
        kind: One of `samplefile.KINDS`.
        tensors: States that it should have; as the rest, not judged when not given.
        hidden_size: Their width.
        dtype: Their dtype.
        model: Model folder whose final norm the last state is compared with.
    """
    format_ = as_kind(kind)
    try:
        nbytes, crc = file_crc32(Path(path))
        held = samplefile.load(Path(path), format_, tensors)
    except OSError as error:
        return FileAudit(faults=(Fault("unreadable", f"cannot be read: {error.strerror}"),))
    except DumpError as error:
        size = Path(path).stat().st_size
        return FileAudit(nbytes=size, faults=(Fault("unreadable", error.message.removeprefix(f"{path} ")),))
    found = tuple(facts(state) for state in held.states)
    distance = None if model is None else _norm_distance(held.states[-1], model)
    values = [complaint(_name(number, found), one) for number, one in enumerate(found)]
    faults = [
        *(_ids_faults(held) + _mask_faults(held) + _shape_faults(held, tensors, hidden_size, dtype)),
        *(Fault("values", reason) for reason in values if reason),
        *_norm_faults(distance, format_),
    ]
    mask = held.loss_mask
    return FileAudit(
        nbytes=nbytes,
        crc32=crc,
        tokens=held.input_ids.shape[0],
        trained=None if mask is None else int((mask != 0).sum()),
        ids=digest(held.input_ids),
        mask="" if mask is None else digest(mask),
        facts=found,
        norm_distance=distance,
        faults=tuple(faults),
    )


def _name(number: int, of: tuple[Any, ...]) -> str:
    return "the last state" if number == len(of) - 1 else f"aux {number}"


def _ids_faults(held: SampleFile) -> list[Fault]:
    if held.input_ids.dtype != torch.int64:
        return [Fault("ids", f"the ids are {held.input_ids.dtype}, not int64")]
    if held.input_ids.numel() and int(held.input_ids.min()) < 0:
        return [Fault("ids", f"token id {int(held.input_ids.min())}")]
    return []


def _mask_faults(held: SampleFile) -> list[Fault]:
    mask = held.loss_mask
    if mask is None:
        return []
    if mask.shape != held.input_ids.shape:
        return [Fault("mask", f"the loss mask has {mask.shape[0]} entries for {held.input_ids.shape[0]} tokens")]
    if mask.dtype != torch.int64:
        return [Fault("mask", f"the loss mask is {mask.dtype}, not int64")]
    if not bool(((mask == 0) | (mask == 1)).all()):
        return [Fault("mask", "the loss mask has other values than 0 and 1")]
    return [] if bool(mask.any()) else [Fault("mask", "the loss mask is all zero: nothing to train on")]


def _shape_faults(held: SampleFile, tensors: int | None, hidden_size: int | None, dtype: str | None) -> list[Fault]:
    faults, states = [], held.states
    if tensors is not None and len(states) != tensors:
        faults.append(Fault("shape", f"it has {len(states)} states, not {tensors}"))
    for number, state in enumerate(states):
        name, kind = _name(number, states), str(state.dtype).removeprefix("torch.")
        if state.shape[0] != held.input_ids.shape[0]:
            faults.append(Fault("shape", f"{name} has {state.shape[0]} rows for {held.input_ids.shape[0]} tokens"))
        if hidden_size is not None and state.shape[1] != hidden_size:
            faults.append(Fault("shape", f"{name} is {state.shape[1]} wide, not {hidden_size}"))
        if dtype is not None and kind != dtype:
            faults.append(Fault("shape", f"{name} is {kind}, not {dtype}"))
    return faults


def _norm_faults(distance: float | None, kind: Kind) -> list[Fault]:
    if distance is None:
        return []
    norm = FINAL_NORM[kind]
    if norm == "pre" and distance < ON_ELLIPSOID:
        return [
            Fault("norm", f"the last state is after the final norm (off by {distance:.2g}), {kind} wants it before")
        ]
    if norm == "post" and distance >= ON_ELLIPSOID:
        return [
            Fault("norm", f"the last state is not after the final norm (off by {distance:.2g}), as {kind} wants it")
        ]
    return []


def _norm_distance(state: Tensor, model: str) -> float | None:
    weight = norm_weight(model)
    if weight is None or weight.shape[0] != state.shape[1] or state.shape[0] == 0:
        return None
    rms = (state.to(torch.float32) / weight).square().mean(dim=-1).sqrt()
    return float((rms - 1).abs().nan_to_num(nan=torch.inf).median())


@functools.lru_cache(maxsize=2)
def norm_weight(model: str) -> Tensor | None:
    """The final norm's weight in float32; None when there is none that x / rms(x) * w would be with."""
    try:
        config = read_config(Path(model))
        inner = config.get("text_config") or config
        if "rms_norm_eps" not in inner or str(inner.get("model_type", "")).startswith("gemma"):
            return None
        weight = read_weight(Path(model), NORM_NAMES).to(torch.float32)
    except ModelError:
        return None
    return weight if float(weight.abs().min()) > 1e-4 * float(weight.abs().max()) else None


def sample_ids(path: str, *, kind: str, tensors: int | None = None) -> list[int]:
    """The token ids of a sample file."""
    ids: list[int] = samplefile.load(Path(path), as_kind(kind), tensors).input_ids.tolist()
    return ids


def audit_against_dump(path: str, *, kind: str, dump: str) -> dict[str, Any]:
    """Compare a sample file with a fresh dump of the same ids.

    Returns the mean error (`measure.mean_error`) of each state, and whether all bits are equal.
    Raises DumpError when the dump lacks a tensor that the kind has.
    """
    format_ = as_kind(kind)
    meta, fresh = read_meta(dump), load_dump(dump)
    names = [claim.name for claim in meta.tensors.values() if claim.norm is None]
    last = [claim.name for claim in meta.tensors.values() if claim.norm == FINAL_NORM[format_]]
    if not last:
        raise DumpError(
            f"the server records the last state {meta.final_norm}-norm, {kind} has it {FINAL_NORM[format_]}-norm",
            "serve with SGLANG_HS_DUMP_FINAL=both",
        )
    held = samplefile.load(Path(path), format_, len(names) + 1)
    if tuple(held.input_ids.tolist()) != meta.token_ids:
        raise DumpError(f"{dump} is of another prompt than {path}")
    expected = [fresh[name] for name in (*names, last[0])]
    if len(held.states) != len(expected):
        raise DumpError(f"{path} has {len(held.states)} states, the server records {len(expected)}")
    errors = [mean_error(one, other) for one, other in zip(held.states, expected, strict=True)]
    equal = all(torch.equal(one, other) for one, other in zip(held.states, expected, strict=True))
    return {"errors": errors, "equal": equal, "after_block": [meta.tensors[name].after_block for name in names]}


def audit_logits(path: str, *, kind: str, tensors: int, model: str, server_logprobs: list[float | None]) -> Any:
    """`logits.check` of a sample file's last state."""
    from probes.logits import check

    format_ = as_kind(kind)
    held = samplefile.load(Path(path), format_, tensors)
    return check(model, held.states[-1], FINAL_NORM[format_], held.input_ids.tolist(), server_logprobs)


def audit_reference(path: str, *, kind: str, after_block: list[int], num_blocks: int, model: str) -> list[Any]:
    """`reference.judge` of a sample file against transformers in float32; the model stays loaded."""
    from probes.calls import loaded_model
    from probes.reference import reference_with

    format_ = as_kind(kind)
    held = samplefile.load(Path(path), format_, len(after_block) + 1)
    ids = held.input_ids.tolist()
    meta = _claims(held, ids, [*after_block, num_blocks - 1], num_blocks, format_)
    tensors = dict(zip(meta.tensors, held.states, strict=True))
    return list(reference_with(loaded_model(model, "cpu"), ids, tensors, meta))


def _claims(held: SampleFile, ids: list[int], blocks: list[int], num_blocks: int, kind: Kind) -> Meta:
    """What the data set says of its states, in the form that the reference takes."""
    if len(held.states) != len(blocks):
        raise DumpError(f"the file has {len(held.states)} states, the data set names {len(blocks)} blocks")
    names = [_name(number, held.states) for number in range(len(blocks))]
    last = len(blocks) - 1
    tensors = {
        name: TensorMeta(
            name=name,
            file="",
            after_block=blocks[number],
            captured_entering=None if number == last else blocks[number] + 1,
            norm=FINAL_NORM[kind] if number == last else None,
            shape=tuple(held.states[number].shape),
            dtype="",
            nbytes=0,
            crc32="",
        )
        for number, name in enumerate(names)
    }
    return Meta("", "EXTEND", tuple(ids), len(ids), 0, num_blocks, 0, FINAL_NORM[kind], tensors, {})


def audit_arrow(folder: str, numbers: list[int]) -> list[dict[str, Any]]:
    """Digests of the ids and the mask in these rows of the Arrow data set; None for a row that is not there."""
    from probes.arrow import datasets_library

    try:
        data = datasets_library().load_from_disk(folder).with_format(None)
    except Exception as error:  # the library raises many kinds for damaged files
        raise DumpError(f"the Arrow data set in {folder} cannot be read: {error}") from None
    return [_arrow_row(data[number]) if number < len(data) else {"ids": None, "mask": None} for number in numbers]


def _arrow_row(row: dict[str, Any]) -> dict[str, Any]:
    ids, mask = (torch.tensor(row[name], dtype=torch.int64) for name in ("input_ids", "loss_mask"))
    return {"ids": digest(ids), "mask": digest(mask)}
