"""The extraction job against a real SGLang: killed at random moments, paused by full folders, resumed, and compared.

HSBENCH_TEST_KILLS sets how many times something is killed; a few by default, since a server takes half a minute to start.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import Command
from tests.engine.human_eval import chats

pytestmark = pytest.mark.engine

ROWS = 200
KILLS = int(os.environ.get("HSBENCH_TEST_KILLS", "6"))
SEED = int(os.environ.get("HSBENCH_TEST_SEED", "1"))
SERVER_KILLS = max(1, KILLS // 5)
LONGEST = 80
"""Tokens of a row at most: 200 rows take the demo model on two cores about 40 s."""


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

    def finish(self, timeout: float = 400) -> int:
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


def server_pid(hsbench: Command) -> int:
    record = json.loads((hsbench.home / "state/hsbench/servers/default/job.json").read_text())
    return int(record["pid"])


def index_of(out: Path) -> dict[int, dict[str, Any]]:
    """The index's lines by row; a row twice is allowed only where its file was lost, which no test here does."""
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert len(lines) == len({line["index"] for line in lines})
    return {line["index"]: line for line in lines}


def distances(one: Path, other: Path) -> Iterator[float]:
    """Of every sample, the greatest mean per-token relative distance of a state; ids and masks must be equal."""
    for index in range(ROWS):
        a, b = (torch.load(out / f"rows_0-2000/data_{index}.pt", weights_only=True) for out in (one, other))
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert torch.equal(a["loss_mask"], b["loss_mask"])
        pairs = zip(a["hidden_states"], b["hidden_states"], strict=True)
        yield max(float(((x.float() - y.float()).norm(dim=1) / x.float().norm(dim=1)).mean()) for x, y in pairs)


def test_whatever_is_killed_the_data_set_is_that_of_an_undisturbed_run(
    hsbench: Command, server: str, data: Path, undisturbed: Path
) -> None:
    chance = random.Random(SEED)
    victims = ["server"] * SERVER_KILLS + ["job"] * (KILLS - SERVER_KILLS)
    chance.shuffle(victims)
    out = data.parent / "killed"
    job = Job(hsbench, str(data), *options(out, 5))
    killed = []
    for victim in victims:
        if not job.running():
            job.start()
        time.sleep(chance.uniform(0.2, 12.0))
        if victim == "job" and job.running():
            job.kill()
        elif victim == "server":
            os.kill(server_pid(hsbench), signal.SIGKILL)
        killed.append(victim)
    assert job.finish() == 0, job.log.read_text()[-3000:]
    assert set(index_of(out)) == set(index_of(undisturbed)) == set(range(ROWS))
    assert not list((hsbench.home / "dumps").glob("req_*")), "dumps are left"
    assert {path.name for path in out.iterdir()} == {path.name for path in undisturbed.iterdir()}
    report = hsbench.json("verify", str(out), "--all")
    assert (report["verdict"], report["checked"]) == ("ok", ROWS)
    repeat = data.parent / "repeat"
    hsbench.ok("extract", str(data), *options(repeat, 5), "--foreground")
    own, disturbed = max(distances(undisturbed, repeat)), max(distances(undisturbed, out))
    print(f"repeatability {own:.4f}, killed {disturbed:.4f}, kills {killed}")
    assert disturbed <= max(2 * own, 0.02)
