"""What a host takes by itself: bytes a second to a disk, to a dump folder, and from a GPU."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

PIECE = 64 << 20
COPIES = """
import json, time, torch
source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
found = {}
for name, pinned in (("gpu to pinned memory", True), ("gpu to pageable memory", False)):
    target = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=pinned)
    target.copy_(source)
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(8):
        target.copy_(source)
    torch.cuda.synchronize()
    found[name] = 8 * source.numel() / (time.monotonic() - began)
print(json.dumps(found))
"""


def host_rates(disk: Path, dumps: Path, nbytes: int, threads: int | None) -> dict[str, float]:
    """Bytes a second, by what was written to or copied; without a GPU there are no copies.

    Args:
        disk: A folder beside this one is written to.
        dumps: The dump folder, which is written to with one thread and with many.
        nbytes: To write to each.
        threads: As many as the extraction's writers.
    """
    many = threads or psutil.cpu_count() or 1
    found = {"disk": written(disk.with_name("disk-rate"), nbytes, many)}
    found["dump folder, one thread"] = written(dumps / "rate", nbytes // 4, 1)
    found[f"dump folder, {many} threads"] = written(dumps / "rate", nbytes, many)
    done = subprocess.run([sys.executable, "-c", COPIES], capture_output=True, text=True, check=False)
    return found if done.returncode else {**found, **json.loads(done.stdout)}


def written(folder: Path, nbytes: int, threads: int) -> float:
    """Bytes a second of files of 64 MiB, each synced, so many at a time."""
    piece = bytes(PIECE)
    folder.mkdir(parents=True, exist_ok=True)
    count = max(threads, min(nbytes, shutil.disk_usage(folder).free // 2) // PIECE)

    def write(number: int) -> None:
        with open(folder / str(number), "wb") as file:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(count)))
    rate = count * PIECE / (time.monotonic() - began)
    shutil.rmtree(folder)
    return rate
