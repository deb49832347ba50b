"""What one look at a run costs beside counting its files, at growing numbers of finished samples.

    python bench/watch_cost.py [--rows 100 1000 10000] [--repeat 20]

For each number a folder of empty files is made in the layout of speculators-v1, and a job's folder with one event for
each sample. Timed in turn, so that whatever else the machine does meets all of them: a look at the job, a look at the
folders, and `os.walk` over the tree, which is what `find | wc -l` does. Medians, as ratios to that walk and to the
first number's look.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from workbench.extract.formats import ROWS_A_FOLDER, shard_folder
from workbench.extract.job.events import Progress
from workbench.extract.job.files import JobFile, JobFiles, Journal
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.watch.foreign import ForeignRun
from workbench.extract.watch.own import OwnRun
from workbench.server import processes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1000, 10_000], help="finished samples")
    parser.add_argument("--repeat", type=int, default=20, help="rounds; each times everything once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subjects = {rows: _subjects(Path(folder) / str(rows), rows) for rows in options.rows}
        _report(_measure(subjects, options.repeat))


def _subjects(folder: Path, rows: int) -> dict[str, Callable[[], object]]:
    """What is timed for one number of samples. The first look at a job reads more than the next ones."""
    foreign, own = folder / "foreign", folder / "own"
    for start in range(0, rows, ROWS_A_FOLDER):
        (foreign / shard_folder(start)).mkdir(parents=True)
    for index in range(rows):
        os.mknod(foreign / shard_folder(index) / f"data_{index}.pt")
    _job(own, rows)
    run = ForeignRun(foreign)
    run.look()
    job = OwnRun(own)
    job.look()
    return {
        "own": lambda: OwnRun(own).look(),
        "own again": job.look,
        "foreign": run.look,
        "walk": lambda: _walk(foreign),
    }


def _job(out: Path, rows: int) -> None:
    files = JobFiles(out)
    process = psutil.Process()
    settings = ExtractSettings(data="data.jsonl", out=str(out))
    identity = processes.since_boot(process)
    files.save(JobFile(run="bench", start=1, pid=process.pid, since_boot=identity, started=0.0, settings=settings))
    journal = Journal(files)
    now = time.time()
    for done in range(rows):
        journal.append(
            Progress(
                time=now - rows + done,
                state="running",
                rows=rows,
                written=done,
                samples_here=done,
                tokens_here=1730 * done,
                bytes_here=92_000_000 * done,
                seconds_here=done,
            )
        )
    journal.close()


def _walk(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def _measure(subjects: dict[int, dict[str, Callable[[], object]]], repeat: int) -> dict[int, dict[str, float]]:
    seconds: dict[int, dict[str, list[float]]] = {rows: {name: [] for name in each} for rows, each in subjects.items()}
    for _ in range(repeat):
        for rows, each in subjects.items():
            for name, do in each.items():
                began = time.perf_counter()
                do()
                seconds[rows][name].append(time.perf_counter() - began)
    return {rows: {name: statistics.median(some) for name, some in each.items()} for rows, each in seconds.items()}


def _report(medians: dict[int, dict[str, float]]) -> None:
    first = next(iter(medians.values()))
    print("ratios of medians of one run; x walk: to counting the files, x first: to the same look in the first line")
    names = ("own", "own again", "foreign")
    print(f"{'samples':>9}" + "".join(f"{name + ' x walk':>18}" for name in names) + f"{'own x first':>18}", end="")
    print(f"{'own again x first':>18}{'foreign x first':>18}{'walk x first':>18}")
    for rows, found in medians.items():
        ratios = [found[name] / found["walk"] for name in names]
        ratios += [found[name] / first[name] for name in (*names, "walk")]
        print(f"{rows:>9,}" + "".join(f"{ratio:>18.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
