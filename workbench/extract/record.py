"""What a run is: `hsbench.json` in the data set's folder. The side files are made from it and the index."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from workbench.errors import UsageError
from workbench.extract.durable import replace_json

Format = Literal["speculators-v1", "speculators", "specforge"]
FORMATS: tuple[Format, ...] = get_args(Format)
RECORD_FILE = "hsbench.json"
SCHEMA = 1


class States(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of every sample of a run: the outputs of `after_block` in order, then the last block's."""

    after_block: tuple[int, ...]
    num_blocks: int
    hidden_size: int
    dtype: str = "bfloat16"

    @property
    def captured_entering(self) -> tuple[int, ...]:
        """The block on entering which each aux tensor is taken."""
        return tuple(block + 1 for block in self.after_block)

    @property
    def bytes_per_token(self) -> int:
        """Tensor bytes that one token takes on disk, in every format."""
        width = {"float32": 4, "float64": 8}.get(self.dtype, 2)
        return (len(self.after_block) + 1) * self.hidden_size * width


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The data set that a run is made of, and how its rows become token ids and masks."""

    path: str
    fingerprint: str
    """Of the file's bytes, the tokenizer, the template and every setting below; equal means equal samples."""
    rows: int
    form: str
    mask: str
    """Where the loss mask comes from: see `probes/render.py`."""
    tokenizer: str | None = None
    max_seq_len: int | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The server that computed the states, for `data_config.json`."""

    model: str
    sglang_version: str | None = None
    patch_hash: str | None = None
    tp_size: int = 1
    flags: tuple[str, ...] = ()
    nccl_env: dict[str, str] = {}
    versions: dict[str, str | None] = {}
    gpu: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `format`, `states`, `source` and `shard` decide what the samples are; the rest is told to readers."""

    format: Format
    states: States
    source: Source
    engine: Engine
    shard: tuple[int, int] = (0, 1)
    """(I, N): this folder holds the rows whose number leaves I when divided by N."""
    created: float = 0.0
    command: str = ""
    hsbench_version: str = ""
    schema: int = SCHEMA

    def rows(self) -> range:
        """The row numbers that belong to this shard."""
        return range(self.shard[0], self.source.rows, self.shard[1])


def save_record(folder: Path, record: RunRecord) -> None:
    """Write `hsbench.json` atomically; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / RECORD_FILE, msgspec.to_builtins(record))


def load_record(folder: Path) -> RunRecord | None:
    """The run that a folder is of, None when it has no `hsbench.json`.

    Raises:
        UsageError: the file is there but is not one of this release's.
    """
    path = folder / RECORD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{path} is not a run's description: {error}", "was it written by this release?") from error


def differences(old: RunRecord, new: RunRecord) -> list[str]:
    """What would make samples of `new` unlike those of `old`, one line each; empty when a run may go on."""
    found = [
        _differs("format", old.format, new.format),
        _differs("blocks", list(old.states.after_block), list(new.states.after_block)),
        _differs("blocks of the model", old.states.num_blocks, new.states.num_blocks),
        _differs("hidden size", old.states.hidden_size, new.states.hidden_size),
        _differs("dtype", old.states.dtype, new.states.dtype),
        _differs("shard", "{}/{}".format(*old.shard), "{}/{}".format(*new.shard)),
        _differs("model", old.engine.model, new.engine.model),
        _differs("--max-seq-len", old.source.max_seq_len, new.source.max_seq_len),
        _differs("rows", old.source.rows, new.source.rows),
        _differs("mask", old.source.mask, new.source.mask),
    ]
    lines = [line for line in found if line]
    if not lines and old.source.fingerprint != new.source.fingerprint:
        lines.append(f"data set or tokenizer: other contents ({old.source.path}, now {new.source.path})")
    return lines


def refuse_differences(old: RunRecord, new: RunRecord, of: str = "") -> None:
    """Raise UsageError when the two runs cannot share a folder. `of` names the part of it that `old` is of."""
    if lines := differences(old, new):
        part = f"{of}: " if of else ""
        raise UsageError(
            f"this folder is of another run: {part}{'; '.join(lines)}",
            "give the same data set and settings to go on, or another --out",
        )


def _differs(name: str, old: Any, new: Any) -> str:
    return "" if old == new else f"{name}: {old}, now {new}"


def effective_nccl(pid: int) -> dict[str, str]:
    """The NCCL_* variables in the environment of a running process; empty when it cannot be read."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = os.fsdecode(entry).partition("=")
            if name.startswith("NCCL_"):
                found[name] = value
    return dict(sorted(found.items()))


def as_json(record: RunRecord) -> str:
    """For a person to read."""
    return json.dumps(msgspec.to_builtins(record), indent=2)
