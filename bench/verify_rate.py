"""How fast `hsbench verify` reads a data set, beside plain reading of the same files in the same run.

    python -m bench.verify_rate DIR [--rounds 3] [--cold]

Alternates: reading every file with as many threads as there are cores and throwing the bytes away, and
`hsbench verify DIR --all`. `--cold` has the kernel forget the files first (`posix_fadvise`), which makes the disk the
limit; without it the page cache serves both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE = 1 << 22


def files_of(folder: Path) -> list[Path]:
    """The sample files."""
    return [path for path in folder.rglob("*") if path.suffix in (".pt", ".ckpt", ".safetensors")]


def forget(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_all(files: list[Path]) -> float:
    """Seconds to read every byte, with a thread a core."""

    def read(path: Path) -> None:
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass

    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(read, files))
    return time.monotonic() - began


def verify(folder: Path) -> tuple[float, float]:
    """Wall seconds of the command, and the seconds that it says its reading took."""
    command = [sys.executable, "-m", "workbench.cli", "verify", str(folder), "--all", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.monotonic() - began
    report = json.loads(done.stdout)
    return wall, float(report["read_seconds"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    files = files_of(options.folder)
    nbytes = sum(path.stat().st_size for path in files)
    plain, walls, reads = [], [], []
    for number in range(options.rounds):
        if options.cold:
            forget(files)
        plain.append(read_all(files))
        if options.cold:
            forget(files)
        wall, reading = verify(options.folder)
        walls.append(wall)
        reads.append(reading)
        print(
            f"round {number + 1}: plain {nbytes / plain[-1] / 1e9:.2f} GB/s, verify {nbytes / reading / 1e9:.2f} GB/s"
        )
    ratio = statistics.median(p / r for p, r in zip(plain, reads, strict=True))
    print(f"{len(files)} files, {nbytes / 1e9:.2f} GB; verify reads at {ratio:.3f} of plain reading (median)")
    print(f"whole command {statistics.median(walls):.1f} s, its reading and checking {statistics.median(reads):.1f} s")


if __name__ == "__main__":
    main()
