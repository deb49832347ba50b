"""Is there room for a server? Refuses to start one whose port or GPU memory somebody else holds, and names them."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from workbench.errors import ServerError
from workbench.server import ports, processes
from workbench.server.flags import given

if TYPE_CHECKING:
    from workbench.supervision.gpu import Nvml

FRACTION = 0.8
"""About what SGLang takes of a GPU's memory when it is not told."""


def refuse_taken_port(host: str, port: int) -> None:
    """Raise ServerError when something listens on a port that is not to be replaced; 0 is always free."""
    if not port or ports.is_free(host, port):
        return
    owner = ports.owner(port)
    who = f"by process {_who(owner)}" if owner is not None else "by a process that cannot be seen"
    raise ServerError(f"port {port} is held {who}", "end it, or start on another port; --port 0 takes a free one")


def refuse_full_gpus(argv: Sequence[str], device: str, nvml: "Nvml | None" = None) -> None:
    """Raise ServerError when the memory that a server will take is not there because others hold it.

    Args:
        argv: The server's command line: its `--mem-fraction-static` and `--tp-size` say how much it takes of which
            GPUs. With `--max-total-tokens` it takes what its weights and so many tokens need, which is not known here.
        device: Anything but `cuda` needs no GPU.
        nvml: The GPUs; made here unless given.
    """
    if device != "cuda":
        return
    if nvml is None:
        from workbench.supervision.gpu import Nvml

        nvml = Nvml()
    flags = given(argv)
    if flags.get("--max-total-tokens"):
        return
    wanted = _number(flags.get("--mem-fraction-static"), FRACTION)
    count = int(_number(flags.get("--tp-size") or flags.get("--tp") or flags.get("--tensor-parallel-size"), 1))
    holders = nvml.holders()
    for gpu in nvml.sample():
        if gpu.index not in _used(int(_number(flags.get("--base-gpu-id"), 0)), count):
            continue
        if gpu.total - gpu.used >= wanted * gpu.total:
            continue
        who = [f"process {_who(h.pid)} ({(h.used or 0) / 1e9:.1f} GB)" for h in holders if h.gpu == gpu.index]
        raise ServerError(
            f"GPU {gpu.index} has {(gpu.total - gpu.used) / 1e9:.1f} of {gpu.total / 1e9:.1f} GB free, "
            f"the server takes {wanted:.0%}; held by {', '.join(who) or 'a process that cannot be seen'}",
            "end it (hsbench stop --orphans ends what servers of ours left), or -- --mem-fraction-static less",
        )


def _used(first: int, count: int) -> list[int]:
    """Physical numbers of the GPUs that the server sees as `first` and those after it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [int(part) for part in visible.split(",") if part.strip().isdigit()]
    return numbers[first : first + count] if numbers else list(range(first, first + count))


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text) if text else otherwise
    except ValueError:
        return otherwise


def _who(pid: int) -> str:
    try:
        return processes.describe(psutil.Process(pid))
    except psutil.Error:
        return str(pid)
