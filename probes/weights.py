"""Reading single weights of a model folder by name, and counting all of them, without loading the model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.errors import ModelError, PackageMissing

if TYPE_CHECKING:
    from torch import Tensor

INDEX_FILE = "model.safetensors.index.json"
HEADER_LIMIT = 100 << 20
EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""What families call the number of experts that a router chooses from."""
FLOATS = ("torch.bfloat16", "torch.float16", "torch.float32")


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json. Raises ModelError when the folder is not a model's."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{folder} is not a model folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is not an object")
    return config


def is_routed(config: Mapping[str, Any]) -> bool:
    """Whether a router chooses experts token by token, by the text part of a model's config.json."""
    return any(config.get(name) for name in EXPERT_COUNTS)


def weight_files(folder: Path) -> dict[str, Path]:
    """The file that holds each weight, by the weight's name; from the index where there is one."""
    index = folder / INDEX_FILE
    if index.exists():
        try:
            held = json.loads(index.read_bytes())["weight_map"]
            return {str(name): folder / Path(file).name for name, file in held.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is not an index of weights: {error}") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no safetensors files")
    return {name: file for file in files for name in _header(file)}


def count_parameters(folder: Path) -> int:
    """Elements of all weights, from the headers of the safetensors files; nothing is loaded."""
    located = weight_files(folder)
    headers = {file: _header(file) for file in set(located.values())}
    try:
        return sum(math.prod(headers[file][name]["shape"]) for name, file in located.items())
    except (KeyError, TypeError) as error:
        raise ModelError(f"{folder}: the safetensors headers lack {error}") from None


def _header(file: Path) -> dict[str, Any]:
    """A safetensors file begins with the length of its JSON header as 8 bytes, little-endian."""
    try:
        with open(file, "rb") as stream:
            length = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(min(length, HEADER_LIMIT)))
            header.pop("__metadata__", None)
    except (OSError, ValueError, AttributeError, struct.error) as error:
        raise ModelError(f"{file} is not a safetensors file: {error}") from None
    assert isinstance(header, dict)
    return header


def read_weight(folder: Path, names: Iterable[str]) -> Tensor:
    """The first of `names` that the model has, as it is stored. Raises ModelError when it has none.

    A weight that is not a plain float of 16 or 32 bits is quantised and refused: its bytes mean nothing
    without scales. So is one whose file is absent.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise PackageMissing(f"reading weights needs safetensors: {error}", "install it beside the engine") from None
    located, names = weight_files(folder), list(names)
    name = next((name for name in names if name in located), None)
    if name is None:
        raise ModelError(f"{folder} has no weight {names[0]}", _near(located, names))
    try:
        with safe_open(located[name], framework="pt") as file:
            weight: Tensor = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{name} in {located[name]} cannot be read: {error}") from None
    if str(weight.dtype) not in FLOATS:
        raise ModelError(f"{name} is stored as {weight.dtype}: it is quantised, which this check cannot read")
    return weight


def _near(located: dict[str, Path], names: list[str]) -> str:
    """What the folder has in place of a missing weight, such as the shards or scales of a quantised one."""
    stem = names[0].removesuffix(".weight").rsplit(".", 1)[-1]
    near = sorted(name for name in located if f"{stem}." in name and ".layers." not in name)[:3]
    return f"it has {', '.join(near)}: quantised or sharded by hand?" if near else ""
