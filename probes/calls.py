"""What the worker can be asked. Each call takes plain JSON values and returns a record or a list of them."""

from __future__ import annotations

import functools
import importlib
import inspect
import platform
from collections.abc import Callable
from typing import Any

from probes.dumps import list_dumps, load, read_meta
from probes.errors import CallError
from probes.meta import META_FILE, Meta

Call = Callable[..., Any]


def ping() -> dict[str, Any]:
    """Answers when torch is loaded."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def versions(packages: list[str]) -> dict[str, str | None]:
    """Releases of these packages in this interpreter; None for one that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def threads(count: int) -> int:
    """Let torch use `count` threads here; several workers share the cores."""
    import torch

    torch.set_num_threads(count)
    return torch.get_num_threads()


def describe(folder: str) -> dict[str, Any]:
    """Claims and statistics of every tensor of a dump: {name: {"claim": …, "stats": …}}."""
    from probes.stats import describe as describe_tensor

    tensors, meta = load(folder), _meta(folder)
    claims = meta.tensors if meta else {}
    found = {name: {"claim": claims.get(name), "stats": describe_tensor(t)} for name, t in tensors.items()}
    return {"meta": meta.raw if meta else None, "tensors": found}


def dumps(folder: str, newest: int | None = None) -> list[Any]:
    """`listing.list_dumps`."""
    return list(list_dumps(folder, newest))


def reference(model: str, folder: str, token_ids: list[int] | None = None, device: str = "cpu") -> dict[str, Any]:
    """`reference.reference` on a dump; without `token_ids` those of its meta.json. The model stays loaded."""
    from probes.reference import check_prompt, reference_with

    tensors, meta = load(folder), _meta(folder)
    ids = _token_ids(token_ids, meta)
    check_prompt(ids, tensors, meta)  # before the costly load
    checks = reference_with(loaded_model(model, device), ids, tensors, meta)
    note = "too short to be relied on: at least 8 tokens" if any(check.weak for check in checks) else ""
    return {"tensors": checks, "num_tokens": len(ids), "note": note}


@functools.lru_cache(maxsize=1)
def loaded_model(path: str, device: str) -> Any:
    """The float32 reference, kept for the next call."""
    from probes.model import load_model

    return load_model(path, device)


def logits(
    model: str,
    folder: str,
    server_logprobs: list[float | None],
    token_ids: list[int] | None = None,
    tensor: str = "final",
) -> Any:
    """`logits.check` on the last state of a dump."""
    from probes.logits import check

    tensors, meta = load(folder), _meta(folder)
    if tensor not in tensors:
        raise CallError(f"the dump holds no tensor {tensor}, only {', '.join(tensors)}")
    claim = meta.tensors[tensor] if meta else None
    if claim is None or claim.norm is None:
        raise CallError(f"{tensor} does not say on which side of the final norm it is")
    return check(model, tensors[tensor], claim.norm, _token_ids(token_ids, meta), server_logprobs)


def compare(solo: list[str], batch: list[str], routed: bool = False) -> dict[str, Any]:
    """`compare.compare` on the folders of dumps of the same prompts, alone and in a batch."""
    from probes.compare import compare as compare_dumps

    for number, (one, other) in enumerate(zip(solo, batch, strict=False)):
        alone, together = _meta(one), _meta(other)
        if alone and together and alone.token_ids != together.token_ids:
            raise CallError(f"request {number}: the two dumps are of different prompts")
    rows = compare_dumps([load(f) for f in solo], [load(f) for f in batch], routed=routed)
    return {"rows": rows, "batch": len(batch)}


def join(folders: list[str]) -> str:
    """`chunks.join`: the folder of the whole dump."""
    from probes.chunks import join as join_chunks

    return str(join_chunks(folders))


def _meta(folder: str) -> Meta | None:
    """The claims of a dump, None for one of another patch."""
    from pathlib import Path

    return read_meta(folder) if (Path(folder) / META_FILE).exists() else None


def _token_ids(given: list[int] | None, meta: Meta | None) -> list[int]:
    if given is not None:
        return [int(token) for token in given]
    if meta is None:
        raise CallError("the dump does not say its token ids: give them")
    return list(meta.token_ids)


CALLS: dict[str, Call] = {
    "ping": ping,
    "describe": describe,
    "list_dumps": dumps,
    "reference": reference,
    "logits": logits,
    "compare": compare,
    "join": join,
}


def _lazily(module: str, name: str) -> Call:
    """A call whose module is imported when it is first made; the argument names are checked there."""

    def call(**arguments: Any) -> Any:
        function = getattr(importlib.import_module(f"probes.{module}"), name)
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise CallError(f"{name}: {error}") from None
        return function(**arguments)

    return call


CALLS.update(
    {
        "threads": threads,
        "versions": versions,
        "convert": _lazily("convert", "convert"),
        "write_arrow": _lazily("arrow", "write_arrow"),
        "open_dataset": _lazily("source", "open_dataset"),
        "dataset_samples": _lazily("source", "dataset_samples"),
        "dataset_preview": _lazily("source", "dataset_preview"),
        "audit_file": _lazily("audit", "audit_file"),
        "sample_ids": _lazily("audit", "sample_ids"),
        "describe_sample": _lazily("samplestats", "describe_sample"),
        "audit_against_dump": _lazily("audit", "audit_against_dump"),
        "audit_logits": _lazily("audit", "audit_logits"),
        "audit_reference": _lazily("audit", "audit_reference"),
        "audit_arrow": _lazily("audit", "audit_arrow"),
    }
)
