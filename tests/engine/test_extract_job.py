"""The extraction job against a real SGLang: killed at random moments, paused by full folders, resumed, and compared.

HSBENCH_TEST_KILLS sets how many times something is killed; a few by default, since a server takes long to
start. HSBENCH_TEST_REPORT names a file for the distances that were measured.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Command
from tests.engine.distances import distances
from tests.engine.human_eval import chats

pytestmark = pytest.mark.engine

ROWS = 120
KILLS = int(os.environ.get("HSBENCH_TEST_KILLS", "3"))
SEED = int(os.environ.get("HSBENCH_TEST_SEED", "1"))
SERVER_KILLS = max(1, KILLS // 5)
REPEATS = 0.001
"""What two undisturbed runs differ by, at most: on these CPUs it was measured as nothing at all."""
LONGEST = 80
"""Tokens of a row at most: 120 rows take the demo model on two cores about 25 s."""


class Job:
    """`hsbench extract` in the foreground, as a process that can be killed."""

    def __init__(self, hsbench: Command, *arguments: str) -> None:
        self.command = [sys.executable, "-m", "workbench.cli", "extract", *arguments, "--foreground"]
        self.hsbench = hsbench
        self.process: subprocess.Popen[bytes] | None = None
        self.log = hsbench.home / "job.log"

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.hsbench.env, cwd="/")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def finish(self, timeout: float = 900) -> int:
        """Its exit code, once it has ended by itself."""
        if not self.running():
            self.start()
        assert self.process is not None
        return self.process.wait(timeout)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(ROWS, 80)))
    return path


@pytest.fixture(scope="module")
def undisturbed(hsbench: Command, server: str, data: Path) -> Path:
    """A run from beginning to end, eight requests at a time."""
    out = data.parent / "undisturbed"
    hsbench.ok("extract", str(data), *options(out, 8), "--foreground")
    return out


def options(out: Path, concurrency: int) -> list[str]:
    some = ["--max-seq-len", str(LONGEST), "--baseline", "0", "--min-free", "0.1"]
    return ["--out", str(out), "--concurrency", str(concurrency), *some]


def kill_server(hsbench: Command) -> None:
    """Kill the server, starting or ready, as soon as there is one."""
    record = hsbench.home / "state/hsbench/servers/default/job.json"
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(json.loads(record.read_text())["pid"]), signal.SIGKILL)
            return
        time.sleep(0.05)
    raise AssertionError("no server to kill")


def wait_until_sending(job: Job, out: Path, seconds: float = 400) -> None:
    """Until this start of the job has samples in flight, or is over."""
    end = time.monotonic() + seconds
    assert job.process is not None
    while job.running() and time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            mine = json.loads((out / ".hsbench/job.json").read_text())["pid"] == job.process.pid
            if mine and last_picture(out)["state"] == "running":
                return
        time.sleep(0.05)


def index_of(out: Path) -> dict[int, dict[str, Any]]:
    """The index's lines by row; a row twice is allowed only where its file was lost, which no test here does."""
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert len(lines) == len({line["index"] for line in lines})
    return {line["index"]: line for line in lines}


def test_whatever_is_killed_the_data_set_is_that_of_an_undisturbed_run(
    hsbench: Command, server: str, data: Path, undisturbed: Path
) -> None:
    others = set((hsbench.home / "dumps").glob("req_*"))  # of probes
    chance = random.Random(SEED)
    victims = ["server"] * SERVER_KILLS + ["job"] * (KILLS - SERVER_KILLS)
    chance.shuffle(victims)
    out = data.parent / "killed"
    job = Job(hsbench, str(data), *options(out, 5))
    killed = []
    for victim in victims:
        if not job.running():
            job.start()
        if chance.random() < 0.25:  # whatever it is at
            time.sleep(chance.uniform(0.0, 8.0))
        else:
            wait_until_sending(job, out)
            time.sleep(chance.uniform(0.0, 2.0))
        if victim == "job" and job.running():
            job.kill()
        elif victim == "server":
            kill_server(hsbench)
        killed.append(victim)
    assert job.finish() == 0, job.log.read_text()[-3000:]
    assert set(index_of(out)) == set(index_of(undisturbed)) == set(range(ROWS))
    assert set((hsbench.home / "dumps").glob("req_*")) <= others, "dumps are left"
    assert {path.name for path in out.iterdir()} == {path.name for path in undisturbed.iterdir()}
    audit = hsbench.json("verify", str(out), "--all")
    assert (audit["verdict"], audit["checked"]) == ("ok", ROWS)
    disturbed = max(distances(ROWS, undisturbed, out))
    if report := os.environ.get("HSBENCH_TEST_REPORT"):
        repeat = data.parent / "repeat"
        hsbench.ok("extract", str(data), *options(repeat, 5), "--foreground")
        own = max(distances(ROWS, undisturbed, repeat))
        Path(report).write_text(json.dumps({"repeated": own, "killed": disturbed, "kills": killed, "seed": SEED}))
    assert disturbed <= REPEATS


@contextmanager
def small(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs on a folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def keep_full(folder: Path, stop: threading.Event) -> None:
    """Take the room that dumps leave behind too."""
    with open(folder / "ballast", "ab", buffering=0) as file:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
            stop.wait(0.02)


def last_picture(out: Path) -> dict[str, Any]:
    """A job that is killed may leave half a line."""
    picture = {"state": "", "why": "", "written": 0}
    with contextlib.suppress(FileNotFoundError):
        for line in (out / ".hsbench/events.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                picture = event if event["type"] == "Progress" else picture
    return picture


def wait_for(job: Job, out: Path, state: str, written: int = 0, seconds: float = 300) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        picture = last_picture(out)
        if picture["state"] == state and picture["written"] >= written:
            return picture
        assert job.running(), job.log.read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError(f"never {state} with {written}: {picture}\n{job.log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def some(data: Path) -> Path:
    """The first rows of the data set."""
    path = data.parent / "some.jsonl"
    path.write_text("".join(data.read_text().splitlines(keepends=True)[:SOME]))
    return path


SOME = 60


def test_a_full_disk_pauses_the_run_and_loses_nothing(hsbench: Command, server: str, some: Path) -> None:
    with small(some.parent / "disk", "40m") as disk:
        out = disk / "out"
        job = Job(hsbench, str(some), "--out", str(out), *options(out, 4)[2:], "--min-free", "0.0")
        job.start()
        wait_for(job, out, "running", written=3)
        ballast = fill(disk)
        picture = wait_for(job, out, "paused")
        assert str(disk) in picture["why"]
        assert job.running()
        job.kill()
        ballast.unlink()
        assert job.finish() == 0, job.log.read_text()[-3000:]
        assert set(index_of(out)) == set(range(SOME))
        assert hsbench.json("verify", str(out), "--all")["verdict"] == "ok"


def test_a_full_dump_folder_holds_requests_back_and_loses_nothing(hsbench: Command, server: str, some: Path) -> None:
    out = some.parent / "backed_up"
    with small(hsbench.home / "dumps", "3m") as dumps:
        job = Job(hsbench, str(some), *options(out, 8))
        job.start()
        picture = wait_for(job, out, "running", written=3)
        assert 0 < picture["high_water_bytes"] <= 1_600_000
        stop, ballast = threading.Event(), dumps / "ballast"
        filler = threading.Thread(target=keep_full, args=(dumps, stop))
        filler.start()
        try:
            picture = wait_for(job, out, "paused")
            assert str(dumps) in picture["why"]
        finally:
            stop.set()
            filler.join()
        ballast.unlink()
        assert job.finish() == 0, job.log.read_text()[-3000:]
    assert set(index_of(out)) == set(range(SOME))
    assert not [line for line in index_of(out).values() if line["status"] != "written"]
    assert hsbench.json("verify", str(out), "--all")["verdict"] == "ok"


def test_what_cannot_fit_is_refused_with_the_numbers(hsbench: Command, server: str, some: Path) -> None:
    with small(some.parent / "tiny", "2m") as disk:
        done = hsbench("extract", str(some), *options(disk / "out", 4))
        assert done.returncode == 6
        assert "4,608 B" in done.stderr
        assert "of which" in done.stderr
        assert "Traceback" not in done.stderr
    with small(hsbench.home / "dumps", "1m"):
        done = hsbench("extract", str(some), *options(some.parent / "never", 4))
        assert done.returncode == 6
        assert "MB needed" in done.stderr


def test_another_data_set_or_other_layers_are_refused_with_what_differs(
    hsbench: Command, undisturbed: Path, data: Path, some: Path
) -> None:
    other = hsbench("extract", str(some), *options(undisturbed, 8), "--foreground")
    assert (other.returncode, f"rows: {ROWS}, now {SOME}" in other.stderr) == (2, True)
    layers = hsbench("extract", str(data), *options(undisturbed, 8), "--layers", "1,2,3", "--foreground")
    assert (layers.returncode, "blocks: [2, 15, 27], now [1, 2, 3]" in layers.stderr) == (2, True)
    changed = data.read_text()
    try:
        data.write_text(changed.replace("return", "yield ", 1))
        other = hsbench("extract", "--resume", str(undisturbed), "--foreground")
        assert (other.returncode, "other contents" in other.stderr) == (2, True)
    finally:
        data.write_text(changed)
    before = (undisturbed / "index.jsonl").read_bytes()
    assert f"{ROWS} of {ROWS} rows are done" in hsbench("extract", "--resume", str(undisturbed), "--foreground").stderr
    assert (undisturbed / "index.jsonl").read_bytes() == before


def test_a_lost_and_a_cut_file_are_made_again(hsbench: Command, server: str, undisturbed: Path, data: Path) -> None:
    out = data.parent / "damaged"
    shutil.copytree(undisturbed, out)
    files = sorted((out / "rows_0-2000").glob("data_*.pt"))
    files[3].unlink()
    os.truncate(files[7], 1000)
    (out / "rows_0-2000/.data_9.pt.1.tmp").write_bytes(b"left over")
    job = json.loads((out / ".hsbench/job.json").read_text())
    job["settings"]["out"] = str(out)
    (out / ".hsbench/job.json").write_text(json.dumps(job))
    assert "2 samples whose file is gone" in hsbench("extract", "--resume", str(out), "--foreground").stderr
    report = hsbench.json("verify", str(out), "--all")
    assert (report["verdict"], report["checked"]) == ("ok", ROWS)


def test_a_detached_job_is_watched_paused_and_stopped(hsbench: Command, server: str, data: Path) -> None:
    out = data.parent / "detached"
    assert hsbench.ok("extract", str(data), *options(out, 4)).strip() == str(out)
    busy = hsbench("extract", str(data), *options(out, 4))
    assert (busy.returncode, "a job already writes into" in busy.stderr) == (2, True)
    hsbench.ok("job", "pause", str(out))
    end = time.monotonic() + 300
    while last_picture(out)["state"] != "paused" and time.monotonic() < end:
        time.sleep(0.1)
    paused = last_picture(out)
    assert (paused["state"], paused["waiting_bytes"]) == ("paused", 0)
    seen = hsbench.json("watch", str(out), "--once")
    assert (seen["kind"], seen["state"], seen["rows"]) == ("own", "paused", ROWS)
    hsbench.ok("job", "continue", str(out))
    hsbench.ok("job", "stop", str(out))
    ended = json.loads((out / ".hsbench/events.jsonl").read_text().splitlines()[-1])
    assert (ended["type"], ended["state"]) == ("Ended", "stopped")
    listed = [json.loads(line) for line in hsbench.ok("job", "list", "--json").splitlines()]
    assert {"state": "stopped", "pid": None, "rows": ROWS}.items() <= next(
        one for one in listed if one["folder"] == str(out)
    ).items()


def test_shards_hold_their_own_rows_in_any_format(hsbench: Command, server: str, some: Path) -> None:
    out = some.parent / "shards"
    for number in range(2):
        wanted = ["--shard", f"{number}/6", "--format", "speculators", "--foreground"]
        hsbench.ok("extract", str(some), *options(out, 4), *wanted)
        folder = out / f"shard_{number}-of-6"
        assert set(index_of(folder)) == set(range(number, SOME, 6))
        assert len(list((folder / "hidden_states").glob("hs_*.safetensors"))) == SOME // 6
        assert hsbench.json("verify", str(folder), "--all")["verdict"] == "ok"


def test_a_server_that_records_the_other_side_of_the_norm_is_refused(hsbench: Command, server: str, some: Path) -> None:
    done = hsbench("extract", str(some), *options(some.parent / "post", 4), "--format", "specforge", "--foreground")
    assert (done.returncode, "takes the last state post-norm; the server records it pre" in done.stderr) == (2, True)
