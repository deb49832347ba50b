"""Real misbehaving processes, one for each public case, each given its right verdict.

The limits are seconds here instead of minutes; everything else is what `hsbench doctor --pid` does.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import cli
from workbench.exitcodes import ExitCode
from workbench.server import ports
from workbench.supervision.target import of_pid
from workbench.supervision.verdict import Limits, State, Verdict
from workbench.supervision.watch import Watch

PROGRAMS = Path(__file__).parents[1] / "misbehaving"
LIMITS = Limits(silence_s=3.0, fresh_s=1.5, stack_gap_s=0.6, quiet_tokens_s=1.5)
Start = Callable[..., "Case"]


class Case:
    """One misbehaving program, and what is said of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, port: int, folder: Path) -> None:
        self.process, self.log, self.port, self.folder = process, log, port, folder

    def verdicts(self, seconds: float, pid: int | None = None, limits: Limits = LIMITS) -> list[Verdict]:
        target = of_pid(pid or self.process.pid, log=self.log, port=self.port)
        return [seen.verdict for seen in Watch(target, limits, every_s=0.3).run(seconds, every_s=0.3)]

    def until(self, state: State, seconds: float = 30) -> tuple[Verdict, list[Verdict]]:
        """Watch until this is said; the verdict and all before it."""
        target = of_pid(self.process.pid, log=self.log, port=self.port)
        before: list[Verdict] = []
        for seen in Watch(target, LIMITS, every_s=0.3).run(seconds, every_s=0.3):
            if seen.verdict.state is state:
                return seen.verdict, before
            before.append(seen.verdict)
        raise AssertionError(f"never {state}: {[v.headline() for v in before]} {before[-1].evidence}")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Run a misbehaving program; all of its session ends with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, port: int | None = None, **env: str) -> Case:
        if port is None:  # not one that a connection of another test may be given before the program opens it
            port, _ = ports.choose("127.0.0.1", 0, ())
        log = tmp_path / "server.log"
        clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{name}.py"), str(port), str(tmp_path)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env={**clean, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), **env},
            )
        running.append(process)
        deadline = time.monotonic() + 20
        while not log.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return Case(process, log, port, tmp_path)

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def states(verdicts: list[Verdict]) -> set[State]:
    return {verdict.state for verdict in verdicts}


def test_a_spin_after_the_load_is_a_hang(begin: Start) -> None:
    case = begin("spin_after_load")
    found, before = case.until(State.HUNG_SPIN)
    assert states(before) <= {State.PROGRESSING, State.SUSPECT_SPIN}
    said = " ".join(found.evidence)
    assert "spin (common.py:" in said
    assert "all_reduce (spin_after_load.py:" in said
    assert "nothing has moved for" in said
    assert found.phase == "kv cache"
    assert found.confidence > 0.8
    assert case.process.poll() is None


def test_a_hang_is_known_within_fifteen_seconds_of_the_limit(begin: Start) -> None:
    case = begin("spin_after_load")
    limits = Limits(silence_s=4.0)
    target = of_pid(case.process.pid, log=case.log, port=case.port)
    watch = Watch(target, limits)
    for seen in watch.run(60):
        if seen.verdict.state is State.HUNG_SPIN:
            break
    assert seen.verdict.state is State.HUNG_SPIN
    assert watch.window.silent < limits.silence_s + 15


def test_without_py_spy_it_takes_longer_and_says_so(begin: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.supervision.stacks.find_py_spy", lambda pid: None)
    case = begin("spin_after_load")
    found, before = case.until(State.HUNG_SPIN, 40)
    assert State.SUSPECT_SPIN in states(before)
    assert found.confidence < 0.7
    assert "py-spy is not installed" in found.against
    assert any("/proc shows" in line for line in found.evidence)


def test_a_stale_lock_is_named(begin: Start, tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "some_kernel" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (tmp_path / "some_kernel").symlink_to(lock.parent)
    found, before = begin("stale_jit_lock").until(State.WAITING)
    assert states(before) <= {State.PROGRESSING}
    assert found.waiting_on == f"the lock {lock}, which nobody holds"
    assert found.next_step == f"remove {lock}"


def test_a_held_lock_is_not_called_stale(begin: Start, tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "some_kernel" / "lock"
    lock.parent.mkdir(parents=True)
    (tmp_path / "some_kernel").symlink_to(lock.parent)
    with lock.open("w"):
        found, _ = begin("stale_jit_lock").until(State.WAITING)
    assert f"held by process {os.getpid()}" in found.waiting_on
    assert "remove" not in found.next_step


@pytest.mark.parametrize("name", ["slow_load", "long_compile", "graph_capture"])
def test_work_is_never_a_hang(begin: Start, name: str) -> None:
    assert states(begin(name).verdicts(7)) == {State.PROGRESSING}


def test_idle_polling_is_ready(begin: Start) -> None:
    verdicts = begin("idle_ready").verdicts(7)
    assert states(verdicts) <= {State.PROGRESSING, State.READY_UNVERIFIED, State.READY}
    assert verdicts[-1].state is State.READY
    assert "polls" in verdicts[-1].against[0]


def test_a_heartbeat_is_no_progress(begin: Start) -> None:
    found, _ = begin("heartbeat").until(State.WAITING)
    assert "Waiting for 1 core engine" in found.waiting_on
    assert states(begin("heartbeat").verdicts(8)) <= {State.PROGRESSING, State.WAITING}


def test_a_killed_child_is_missed(begin: Start) -> None:
    found, before = begin("dead_child").until(State.DEAD_CHILD)
    assert states(before) <= {State.PROGRESSING, State.WAITING}
    assert "sglang::schedul" in found.evidence[0]
    assert "still there" in found.evidence[1]


def test_a_taken_port_names_its_owner(begin: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        found, _ = begin("port_taken", port=holder.getsockname()[1]).until(State.PORT_TAKEN)
    assert f"held by process {os.getpid()}" in found.evidence[0]
    assert "Address already in use" in found.evidence[1]


def test_503_for_ever_is_unverified(begin: Start) -> None:
    verdicts = begin("health_503").verdicts(7)
    assert State.HUNG_SPIN not in states(verdicts)
    assert verdicts[-1].state is State.READY_UNVERIFIED
    assert "/health answers 503" in verdicts[-1].evidence[0]


def test_a_proxy_is_blamed(begin: Start) -> None:
    proxy = "http://me:planted-5@127.0.0.1:9"
    verdicts = begin("proxy_warmup", http_proxy=proxy, HTTP_PROXY=proxy).verdicts(6)
    assert verdicts[-1].state is State.READY_UNVERIFIED
    assert "http_proxy=http://***@127.0.0.1:9 is set" in verdicts[-1].evidence[-1]
    assert "NO_PROXY" in verdicts[-1].next_step


def test_green_but_silent_is_a_zombie(begin: Start) -> None:
    found, before = begin("zombie_ready").until(State.ZOMBIE_READY)
    assert State.READY not in states(before)
    assert "no token" in found.evidence[1]


def test_503_while_tokens_flow_is_busy(begin: Start) -> None:
    verdicts = begin("unhealthy_but_busy").verdicts(6)
    assert verdicts[-1].state is State.UNHEALTHY_BUT_BUSY
    assert "do not restart it" in verdicts[-1].next_step


def test_a_spin_in_the_warm_up_is_a_hang(begin: Start) -> None:
    found, before = begin("warmup_spin").until(State.HUNG_SPIN)
    assert states(before) <= {State.PROGRESSING, State.SUSPECT_SPIN, State.READY_UNVERIFIED}
    assert "forward (warmup_spin.py:" in " ".join(found.evidence)
    assert found.phase == "warm-up"


def test_an_orphan_has_lost_its_server(begin: Start) -> None:
    case = begin("orphan")
    case.process.wait(20)
    pid = int((case.folder / "orphan").read_text())
    [*_, found] = case.verdicts(2, pid)
    assert found.state is State.DEAD_CHILD
    assert "has lost its server" in " ".join(found.evidence)
    assert "hsbench stop --orphans" in found.next_step


def test_the_command_diagnoses_a_foreign_process(
    begin: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = begin("spin_after_load")
    time.sleep(3)
    bundle = tmp_path / "bundle.tar.gz"
    arguments = [
        "doctor",
        "--pid",
        str(case.process.pid),
        "--port",
        str(case.port),
        "--silence",
        "3",
        "--seconds",
        "12",
    ]
    assert cli.run([*arguments, "--json", "--bundle", str(bundle)]) == ExitCode.BROKEN
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["phase"], said["lines"]) == ("HUNG_SPIN", "kv cache", 3)
    assert "spin (common.py:" in " ".join(said["evidence"])
    assert bundle.exists()
    assert case.process.poll() is None
    assert cli.run(["doctor", "--pid", str(case.process.pid), "--silence", "3", "--seconds", "12"]) == ExitCode.BROKEN
    assert capsys.readouterr().out.startswith("HUNG_SPIN(kv cache)")


def test_there_is_no_such_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--pid", str(1 << 22)]) == ExitCode.USAGE
    assert "there is no process" in capsys.readouterr().err
