"""What a model folder must hold before a server is started on it."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import Missing

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "*.tiktoken")
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
MAX_HEADER = 100_000_000
"""The format's own limit, in bytes."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class ModelFacts(msgspec.Struct, frozen=True):
    """A model and what its `config.json` says; None for what it does not say."""

    path: str
    """Absolute for a folder; otherwise the id of a model on the Hugging Face Hub, with nothing else known."""
    context_len: int | None = None
    num_blocks: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    architectures: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether the model lies on this machine's disk."""
        return Path(self.path).is_absolute()


def check_model(model: str, needs_tokenizer: bool = True, needs_weights: bool = True) -> ModelFacts:
    """Read a model folder's configuration and check that it can be served.

    Args:
        model: A folder, or an id such as ``org/name``, which is passed on unchecked.
        needs_tokenizer: Require a tokenizer in the folder.
        needs_weights: Require weights in the folder.

    Raises:
        Missing: the folder, its `config.json`, its tokenizer or its weights are not there, or not whole.
    """
    folder = Path(model).expanduser()
    if not folder.exists() and _HUB_ID.fullmatch(model) and not folder.parent.is_dir():
        return ModelFacts(model)
    config = _config(folder, model)
    if needs_tokenizer and not _has_any(folder, TOKENIZER_FILES):
        raise Missing(
            f"no tokenizer in {folder}: none of {', '.join(TOKENIZER_FILES)}",
            "copy the tokenizer's files there, or name them: -- --tokenizer-path DIR",
        )
    if needs_weights and not _has_any(folder, WEIGHT_FILES):
        raise Missing(
            f"no weights in {folder}: none of {', '.join(WEIGHT_FILES)}",
            "finish the download; random weights: -- --load-format dummy",
        )
    if needs_weights:
        _check_whole(folder)
    return _facts(folder.absolute(), config)


def _check_whole(folder: Path) -> None:
    """Find a download that was cut short before a server spends a minute on it.

    A safetensors file begins with the length of its header and a JSON header of byte ranges, whose greatest end
    gives the file's size (https://huggingface.co/docs/safetensors, "Format").
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length)) if 0 < length < MAX_HEADER else {}
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            whole = bool(ends) and path.stat().st_size == 8 + length + max(ends)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
            whole = False
        if not whole:
            raise Missing(f"{path} is not a whole safetensors file", "fetch the model again")


def _config(folder: Path, given: str) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise Missing(f"the model {given} {what}", "give --model a model's folder, or --model demo")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise Missing(
            f"no readable config.json in {folder}",
            "give --model the folder that holds config.json and the weights",
        ) from error
    except ValueError as error:
        raise Missing(f"{folder / 'config.json'} is not JSON: {error}", "fetch the model again") from error
    if not isinstance(config, dict):
        raise Missing(f"{folder / 'config.json'} holds no configuration", "fetch the model again")
    return config


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _facts(folder: Path, config: dict[str, Any]) -> ModelFacts:
    """Models that see or hear keep their language model's numbers one level down."""
    inner = config.get("text_config")
    text: dict[str, Any] = {**config, **inner} if isinstance(inner, dict) else config

    def number(name: str) -> int | None:
        value = text.get(name)
        return value if isinstance(value, int) else None

    return ModelFacts(
        path=str(folder),
        context_len=number("max_position_embeddings"),
        num_blocks=number("num_hidden_layers"),
        hidden_size=number("hidden_size"),
        vocab_size=number("vocab_size"),
        architectures=tuple(config.get("architectures") or ()),
    )
