"""Does all-reduce add up? Run by path in an interpreter with torch: ``python allreduce.py RANKS [--device cpu]``.

Each rank holds whole numbers that bfloat16 and float32 carry exactly, so that every order of adding gives the same sum
and one wrong element is a wrong element. The last line on stdout is ``{"sizes": […], "wrong": [[bytes, count], …]}``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26)
"""Bytes: from a decode pass of one request to a prefill pass of thousands of tokens."""
REPEATS = 3


def expected(ranks: int) -> int:
    """The sum of what the ranks hold: 1 + 2 + … + ranks."""
    return ranks * (ranks + 1) // 2


def work(rank: int, ranks: int, port: int, device: str, found: Any) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=ranks)
    if device == "cuda":
        torch.cuda.set_device(rank)
    wrong = []
    for size in SIZES:
        for kind in (torch.bfloat16, torch.float32):
            count = 0
            for _ in range(REPEATS):
                held = torch.full((size // kind.itemsize,), float(rank + 1), dtype=kind, device=device)
                dist.all_reduce(held)
                count += int((held != expected(ranks)).sum())
            if count:
                wrong.append([size, count])
    if rank == 0:
        found.put({"sizes": list(SIZES), "wrong": wrong})
    dist.destroy_process_group()


def main() -> None:
    """Run the ranks and print what rank 0 saw."""
    import multiprocessing

    ranks, device = int(sys.argv[1]), "cpu" if "cpu" in sys.argv[2:] else "cuda"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawning = multiprocessing.get_context("spawn")
    found = spawning.SimpleQueue()
    processes = [spawning.Process(target=work, args=(rank, ranks, port, device, found)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a rank failed")
    print(json.dumps(found.get()))


if __name__ == "__main__":
    main()
