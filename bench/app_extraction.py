"""What the Extraction mode costs while it shows a run at work, as a share of a core.

    python bench/app_extraction.py [--seconds 20] [--rows 10000] [--size 120x40]

A job's folder is made whose run has told one picture for each of its samples, and a process of its own appends one
more each second, as a job does. The app draws without a terminal, first in a mode that shows nothing (idle), then in
the Extraction mode with that run selected; both in this process, whose CPU time is taken over so many seconds each.
Also told: the same for a run of a hundred samples, which must cost as much.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.app_support import Fixed, app_over
from workbench.extract.job import roster
from workbench.extract.job.events import Preflight, Progress, Slow
from workbench.extract.job.files import JobFile, JobFiles, Journal
from workbench.extract.job.settings import ExtractSettings
from workbench.server import processes

TOKENS, BYTES = 1730, 92_000_000
"""Of one sample: a Kimi-sized model's three blocks and the last."""
LIMIT = 0.05
"""Of a core, that the app must stay under."""
SETTLE_S = 3.0


class Share(NamedTuple):
    """What the app took."""

    cpu: float
    """Of a core."""
    drawings: float
    """A second; without any the measurement would be of nothing."""

    def __str__(self) -> str:
        return f"{self.cpu:.2%} of a core, {self.drawings:.1f} drawings a second"


def main() -> int:
    """Measure and print; exit code 1 when it is too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rows", type=int, default=10_000, help="samples of the run")
    parser.add_argument("--size", default="120x40", help="columns and lines")
    parser.add_argument("--append", nargs=2, metavar=("DIR", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append is not None:
        append(Path(options.append[0]), int(options.append[1]))
        return 0
    width, _, height = options.size.partition("x")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = os.path.join(folder, "state")
        size = (int(width), int(height))
        idle = asyncio.run(share("server", size, options.seconds))
        shares = {rows: run_share(Path(folder), rows, size, options.seconds) for rows in (100, options.rows)}
    print(f"idle, in a mode without anything to show: {idle}")
    for rows, found in shares.items():
        print(f"Extraction mode, a run of {rows:,} samples at 1 Hz: {found}")
    return int(max(found.cpu for found in shares.values()) >= LIMIT)


def run_share(folder: Path, rows: int, size: tuple[int, int], seconds: float) -> Share:
    """The app's share while another process appends to this run."""
    out = folder / f"run_{rows}"
    writer = make(out, rows)
    roster.note(out)
    try:
        return asyncio.run(share("extraction", size, seconds))
    finally:
        writer.kill()
        writer.wait()


def make(out: Path, rows: int) -> "subprocess.Popen[bytes]":
    """The folder with a picture for each sample but the last ones, and the process that is its job."""
    files = JobFiles(out)
    files.make()
    writer = subprocess.Popen([sys.executable, __file__, "--append", str(out), str(rows)])
    process = psutil.Process(writer.pid)
    settings = ExtractSettings(data="data.jsonl", out=str(out))
    now = time.time()
    files.save(
        JobFile(
            run="bench",
            start=1,
            pid=process.pid,
            since_boot=processes.since_boot(process),
            started=now - rows,
            settings=settings,
        )
    )
    return writer


def append(out: Path, rows: int) -> None:
    """Be the job: tell what was, then one picture a second."""
    journal = Journal(JobFiles(out))
    now = time.time()
    journal.append(preflight(rows, now - rows))
    told = rows - rows // 10
    for done in range(1, told):
        journal.append(picture(done, rows, now - told + done))
    while True:
        time.sleep(1.0)
        told += 1
        journal.append(picture(told, rows, time.time()))


def preflight(rows: int, when: float) -> Preflight:
    """What the run found before its first sample."""
    return Preflight(
        time=when,
        rows=rows,
        done=0,
        tokens=float(rows * TOKENS),
        tokens_low=float(rows * TOKENS),
        looked_at=200,
        bytes_per_token=BYTES // TOKENS,
        bytes_needed=float(rows * BYTES),
        free_bytes=3 << 40,
        min_free_bytes=1 << 30,
        dump_free_bytes=1 << 37,
        high_water_bytes=48 << 30,
        longest=8192,
        after_block=(2, 30, 58),
        plain_tok_s=2000.0,
    )


def picture(done: int, rows: int, when: float) -> Progress:
    """Where the run is; every number changes from one to the next."""
    return Progress(
        time=when,
        state="running",
        rows=rows,
        written=done,
        tokens=done * TOKENS,
        tokens_expected=float(rows * TOKENS),
        nbytes=done * BYTES,
        samples_here=done,
        tokens_here=done * TOKENS + done % 7 * 100,
        bytes_here=done * BYTES,
        seconds_here=float(done),
        in_flight=20 + done % 12,
        waiting_bytes=(1 << 30) + done % 29 * 30_000_000,
        high_water_bytes=48 << 30,
        dump_n=done + 23,
        free_bytes=(3 << 40) - done * BYTES,
        plain_tok_s=2000.0,
        slowest=(Slow(17, 8190, 41.0), Slow(900, 8000, 30.0)),
    )


async def share(mode: str, size: tuple[int, int], seconds: float) -> Share:
    """CPU time of this process by time gone, and how often something was drawn meanwhile."""
    app = app_over((), server=Fixed(None))
    process = psutil.Process()
    async with app.run_test(size=size):
        await app.go(mode)
        await asyncio.sleep(SETTLE_S)
        drawn, began, before = app.painted, time.monotonic(), sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        gone = time.monotonic() - began
        return Share((sum(process.cpu_times()[:2]) - before) / gone, (app.painted - drawn) / gone)


if __name__ == "__main__":
    sys.exit(main())
