"""What the app takes of a core while it stands open and watches.

    python -m bench.app_table [--seconds 20] [--case server ...]

Cases: `idle`, an app whose mode sees nothing; `server`, the Server mode at one look a second over a server of 16 ranks
whose log grows by some lines a second. Processor time of the whole app, drawn without a terminal at 120x40. The ranks
sleep: they are not part of what is measured, and take no core from it.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.app_support import Fixed, PaintedApp, app_over, status_of
from workbench.server import processes
from workbench.tui.sources.server_facts import ServerView
from workbench.tui.widgets.server_facts import PROCESSES
from workbench.tui.widgets.table import RowTable

RANKS = 16
GOAL = 0.05
SERVER = """
import ctypes, subprocess, sys, time
rank = sys.argv[1]
if rank == "-":
    for number in range(int(sys.argv[2])):
        code = open(sys.argv[3]).read()
        subprocess.Popen([f"sglang::scheduler_TP{number}", "-c", code, str(number)], executable=sys.executable)
else:
    ctypes.CDLL(None).prctl(15, b"sglang::schedul", 0, 0, 0)
ballast, number = [], 0
while True:
    if rank == "-":
        for _ in range(5):
            number += 1
            print(f"[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 8, #token: {number}", flush=True)
    else:
        ballast.append(bytearray(3 << 20))
        del ballast[16:]
        sum(range(300000))
    time.sleep(1)
"""


def main() -> None:
    """Measure and print."""
    cases: dict[str, Callable[[float], float]] = {"idle": idle, "server": server}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--case", choices=list(cases), nargs="+", default=list(cases))
    options = parser.parse_args()
    for name in options.case:
        share = cases[name](options.seconds)
        print(f"{name:<10}{share:7.2%} of a core over {options.seconds:.0f} s (goal: under {GOAL:.0%})", flush=True)


def idle(seconds: float) -> float:
    """An app that sees nothing change."""
    app = app_over([], server=Fixed(ServerView()))
    return asyncio.run(_share(app, seconds, lambda: True))


def server(seconds: float) -> float:
    """The Server mode at work."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as (pid, log):
        born = processes.since_boot(psutil.Process(pid))
        app = app_over([status_of(str(log), pid, born, "starting")])
        return asyncio.run(_share(app, seconds, lambda: _rows(app) >= RANKS))


def _rows(app: PaintedApp) -> int:
    return sum(len(table.keys()) for table in app.screen.query(RowTable) if table.plan == PROCESSES)


async def _share(app: PaintedApp, seconds: float, ready: Callable[[], bool]) -> float:
    async with app.run_test(size=(120, 40)):
        await asyncio.sleep(3.0)
        assert ready(), "the rows are not there"
        painted, shares = app.painted, []
        for _ in range(4):
            began, used = time.monotonic(), time.process_time()
            await asyncio.sleep(seconds / 4)
            shares.append((time.process_time() - used) / (time.monotonic() - began))
        print(f"          {app.painted - painted} paints; quarters {', '.join(f'{share:.2%}' for share in shares)}")
    return statistics.fmean(shares)


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, Path]]:
    """A process with ranks as children, and its log."""
    code, log = folder / "server.py", folder / "server.log"
    code.write_text(SERVER)
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, str(code), "-", str(RANKS), str(code)], stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        time.sleep(2.0)
        yield child.pid, log
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


if __name__ == "__main__":
    main()
