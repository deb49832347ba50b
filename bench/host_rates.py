"""What a host takes by itself: bytes a second to a disk, to a dump folder, and from a GPU."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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


def refuse_used(folder: Path) -> None:
    """Raise SystemExit for a folder that holds something, since what is measured there is removed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"{folder} is there already: name a new one, or remove it")


def memory_rates(dumps: Path, nbytes: int, threads: int | None) -> dict[str, float]:
    """Bytes a second, by what was written to or copied; without a GPU there are no copies.

    Args:
        dumps: The dump folder; a folder of our own in it is written to with one thread and with many.
        nbytes: To write.
        threads: As many as the extraction's writers.
    """
    many = threads or psutil.cpu_count() or 1
    found = {"dump folder, one thread": written(dumps, nbytes // 4, 1)}
    found[f"dump folder, {many} threads"] = written(dumps, nbytes, many)
    done = subprocess.run([sys.executable, "-c", COPIES], capture_output=True, text=True, check=False)
    return found if done.returncode else {**found, **json.loads(done.stdout)}


def disk_rates(disk: Path, nbytes: int, threads: Sequence[int], size: int = PIECE) -> dict[str, float]:
    """Bytes a second that the disk takes of synced files of `size` bytes, by the number of threads that write them.

    Args:
        disk: A folder of our own in it is written to.
        nbytes: To write each time.
        threads: The numbers to try.
    """
    return {str(count): written(disk, nbytes, count, size) for count in threads}


def written(within: Path, nbytes: int, threads: int, size: int = PIECE) -> float:
    """Bytes a second of files of `size` bytes, each synced, so many at a time, of half the room at most.

    Raises:
        OSError: there is no room for one file a thread.
    """
    room = shutil.disk_usage(within).free // 2
    if threads * size > room:
        raise OSError(errno.ENOSPC, f"no room for {threads} files of {size:,} B", str(within))
    with tempfile.TemporaryDirectory(prefix="rate-", dir=within) as folder:
        return _rate(Path(folder), bytes(size), max(threads, min(nbytes, room) // size), threads)


def _rate(folder: Path, piece: bytes, count: int, threads: int) -> float:
    def write(number: int) -> None:
        with open(folder / str(number), "wb") as file:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(count)))
    return count * len(piece) / (time.monotonic() - began)
