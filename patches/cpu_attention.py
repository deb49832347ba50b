"""Attention in plain torch for the layers that SGLang's own `torch_native` backend cannot serve.

It leaves ordinary layers to SGLang and adds two kinds:

MLA (DeepSeek V2 and V3)
    In an EXTEND pass without prefix the layer hands over full keys and values and keeps only a latent vector a
    token in its cache, whose width is another one; so the keys and values given are attended to, not the cache.
    Every other pass attends in the latent space, where a key is `kv_lora_rank + qk_rope_head_dim` wide and its
    first `kv_lora_rank` columns are the value: there the cache holds what SGLang's own code reads.
Attention sinks (gpt-oss)
    Each head has a learned logit that takes part in the softmax and in nothing else, so that a query may attend
    to nothing. `softmax([scores, sink])` without its last column is `softmax(scores) * sigmoid(lse - sink)`, where
    `lse` is the logarithm of the sum of the exponentials of the scores.

The result agrees with SGLang's layout: [tokens, query heads * value width]. Scores are in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    window: int = -1,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of one request's last tokens over all of its tokens.

    Args:
        query: [query tokens, query heads, key width]; the last one stands at the last key.
        key: [tokens, key heads, key width]; query heads are a multiple of key heads.
        value: [tokens, key heads, value width].
        scale: Factor on the scores.
        window: A query sees this many tokens before its own; -1 sees all.
        sinks: [query heads], one logit a head.

    Returns:
        [query tokens, query heads, value width], in the query's dtype.
    """
    groups = query.shape[1] // key.shape[1]
    ahead = _distance(query.shape[0], key.shape[0], query.device)
    hidden = ahead > 0 if window < 0 else (ahead > 0) | (ahead < -window)
    out = query.new_empty(*query.shape[:2], value.shape[2])
    for head in range(key.shape[1]):  # one at a time, as the scores of all of them may not fit into memory
        of_head = slice(head * groups, (head + 1) * groups)
        scores = torch.einsum("qhd,kd->hqk", query[:, of_head].float(), key[:, head].float()) * scale
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(dim=-1)
        if sinks is not None:
            weights = weights * torch.sigmoid(scores.logsumexp(dim=-1) - sinks[of_head].float()[:, None])[..., None]
        out[:, of_head] = torch.einsum("hqk,kd->qhd", weights, value[:, head].float()).to(query.dtype)
    return out


def _distance(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """[queries, keys]: how far the key stands after the query."""
    position = torch.arange(keys, device=device)
    return position[None, :] - position[keys - queries :, None]


class _Call(NamedTuple):
    """One call of a layer's attention, as SGLang makes it."""

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    layer: Any
    batch: Any
    save: bool

    def query(self) -> torch.Tensor:
        return self.q.view(-1, self.layer.tp_q_head_num, self.layer.qk_head_dim)

    def empty_output(self) -> torch.Tensor:
        return self.q.new_empty(self.q.shape[0], self.layer.tp_q_head_num, self.layer.v_head_dim)


class CpuAttnBackend(TorchNativeAttnBackend):  # type: ignore[misc]
    """SGLang's `torch_native` backend, and MLA and attention sinks. The signatures are SGLang's."""

    def forward_extend(  # noqa: PLR0917
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any
    ) -> Any:
        call, sinks = _Call(q, k, v, layer, forward_batch, save_kv_cache), _only_sinks(more)
        if _keys_are_given(call):
            return _extend_over_given(call)
        if sinks is None:
            return super().forward_extend(*call)
        return self._over_cache(call, forward_batch.extend_seq_lens.tolist(), sinks)

    def forward_decode(  # noqa: PLR0917
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any
    ) -> Any:
        call, sinks = _Call(q, k, v, layer, forward_batch, save_kv_cache), _only_sinks(more)
        if sinks is None:
            return super().forward_decode(*call)
        return self._over_cache(call, [1] * len(forward_batch.seq_lens), sinks)

    def _over_cache(self, call: _Call, lengths: list[int], sinks: torch.Tensor) -> torch.Tensor:
        """Store the new keys and values, then attend to each request's own tokens in the cache."""
        layer, batch, pool = call.layer, call.batch, self.token_to_kv_pool
        if call.save and call.k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc), call.k, call.v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        query, out = call.query(), call.empty_output()
        for rows, slots in zip(_rows(lengths), self._slots(layer, batch), strict=True):
            out[rows] = attend(
                query[rows],
                keys[slots],
                values[slots],
                layer.scaling,
                window=layer.sliding_window_size,
                sinks=sinks,
            )
        return out.flatten(1)

    def _slots(self, layer: Any, batch: Any) -> Iterator[torch.Tensor]:
        """Where each request's tokens lie in the layer's cache. Layers with a window have a smaller one."""
        pool, table = self.token_to_kv_pool, self.req_to_token_pool.req_to_token
        windowed = self.use_sliding_window_kv_pool and pool.layers_mapping[layer.layer_id][1]
        for request, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True):
            slots = table[request, :length]
            yield pool.translate_loc_from_full_to_swa(slots) if windowed else slots


def _only_sinks(more: dict[str, Any]) -> torch.Tensor | None:
    """The sinks, if the layer has any. An argument that is not known must not be passed over in silence."""
    sinks: torch.Tensor | None = more.pop("sinks", None)
    unknown = [name for name, value in more.items() if value is not None]
    if unknown:
        raise NotImplementedError(f"attention on the CPU platform does not know {', '.join(unknown)}")
    return sinks


def _keys_are_given(call: _Call) -> bool:
    """Whether keys and values stand in the call and not in the cache: MLA before it is absorbed."""
    return call.k is not None and not call.save and call.layer.qk_head_dim != call.layer.v_head_dim


def _extend_over_given(call: _Call) -> torch.Tensor:
    if any(call.batch.extend_prefix_lens_cpu):
        raise NotImplementedError("MLA with a cached prefix but without its keys")
    layer, query, out = call.layer, call.query(), call.empty_output()
    assert call.k is not None
    assert call.v is not None
    key = call.k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
    value = call.v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
    for rows in _rows(call.batch.extend_seq_lens.tolist()):
        out[rows] = attend(query[rows], key[rows], value[rows], layer.scaling, window=layer.sliding_window_size)
    return out.flatten(1)


def _rows(lengths: list[int]) -> Iterator[slice]:
    """Each request's rows in the flattened batch."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
