"""The diagnosis of a real SGLang: a good start, an idle minute, a killed scheduler, and a start that hangs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.server import launches, state
from workbench.server.engine import find_engine
from workbench.server.launch import LaunchSpec, plan, start
from workbench.server.state import ServerRecord
from workbench.server.stop import stop
from workbench.supervision import known_good
from workbench.supervision.target import of_record
from workbench.supervision.verdict import State, Verdict
from workbench.supervision.watch import Watch

pytestmark = pytest.mark.engine

FAULTS = Path(__file__).parent / "faults"


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder
        for launch in launches.launches():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launch.pid, signal.SIGKILL)


class Followed:
    """One real start, watched from its first second through an idle minute."""

    def __init__(self, model: Path) -> None:
        self.record: ServerRecord = start(plan(LaunchSpec(model=str(model), device="cpu", port=0), find_engine()))
        self.watch = Watch(of_record(self.record))
        self.starting: list[Verdict] = []
        self.idle: list[Verdict] = []
        for seen in self.watch.run(900):
            assert seen.verdict.state is not State.DEAD_CHILD, seen.verdict
            if seen.verdict.state is State.READY:
                break
            self.starting.append(seen.verdict)
        self.ready = seen.verdict
        self.watch.learn(time.time() - self.record.started)
        self.idle = [seen.verdict for seen in Watch(of_record(self.record), attached=True).run(60)]


@pytest.fixture(scope="module")
def followed(demo_model: Path) -> Iterator[Followed]:
    one = Followed(demo_model)
    yield one
    with contextlib.suppress(Exception):
        list(stop(one.record, grace_s=0))


def hsbench(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, **env})


def session_of(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [row[2] for row in rows if int(row[0]) == session and "Z" not in row[1]]


def test_a_good_start_is_progress_all_the_way(followed: Followed) -> None:
    assert followed.ready.state is State.READY, [v.headline() for v in followed.starting[-5:]]
    told = [v.state for v in followed.starting]
    first_green = next((n for n, seen in enumerate(told) if seen is State.READY_UNVERIFIED), len(told))
    assert set(told[:first_green]) == {State.PROGRESSING}, [v.headline() for v in followed.starting]
    assert set(told[first_green:]) <= {State.READY_UNVERIFIED}, [v.headline() for v in followed.starting]
    assert {"import", "start workers"} <= {v.phase for v in followed.starting}
    assert "a streamed request brought a token" in followed.ready.evidence[1]


def test_idle_for_a_minute_is_ready(followed: Followed) -> None:
    states = [v.state for v in followed.idle]
    first = states.index(State.READY)
    assert set(states[first:]) == {State.READY}
    assert set(states[:first]) <= {State.PROGRESSING, State.READY_UNVERIFIED}
    assert len(states) > 30


def test_the_start_is_learnt_line_by_line(followed: Followed) -> None:
    record = followed.record
    known = known_good.load(record.model, record.engine_version, record.argv)
    assert known is not None
    [good] = known.starts
    assert [m.phase for m in good.milestones] == ["start workers", "load weights", "kv cache", "warm-up", "ready"]
    text = Path(record.log).read_text(encoding="utf-8", errors="replace")
    before = text.partition("ready to roll")[0].splitlines()
    assert 10 < good.lines <= len(before) + 1
    assert good.longest_silence < 60


def test_a_foreign_process_is_diagnosed_by_its_number(followed: Followed, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar.gz"
    done = hsbench("doctor", "--pid", str(followed.record.pid), "--json", "--bundle", str(bundle))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["schema"], said["verdict"], said["phase"]) == (1, "READY", "ready")
    assert said["lines_known_good"] == said["lines"] > 10
    with tarfile.open(bundle) as archive:
        stacks = archive.extractfile("hsbench-bundle/stacks.txt")
        assert stacks is not None
        assert "sglang::scheduler" in stacks.read().decode()


def test_a_killed_scheduler_is_told_and_cleaned_away(followed: Followed) -> None:
    record = followed.record
    ranks = [p for p in followed.watch.window.now.processes if p.role == "rank"]
    assert [p.name for p in ranks] == ["sglang::scheduler"]
    hsbench("status")
    os.kill(ranks[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{ranks[0].pid}").exists() and "Z" not in Path(f"/proc/{ranks[0].pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = hsbench("status", "--json")
    [seen] = json.loads(done.stdout)["servers"]
    assert seen["state"] in ("broken", "dead")
    assert (seen["state"] == "dead") == (not state.alive(record)) or seen["state"] == "broken"
    assert hsbench("stop").returncode == 0
    assert session_of(record.pid) == []


def test_a_start_that_spins_in_its_warm_up_is_a_hang_with_its_frame(demo_model: Path) -> None:
    done = hsbench(
        *("serve", "--model", str(demo_model), "--device", "cpu", "--port", "0", "--name", "sabotaged"),
        *("--silence", "20", "--timeout", "600"),
        PYTHONPATH=str(FAULTS),
        HS_TEST_SPIN="always",
        HS_TEST_QUICK="1",
    )
    record = state.load("sabotaged")
    assert record is not None
    try:
        assert done.returncode == 7, done.stderr
        assert "sabotaged is broken: HUNG_SPIN(warm-up)" in done.stderr
        assert "spin_in_the_warm_up (sitecustomize.py:" in done.stderr
        assert "nothing has moved for" in done.stderr
        assert state.alive(record)
        for said in done.stderr.splitlines():
            assert "HUNG_SPIN" not in said or "warm-up" in said
    finally:
        assert hsbench("stop", "sabotaged", "--grace", "1").returncode == 0
    assert session_of(record.pid) == []
