"""What watching a server costs: processor time of the sampler at one look a second, over 16 processes.

    python bench/sampler_cost.py [SECONDS]

Starts a parent with 15 children that each have a few threads, and a log that grows; watches them; prints the processor
time of a look, and of the whole watching as a share of a core beside the wall time it was measured over.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench.supervision.target import of_pid
from workbench.supervision.watch import Watch

PROCESSES = 16
SERVER = """
import ctypes, os, sys, threading, time
for number in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"sglang::schedul", 0, 0, 0)
        break
for _ in range(20):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
while True:
    print(f"[2026-01-01 00:00:00 TP{os.getpid() % 16}] a line of kind {time.time()}", flush=True)
    time.sleep(1)
"""


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(PROCESSES)], stdout=sink, stderr=sink, start_new_session=True
            )
        try:
            time.sleep(1)
            _measure(server.pid, log, seconds)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _measure(pid: int, log: Path, seconds: float) -> None:
    watch = Watch(of_pid(pid, log=log, port=1))
    looks: list[float] = []
    seen = 0
    with watch:
        watch.look()
        began, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            before = time.process_time()
            seen = len(watch.look().sample.processes)
            looks.append(time.process_time() - before)
            time.sleep(1.0)
        wall, used = time.monotonic() - began, time.process_time() - cpu
    print(f"processes watched           {seen}")
    print(f"looks                       {len(looks)} in {wall:.1f} s")
    middle, most = 1e3 * statistics.median(looks), 1e3 * max(looks)
    print(f"processor time of a look    {middle:.2f} ms (median), {most:.2f} ms (most)")
    print(f"share of one core           {used / wall:.2%} (goal: under 1 %)")


if __name__ == "__main__":
    main()
