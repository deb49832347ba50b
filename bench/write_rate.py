"""How fast dumps become a data set on a disk, beside the same bytes written to that disk plainly, in one run.

    python -m bench.write_rate --out DIR/set [--dumps /dev/shm/dumps] [--writers N] [--samples 100] [--rounds 3]

Nothing is served: dumps lie ready, as the recorder writes them, and everything between them and durable, indexed
samples is the product's own. The plain way writes files of a sample's size and syncs each, with several numbers of
threads; the best of them is the disk's rate. Prints both, their ratio a round, and where a sample's time goes.
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.host_rates import disk_rates, refuse_used
from patches.recorder.passes import Slot
from patches.recorder.store import DumpStore
from workbench.extract.pool import WorkerPool
from workbench.extract.record import Engine, RunRecord, Source, States
from workbench.extract.sample import Sample
from workbench.extract.writer import DatasetWriter

DIFFERENT = 8
"""Dumps with bytes of their own; the others are links to them, so that memory need not hold all."""
BLOCKS = 32


def make_dumps(folder: Path, samples: int, tokens: int, hidden: int) -> list[Path]:
    """So many dumps of three aux states and the last one, bfloat16."""
    shutil.rmtree(folder, ignore_errors=True)
    store = DumpStore(folder)
    ids = list(range(tokens))
    slots = [*(Slot(f"aux_{n}", n, n + 1, None) for n in range(3)), Slot("final", BLOCKS - 1, None, "pre")]
    about = {
        "schema": 1,
        "request_id": "hs-0",
        "forward_mode": "EXTEND",
        "token_ids": ids,
        "num_tokens": tokens,
        "prefix_len": 0,
        "num_blocks": BLOCKS,
        "final_norm": "pre",
        "pass": {"index": 0, "requests": 1, "rows": tokens, "row": 0},
    }
    for _ in range(min(DIFFERENT, samples)):
        store.write("hs-0", [(slot, torch.randn(tokens, hidden).to(torch.bfloat16)) for slot in slots], dict(about))
    made = sorted(folder.glob("req_*"))
    for number in range(len(made), samples):
        shutil.copytree(made[number % len(made)], folder / f"req_{number}", copy_function=os.link)
    return sorted(folder.glob("req_*"))


def record(options: argparse.Namespace) -> RunRecord:
    """A run of these dumps."""
    states = States(after_block=(0, 1, 2), num_blocks=BLOCKS, hidden_size=options.hidden)
    source = Source(path="made up", fingerprint="0", rows=options.samples, form="input_ids", mask="all")
    return RunRecord(format=options.format, states=states, source=source, engine=Engine(model="made up"))


class Stopwatch:
    """Adds up seconds by name, from several threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[name] += time.monotonic() - began

    def around(self, name: str, function: Any) -> Any:
        """The function, timed."""

        def timed(*args: Any, **named: Any) -> Any:
            with self.of(name):
                return function(*args, **named)

        return timed


def stage(options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """Seconds and bytes of one pass of all dumps through the writer, and where the threads' time went."""
    dumps = make_dumps(options.dumps, options.samples, options.tokens, options.hidden)
    watch, writer = Stopwatch(), DatasetWriter(options.out, record(options), pool)
    ids, mask = tuple(range(options.tokens)), (1,) * options.tokens
    threads = options.at_once or writer.at_once
    writer._convert = watch.around("worker, waiting for one included", writer._convert)  # type: ignore[method-assign]

    def write(index: int) -> int:
        with watch.of("all"):
            return writer.write(Sample(index=index, input_ids=ids, loss_mask=mask), dumps[index]).nbytes

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as crew:
        nbytes = sum(crew.map(write, range(len(dumps))))
    seconds = time.monotonic() - began
    writer.close()
    shutil.rmtree(options.out)
    each = {name: value / len(dumps) for name, value in watch.seconds.items()}
    return {"gb_s": nbytes / seconds / 1e9, "seconds": seconds, "threads": threads, "seconds_of_a_sample": each}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two."""
    found: dict[str, Any] = {"options": {name: str(value) for name, value in vars(options).items()}, "rounds": []}
    piece = options.tokens * options.hidden * 2 * 4
    nbytes = options.samples * piece
    with WorkerPool(sys.executable, options.writers) as pool:
        pool.start(pool.size)
        for number in range(options.rounds):
            disk = disk_rates(options.out.absolute().parent, nbytes, options.threads, piece)
            one = {"disk": disk, **stage(options, pool)}
            one["ratio"] = one["gb_s"] * 1e9 / max(disk.values())
            found["rounds"].append(one)
            print(line(number + 1, one), flush=True)
    return found


def line(number: int, one: dict[str, Any]) -> str:
    """One round in words."""
    disk = ", ".join(f"{rate / 1e9:.2f} ({threads} threads)" for threads, rate in one["disk"].items())
    each = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in one["seconds_of_a_sample"].items())
    mine = f"{one['gb_s']:.2f} GB/s with {one['threads']} threads"
    return f"round {number}: {mine}; disk {disk}; ratio {one['ratio']:.3f}; {each}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dumps", type=Path, default=Path("/dev/shm/write-rate"))
    parser.add_argument("--format", default="speculators-v1")
    parser.add_argument("--writers", type=int)
    parser.add_argument("--at-once", type=int, help="samples under way; as many as --writers: nobody else syncs")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for folder in (options.out, options.dumps):
        refuse_used(folder)
    try:
        found = measure(options)
    finally:
        for folder in (options.out, options.dumps):
            shutil.rmtree(folder, ignore_errors=True)
    print(f"median ratio {statistics.median(one['ratio'] for one in found['rounds']):.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
