"""The float32 reference: a model loaded with transformers, independent of any engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probes.errors import MemoryShort, ModelError, PackageMissing, one_line
from probes.weights import count_parameters, is_routed, read_config

FINAL_NORMS = ("norm", "final_layernorm", "ln_f")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class States:
    """What one forward pass produced, each [tokens, hidden size] in float32.

    `embeddings` enters block 0; `blocks[k]` is the residual stream after block k; `pre` goes into the final
    norm and `post` comes out of it. Every one is taken by a hook on the module itself, since the library's
    own list of hidden states has the normed state in the place of the last block's. `routed` says that experts
    are chosen by a router, token by token.
    """

    embeddings: Tensor
    blocks: tuple[Tensor, ...]
    pre: Tensor
    post: Tensor
    routed: bool = False


class ReferenceModel:
    """A model in float32 with the places found where its states can be seen."""

    def __init__(
        self, path: str, stack: nn.Module, blocks: nn.ModuleList, norm: nn.Module, routed: bool = False
    ) -> None:
        self.routed = routed
        self.path = path
        self.stack = stack
        self.blocks = blocks
        self.norm = norm

    def states(self, token_ids: Sequence[int]) -> States:
        """Run one prompt and return its states. Raises ModelError when the model cannot run it."""
        device = next(self.stack.parameters()).device
        if not token_ids:
            raise ModelError("a prompt without tokens has no states")
        embedding = self.stack.get_input_embeddings()  # type: ignore[operator]
        if min(token_ids) < 0 or max(token_ids) >= embedding.weight.shape[0]:
            raise ModelError(
                f"token id {max(token_ids)} is outside the vocabulary of {embedding.weight.shape[0]}",
                "is this the model that the server runs?",
            )
        seen: dict[str, Tensor] = {}
        with _hooks(self, seen), torch.inference_mode():
            try:
                self.stack(input_ids=torch.tensor([list(token_ids)], device=device), use_cache=False)
            except Exception as error:  # a foreign model, or memory that ran out
                raise ModelError(f"transformers cannot run {self.path}: {one_line(str(error), 200)}") from error
        blocks = tuple(seen[f"block {k}"] for k in range(len(self.blocks)))
        return States(seen["embeddings"], blocks, seen["pre"], seen["post"], self.routed)


@contextlib.contextmanager
def _hooks(model: ReferenceModel, seen: dict[str, Tensor]) -> Iterator[None]:
    def keep(name: str, value: Any) -> None:
        while isinstance(value, (tuple, list)):
            value = value[0]
        seen[name] = value.detach()[0].to("cpu", torch.float32).clone()

    def entering(name: str) -> Any:
        return lambda module, args, kwargs: keep(name, args or kwargs["hidden_states"])

    def leaving(name: str) -> Any:
        return lambda module, args, output: keep(name, output)

    handles = [block.register_forward_hook(leaving(f"block {k}")) for k, block in enumerate(model.blocks)]
    handles.append(model.blocks[0].register_forward_pre_hook(entering("embeddings"), with_kwargs=True))
    handles.append(model.norm.register_forward_pre_hook(entering("pre"), with_kwargs=True))
    handles.append(model.norm.register_forward_hook(leaving("post")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def load_model(path: Path | str, device: str = "cpu", available: int | None = None) -> ReferenceModel:
    """Load a model folder in float32 if it fits.

    Args:
        path: A folder with config.json and safetensors files, unquantised.
        device: Where to load it, ``cpu`` or ``cuda``.
        available: Bytes that may be used; by default what the device has free now.

    Raises ModelError, MemoryShort or PackageMissing.
    """
    folder = Path(path)
    config = read_config(folder)
    if config.get("quantization_config"):
        raise ModelError(
            f"{folder} is quantised: there is no float32 reference for it",
            "take the unquantised model as the reference",
        )
    _check_memory(folder, device, free_memory(device) if available is None else available)
    model = _from_pretrained(folder)
    if device != "cpu":
        model.to(device)
    return _find_parts(str(folder), model.eval())


def _from_pretrained(folder: Path) -> Any:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise PackageMissing(
            f"the reference needs transformers: {error}", "install transformers beside the engine"
        ) from None
    logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    options = {"dtype": torch.float32, "local_files_only": True}
    try:
        try:
            return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **options)
        except (ValueError, ImportError):  # the family has no sdpa
            return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **options)
    except Exception as error:  # a foreign library reading a foreign folder
        raise ModelError(f"transformers cannot load {folder}: {one_line(str(error), 200)}") from error


def _find_parts(path: str, model: nn.Module) -> ReferenceModel:
    """The decoder stack: the module that owns a list `layers` of blocks and a norm after them."""
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    count = config.num_hidden_layers
    routed = is_routed(config.to_dict())
    for module in model.modules():
        blocks = getattr(module, "layers", None) or getattr(module, "h", None)
        norms = [norm for name in FINAL_NORMS if isinstance(norm := getattr(module, name, None), nn.Module)]
        if isinstance(blocks, nn.ModuleList) and len(blocks) == count and norms:
            return ReferenceModel(path, module, blocks, norms[0], routed)
    raise ModelError(f"{path}: {type(model).__name__} has no list of decoder blocks followed by a norm")


def _check_memory(folder: Path, device: str, available: int) -> None:
    parameters = count_parameters(folder)
    if parameters * 4 > available:
        raise MemoryShort(
            f"the float32 reference needs {_gib(parameters * 4)} ({parameters:,} parameters), "
            f"{_gib(available)} is free on {device}",
            "check with the log-probabilities instead, which need only the norm and the LM head",
        )


def free_memory(device: str = "cpu") -> int:
    """Bytes that can be taken now: on CUDA the device's, else the least of the machine's and the cgroup's."""
    if device != "cpu":
        if not torch.cuda.is_available():
            raise ModelError(f"device {device} is not usable: torch sees no CUDA device")
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo", encoding="ascii") as lines:
        sizes = dict(line.split(":", 1) for line in lines)
    free = int(sizes["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, KeyError):  # no cgroup v2, or no limit ("max")
        limit = int((CGROUP / "memory.max").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        used = int((CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        free = min(free, limit - used)
    return free


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
