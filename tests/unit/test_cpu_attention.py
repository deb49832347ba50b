"""Attention of the CPU platform against its definition, written out here token by token in double precision."""

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trees import installed_root

LENGTHS = (5, 1, 9)
SLOTS = 64
HEADS = 4


@pytest.fixture(scope="module")
def ours() -> Any:
    """The module under test; importing SGLang on a CPU warns of what is missing for GPUs."""
    assert installed_root().is_dir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from patches import cpu_attention
    return cpu_attention


class Pool:
    """A cache with `width` columns a key. The value is its first `value` columns, or lies in a buffer of its own."""

    def __init__(self, heads: int, width: int, value: int | None) -> None:
        self.keys = torch.zeros(SLOTS, heads, width)
        self.values = self.keys[..., :value] if value is not None else torch.zeros(SLOTS, heads, width)
        self.layers_mapping = {0: (0, True)}
        self.swa = torch.arange(SLOTS)

    def set_kv_buffer(self, layer: Any, where: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        at = where.loc if where.swa_loc is None else where.swa_loc
        self.keys[at] = k.view(-1, *self.keys.shape[1:])
        if self.values.data_ptr() != self.keys.data_ptr():
            self.values[at] = v.view(-1, *self.values.shape[1:])

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
        return self.swa[slots.long()]


def layer(query_heads: int, key_heads: int, width: int, value: int, window: int = -1) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    return SimpleNamespace(
        tp_q_head_num=query_heads,
        tp_k_head_num=key_heads,
        tp_v_head_num=key_heads,
        qk_head_dim=width,
        v_head_dim=value,
        scaling=width**-0.5,
        sliding_window_size=window,
        layer_id=0,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
    )


def tokens_of_requests() -> torch.Tensor:
    """[requests, longest + room]: slots in no order, so that a mix-up of requests or places shows."""
    shuffled = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(3))
    return shuffled[: len(LENGTHS) * 12].view(len(LENGTHS), 12).to(torch.int32)


def batch(new: tuple[int, ...], prefixes: tuple[int, ...]) -> Any:
    """A pass that adds `new` tokens to requests that hold `prefixes` already; its last request is listed first."""
    table, order = tokens_of_requests(), [2, 0, 1]
    spans = [(n, p) for n, p in zip(new, prefixes, strict=True)]
    slots = [table[row, p : p + n] for row, (n, p) in zip(order, spans, strict=True)]
    return SimpleNamespace(
        req_pool_indices=torch.tensor(order),
        seq_lens=torch.tensor([n + p for n, p in spans]),
        extend_seq_lens=torch.tensor(new),
        extend_prefix_lens=torch.tensor(prefixes),
        extend_prefix_lens_cpu=list(prefixes),
        out_cache_loc=torch.cat(slots).long(),
        encoder_lens=None,
    )


@pytest.fixture
def backend(ours: Any) -> Callable[[Pool], Any]:
    def make(pool: Pool) -> Any:
        table = SimpleNamespace(req_to_token=tokens_of_requests())
        return ours.CpuAttnBackend(SimpleNamespace(device="cpu", req_to_token_pool=table, token_to_kv_pool=pool))

    return make


def definition(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, the: Any, sinks: torch.Tensor | None
) -> torch.Tensor:
    """One request: query [new, heads, width] at the end of keys [all, key heads, width]. Loops and `math` only."""
    scale, window = the.scaling, the.sliding_window_size
    new, heads = query.shape[:2]
    out = torch.zeros(new, heads, values.shape[2], dtype=torch.float64)
    for row in range(new):
        at = len(keys) - new + row
        seen = [j for j in range(at + 1) if window < 0 or at - j <= window]
        for head in range(heads):
            shared = head * keys.shape[1] // heads
            logits = [scale * float(query[row, head].double() @ keys[j, shared].double()) for j in seen]
            weights = [math.exp(logit) for logit in logits]
            total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
            for weight, j in zip(weights, seen, strict=True):
                out[row, head] += weight / total * values[j, shared].double()
    return out


def expected(
    query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], the: Any, sinks: torch.Tensor | None
) -> torch.Tensor:
    """The whole batch, request after request; `keys` and `values` hold all tokens of each."""
    rows, start = [], 0
    news = [len(query)] if len(keys) == 1 else NEW[len(query)]
    for new, k, v in zip(news, keys, values, strict=True):
        part = query[start : start + new]
        rows.append(definition(part, k, v, the, sinks))
        start += new
    return torch.cat(rows)


NEW = {sum(LENGTHS): LENGTHS, len(LENGTHS): (1,) * len(LENGTHS), 9: (4, 2, 3)}
"""Rows of a batch → new tokens of each request."""


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def held(pool: Pool, the_batch: Any, which: str) -> list[torch.Tensor]:
    """Keys or values of each request of the batch, read from the cache by its table."""
    table = tokens_of_requests()
    rows = zip(the_batch.req_pool_indices.tolist(), the_batch.seq_lens.tolist(), strict=True)
    return [getattr(pool, which)[table[row, :length].long()] for row, length in rows]


def test_mla_extend_attends_to_the_keys_given(ours: Any, backend: Callable[[Pool], Any]) -> None:
    """qk 24 wide, v 16, while the cache holds latent rows of 40."""
    the, the_batch, rows = layer(HEADS, HEADS, 24, 16), batch(LENGTHS, (0, 0, 0)), sum(LENGTHS)
    q, k, v = drawn(rows, HEADS, 24, seed=1), drawn(rows, HEADS, 24, seed=2), drawn(rows, HEADS, 16, seed=3)
    got = backend(Pool(1, 40, 32)).forward_extend(q.flatten(1), k, v, the, the_batch, save_kv_cache=False)
    want = expected(q, list(k.split(LENGTHS)), list(v.split(LENGTHS)), the, None)
    assert got.shape == (rows, HEADS * 16)
    assert torch.allclose(got.view(rows, HEADS, 16).double(), want, atol=1e-6)


@pytest.mark.parametrize(("new", "prefixes"), [((1, 1, 1), (6, 3, 0)), ((4, 2, 3), (5, 0, 7))])
def test_mla_in_the_latent_space(
    ours: Any, backend: Callable[[Pool], Any], new: tuple[int, ...], prefixes: tuple[int, ...]
) -> None:
    """Decode, and EXTEND after a prefix: one key head of rank 32 and rotary 8, its first 32 columns the value."""
    the, the_batch, rows = layer(HEADS, 1, 40, 32), batch(new, prefixes), sum(new)
    pool = Pool(1, 40, 32)
    pool.keys.copy_(drawn(SLOTS, 1, 40, seed=4))
    q, k = drawn(rows, HEADS, 40, seed=5), drawn(rows, 1, 40, seed=6)
    decode = new == (1, 1, 1)
    forward = backend(pool).forward_decode if decode else backend(pool).forward_extend
    got = forward(q.flatten(1), k, k[..., :32], the, the_batch)
    assert torch.equal(pool.keys[the_batch.out_cache_loc], k)
    want = expected(q, held(pool, the_batch, "keys"), held(pool, the_batch, "values"), the, None)
    assert torch.allclose(got.view(rows, HEADS, 32).double(), want, atol=1e-6)


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize(("new", "prefixes"), [(LENGTHS, (0, 0, 0)), ((1, 1, 1), (8, 2, 0)), ((4, 2, 3), (5, 0, 7))])
def test_attention_sinks_and_window(
    ours: Any, backend: Callable[[Pool], Any], new: tuple[int, ...], prefixes: tuple[int, ...], window: int
) -> None:
    the, the_batch, rows = layer(HEADS, 2, 16, 16, window), batch(new, prefixes), sum(new)
    pool = Pool(2, 16, None)
    pool.keys.copy_(drawn(SLOTS, 2, 16, seed=7))
    pool.values.copy_(drawn(SLOTS, 2, 16, seed=8))
    q, k, v = (drawn(rows, heads, 16, seed=9 + heads) for heads in (HEADS, 2, 2))
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    forward = backend(pool).forward_decode if new == (1, 1, 1) else backend(pool).forward_extend
    got = forward(q.flatten(1), k, v, the, the_batch, sinks=sinks)
    want = expected(q, held(pool, the_batch, "keys"), held(pool, the_batch, "values"), the, sinks)
    assert torch.allclose(got.view(rows, HEADS, 16).double(), want, atol=1e-6)
    without = expected(q, held(pool, the_batch, "keys"), held(pool, the_batch, "values"), the, None)
    assert not torch.allclose(want, without, atol=1e-2)


def test_a_layer_with_a_window_has_a_cache_of_its_own(ours: Any, backend: Callable[[Pool], Any]) -> None:
    """The same tokens lie in other places there; the places of the full cache hold rubbish."""
    the, the_batch = layer(HEADS, 2, 16, 16, 3), batch((1, 1, 1), (8, 2, 0))
    pool = Pool(2, 16, None)
    pool.swa = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(12))
    pool.keys.copy_(drawn(SLOTS, 2, 16, seed=13))
    pool.values.copy_(drawn(SLOTS, 2, 16, seed=14))
    q, k, v = drawn(3, HEADS, 16, seed=15), drawn(3, 2, 16, seed=16), drawn(3, 2, 16, seed=17)
    made = backend(pool)
    made.use_sliding_window_kv_pool = True
    made.swa_out_cache_loc = pool.swa[the_batch.out_cache_loc]
    got = made.forward_decode(q.flatten(1), k, v, the, the_batch, sinks=torch.zeros(HEADS))
    moved = SimpleNamespace(keys=pool.keys[pool.swa], values=pool.values[pool.swa])
    want = expected(q, held(moved, the_batch, "keys"), held(moved, the_batch, "values"), the, torch.zeros(HEADS))  # type: ignore[arg-type]
    assert torch.allclose(got.view(3, HEADS, 16).double(), want, atol=1e-6)


def test_ordinary_layers_are_left_to_sglang(ours: Any, backend: Callable[[Pool], Any]) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    the, the_batch, rows = layer(HEADS, 2, 16, 16), batch(LENGTHS, (0, 0, 0)), sum(LENGTHS)
    q, k, v = drawn(rows, HEADS * 16, seed=1), drawn(rows, 2, 16, seed=2), drawn(rows, 2, 16, seed=3)
    got = backend(Pool(2, 16, None)).forward_extend(q, k, v, the, the_batch)
    stock = TorchNativeAttnBackend.forward_extend(backend(Pool(2, 16, None)), q, k, v, the, the_batch)
    assert torch.equal(got, stock)


def test_what_is_not_known_is_refused(ours: Any, backend: Callable[[Pool], Any]) -> None:
    the, rows = layer(HEADS, HEADS, 24, 16), sum(LENGTHS)
    q, k, v = drawn(rows, HEADS * 24, seed=1), drawn(rows, HEADS, 24, seed=2), drawn(rows, HEADS, 16, seed=3)
    made = backend(Pool(1, 40, 32))
    with pytest.raises(NotImplementedError, match="topk_indices"):
        made.forward_extend(q, k, v, the, batch(LENGTHS, (0, 0, 0)), topk_indices=torch.zeros(1))
    with pytest.raises(NotImplementedError, match="cached prefix"):
        made.forward_extend(q, k, v, the, batch((4, 2, 3), (5, 0, 7)), save_kv_cache=False)


def test_it_is_installed_only_when_selected(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    from patches import cpu_platform

    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    assert cpu_platform.platform() is None
    before = dict(ATTENTION_BACKENDS)
    for name in cpu_platform.ATTENTION_NAMES:
        assert before[name] is not ours.CpuAttnBackend
        monkeypatch.setitem(ATTENTION_BACKENDS, name, before[name])
    monkeypatch.setenv("SGLANG_PLATFORM", "hsbench_cpu")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    assert cpu_platform.platform() == "patches.cpu_platform:CpuPlatform"
    cpu_platform.CpuPlatform().init_backend()
    assert all(ATTENTION_BACKENDS[name] is ours.CpuAttnBackend for name in cpu_platform.ATTENTION_NAMES)
