"""Reading a dump's tensors, with every claim of its `meta.json` checked. No pickle is ever executed."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.errors import DumpError
from probes.listing import DumpEntry, find_by_request_id, list_dumps
from probes.meta import DONE_FILE, META_FILE, Meta, TensorMeta, read_meta

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DumpEntry",
    "Meta",
    "TensorMeta",
    "find_by_request_id",
    "list_dumps",
    "load",
    "load_file",
    "read_meta",
]


def load(folder: Path | str, *, checksum: bool = True) -> dict[str, Tensor]:
    """The tensors of one dump by name, mapped from their files.

    With a `meta.json` each tensor's shape, dtype, number of rows and, unless `checksum` is False, crc32
    must be as claimed. Without one (a dump of some other patch) every tensor found in the `.pt` files is
    returned: by the file's stem, or as ``stem.key`` where a file holds a dict or a list of tensors.
    Raises DumpError with one line for anything that is not as it should be.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DumpError(f"{folder} is not a folder")
    if not (folder / META_FILE).exists():
        return _load_foreign(folder)
    if not (folder / DONE_FILE).exists():
        raise DumpError(f"{folder} is not finished: it has no `{DONE_FILE}` file")
    meta = read_meta(folder)
    return {name: _load_checked(folder, meta, claim, checksum) for name, claim in meta.tensors.items()}


def load_file(path: Path) -> Any:
    """What a `.pt` file holds: tensors, and plain containers of them. Raises DumpError for all else."""
    import torch

    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise DumpError(f"{path} does not exist") from None
    except Exception as error:  # torch raises many kinds for damaged files and for refused pickles
        reason = str(error).split("\n", 1)[0]
        raise DumpError(f"{path} cannot be read: {type(error).__name__}: {reason}") from None


def _load_checked(folder: Path, meta: Meta, claim: TensorMeta, checksum: bool) -> Tensor:
    path = folder / claim.file
    tensor = _as_tensor(path, load_file(path))
    dtype = str(tensor.dtype).removeprefix("torch.")
    if (tuple(tensor.shape), dtype) != (claim.shape, claim.dtype):
        held = f"{list(tensor.shape)} {dtype}"
        raise DumpError(f"{path} holds {held}, {META_FILE} says {list(claim.shape)} {claim.dtype}")
    if tensor.dim() != 2 or tensor.shape[0] != meta.num_tokens:
        raise DumpError(f"{path} holds {list(tensor.shape)} for {meta.num_tokens} tokens")
    if checksum and (found := crc32(tensor)) != claim.crc32:
        raise DumpError(f"{path} is damaged: crc32 {found}, {META_FILE} says {claim.crc32}")
    return tensor


def _as_tensor(path: Path, held: object) -> Tensor:
    import torch

    if isinstance(held, torch.Tensor):
        return held
    raise DumpError(f"{path} holds a {type(held).__name__}, not a tensor")


def crc32(tensor: Tensor) -> str:
    """crc32 of the tensor's raw bytes, row by row, as eight hexadecimal digits."""
    import torch

    if tensor.numel() == 0:
        return f"{zlib.crc32(b''):08x}"
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{zlib.crc32(raw.data):08x}"


def _load_foreign(folder: Path) -> dict[str, Tensor]:
    import torch

    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.pt")):
        held = load_file(path)
        items = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
        if isinstance(held, torch.Tensor):
            found[path.stem] = held
        found |= {f"{path.stem}.{key}": item for key, item in items if isinstance(item, torch.Tensor)}
    if not found:
        raise DumpError(f"{folder} holds no tensors")
    return found
