"""Which rank this process is, and whether the whole residual stream is on it."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple


class Ranks(NamedTuple):
    """This process among the tensor-parallel ranks.

    `scattered` names the settings that spread the rows of a batch, or the blocks, over several ranks, so that no
    rank sees the whole of either; each as the command line has it.
    """

    tp_rank: int
    tp_size: int
    scattered: tuple[str, ...]


WHOLE = {
    "attn_dp_size": 1,
    "attn_cp_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "enable_layernorm_sp": False,
    "enable_attn_tp_input_scattered": False,
}
"""Setting → its value when nothing is scattered. A release that has not got one of them has not got its effect."""


def read_ranks() -> Ranks:
    """What the engine says of itself. Raises RuntimeError when there are ranks and it does not say which one."""
    sources = list(_sources())
    rank, size = _find(sources, "tp_rank"), _find(sources, "tp_size")
    if rank is None or size is None:
        rank, size = _from_torch()
    scattered = []
    for name, whole in WHOLE.items():
        value = _find(sources, name)
        if value not in (None, whole):
            scattered.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return Ranks(int(rank), int(size), tuple(scattered))


def _sources() -> Any:
    """Where both tested releases keep their parallel sizes: a context, and the arguments of the server."""
    with contextlib.suppress(Exception):
        from sglang.srt.runtime_context import get_parallel

        yield get_parallel()
    with contextlib.suppress(Exception):
        from sglang.srt.server_args import get_global_server_args

        yield get_global_server_args()


def _find(sources: list[Any], name: str) -> Any:
    for source in sources:
        with contextlib.suppress(Exception):
            return getattr(source, name)
    return None


def _from_torch() -> tuple[int, int]:
    """Outside SGLang there is one rank; inside, a rank that is not known must not pass for the writing one."""
    import torch.distributed as ranks

    if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
        raise RuntimeError("this release does not say which tensor-parallel rank a process is")
    return 0, 1
