"""What a dump says about itself: `meta.json`, as the recorder writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probes.errors import DumpError

SCHEMA = 1
META_FILE = "meta.json"
DONE_FILE = "done"


Norm = Literal["pre", "post"]


@dataclass(frozen=True)
class TensorMeta:
    """What one tensor file claims to hold.

    `after_block` is the 0-based decoder block whose output the tensor is; `norm` is None for the output
    of a block, and ``pre`` or ``post`` for the last state before or after the final norm. `crc32` is over
    the raw bytes of the rows, as eight hexadecimal digits.
    """

    name: str
    file: str
    after_block: int
    captured_entering: int | None
    norm: Norm | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    crc32: str


@dataclass(frozen=True)
class Meta:
    """One `meta.json`. `raw` is the whole object, with the engine's facts that no check needs."""

    request_id: str
    forward_mode: str
    token_ids: tuple[int, ...]
    num_tokens: int
    prefix_len: int
    num_blocks: int
    pass_index: int
    final_norm: str
    tensors: dict[str, TensorMeta]
    raw: dict[str, Any]


def read_meta(folder: Path | str) -> Meta:
    """Read the `meta.json` of a dump folder. Raises DumpError when it is missing or not one of ours."""
    path = Path(folder) / META_FILE
    try:
        found = json.loads(path.read_bytes())
        if found["schema"] != SCHEMA:
            raise DumpError(
                f"{path}: schema {found['schema']}, this release reads {SCHEMA}",
                "use the hsbench that patched the server",
            )
        return _meta(found)
    except FileNotFoundError:
        raise DumpError(f"{path} does not exist", "was this dump written by the hsbench recorder?") from None
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DumpError(f"{path} is not a dump's description: {type(error).__name__}: {error}") from None


def _meta(found: dict[str, Any]) -> Meta:
    meta = Meta(
        request_id=str(found["request_id"]),
        forward_mode=str(found["forward_mode"]),
        token_ids=tuple(int(token) for token in found["token_ids"]),
        num_tokens=int(found["num_tokens"]),
        prefix_len=int(found["prefix_len"]),
        num_blocks=int(found["num_blocks"]),
        pass_index=int(found["pass"]["index"]),
        final_norm=str(found["final_norm"]),
        tensors={str(name): _tensor(str(name), entry) for name, entry in found["tensors"].items()},
        raw=found,
    )
    if len(meta.token_ids) != meta.num_tokens:
        raise ValueError(f"{len(meta.token_ids)} token ids for {meta.num_tokens} tokens")
    return meta


def _tensor(name: str, entry: dict[str, Any]) -> TensorMeta:
    file, norm, entering = str(entry["file"]), entry["norm"], entry["captured_entering"]
    if file != f"{name}.pt" or Path(file).name != file:
        raise ValueError(f"tensor {name!r} names the file {file!r}")
    if norm not in (None, "pre", "post"):
        raise ValueError(f"tensor {name!r} is on the side {norm!r} of the norm")
    return TensorMeta(
        name=name,
        file=file,
        after_block=int(entry["after_block"]),
        captured_entering=None if entering is None else int(entering),
        norm=norm,
        shape=tuple(int(size) for size in entry["shape"]),
        dtype=str(entry["dtype"]),
        nbytes=int(entry["nbytes"]),
        crc32=str(entry["crc32"]),
    )
