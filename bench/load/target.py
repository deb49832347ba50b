"""The server that is measured: where it is, and what it says of itself."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bench.load.spec import Api
from workbench.errors import RequestRefused, ServerError
from workbench.server.client import SglangClient
from workbench.server.secrets import mask_text

TOLD = (
    "version",
    "tp_size",
    "dp_size",
    "dtype",
    "quantization",
    "attention_backend",
    "stream_interval",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_custom_all_reduce",
    "speculative_algorithm",
    "chunked_prefill_size",
    "max_running_requests",
)
"""Fields of SGLang's `/server_info` without which figures cannot be compared."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answers."""

    url: str
    model: str
    facts: dict[str, Any] = {}


class _Server(SglangClient):
    def models(self) -> list[str]:
        """The names of `/v1/models`."""
        answer = self._json("GET", "/v1/models")
        found = answer.get("data", []) if isinstance(answer, Mapping) else []
        return [str(model["id"]) for model in found if isinstance(model, Mapping) and "id" in model]


def target_of(url: str, api: Api, model: str | None = None, api_key: str | None = None) -> Target:
    """Ask the server for its model and, with SGLang's API, for its settings.

    Raises:
        HsbenchError: it does not answer, or not as a server of this API does.
    """
    base = url.rstrip("/").removesuffix("/v1")
    with _Server(base, timeout=30.0, api_key=api_key) as server:
        if api == "native":
            told = server.model_info().get("model_path")
            return Target(url=server.url, model=model or str(told), facts=_facts(server))
        models = [model] if model else server.models()
        if not models:
            raise ServerError(f"{server.url}/v1/models names no model", "name it with --model")
        return Target(url=server.url, model=models[0], facts=_facts(server))


def _facts(server: SglangClient) -> dict[str, Any]:
    """None for a server that is not SGLang's."""
    try:
        info = server.server_info()
    except (RequestRefused, ServerError):
        return {}
    known = {name: info[name] for name in TOLD if info.get(name) is not None}
    return {name: mask_text(value) if isinstance(value, str) else value for name, value in known.items()}
