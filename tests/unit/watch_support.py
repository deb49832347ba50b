"""What the tests of watching share: jobs made by hand, and folders of a foreign run with empty or sparse files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from workbench.extract.job.events import JobEvent, Preflight, Progress
from workbench.extract.job.files import JobFile, JobFiles, Journal
from workbench.extract.job.settings import ExtractSettings
from workbench.server import processes

T0 = 1_000_000.0


def job_file(out: Path, started: float = T0, alive: bool = True) -> JobFile:
    """A job whose process is this one, or one that has ended."""
    pid, since_boot = os.getpid(), processes.since_boot(psutil.Process())
    if not alive:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        pid = gone.pid
    settings = ExtractSettings(data="/data.jsonl", out=str(out))
    return JobFile(run="abcd", start=1, pid=pid, since_boot=since_boot, started=started, settings=settings)


def make_job(out: Path, events: list[JobEvent], alive: bool = True, started: float = T0) -> JobFiles:
    """A job's folder with these events."""
    files = JobFiles(out)
    files.save(job_file(out, started, alive))
    tell(files, *events)
    return files


def tell(files: JobFiles, *events: JobEvent) -> None:
    journal = Journal(files)
    for event in events:
        journal.append(event)
    journal.close()


def preflight(**changes: Any) -> Preflight:
    whole: dict[str, Any] = {
        "time": T0 + 1,
        "rows": 1000,
        "done": 0,
        "tokens": 1e6,
        "tokens_low": 9e5,
        "looked_at": 1000,
        "bytes_per_token": 100,
        "bytes_needed": 1e8,
        "free_bytes": 10**12,
        "min_free_bytes": 1 << 30,
        "dump_free_bytes": 1 << 36,
        "high_water_bytes": 1 << 35,
        "longest": 2048,
        "after_block": (0, 1, 2),
    }
    return Preflight(**{**whole, **changes})


def picture(seconds: float, tokens: int, wall: float | None = None, **changes: Any) -> Progress:
    """A job that makes samples of 100 tokens and 1,000 bytes a token; `wall` seconds after T0."""
    whole: dict[str, Any] = {
        "time": T0 + (seconds if wall is None else wall),
        "state": "running",
        "rows": 1000,
        "written": tokens // 100,
        "tokens": tokens,
        "tokens_expected": 1e6,
        "nbytes": tokens * 1000,
        "samples_here": tokens // 100,
        "tokens_here": tokens,
        "bytes_here": tokens * 1000,
        "seconds_here": seconds,
    }
    return Progress(**{**whole, **changes})


def foreign_rows(folder: Path, count: int, size: int = 0, suffix: str = ".pt", a_folder: int = 2000) -> Path:
    """The seed's layout with `count` samples."""
    for start in range(0, count, a_folder):
        rows = folder / f"rows_{start}-{start + a_folder}"
        rows.mkdir(parents=True)
        numbered_files(rows, "data_", suffix, range(start, min(count, start + a_folder)), size)
    return folder


def numbered_files(folder: Path, prefix: str, suffix: str, numbers: range, size: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = f"{folder}/{prefix}{number}{suffix}"
        os.mknod(path)
        if size:
            os.truncate(path, size)


def dump(folder: Path, number: int, size: int) -> None:
    """One `req_N` of `size` bytes."""
    (folder / f"req_{number}").mkdir(parents=True)
    (folder / f"req_{number}" / "aux_0.pt").write_bytes(b"x" * size)
