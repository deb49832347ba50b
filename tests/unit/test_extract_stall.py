"""When a server that finishes nothing is given up: stopped processes, and silence on a clock of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.unit.extract_support import sample
from tests.unit.job_support import FakeServer, Run, wait_until
from workbench.extract.job import stall
from workbench.extract.job.attempt import Attempt
from workbench.extract.job.stall import Stall
from workbench.extract.sample import Sample as Row
from workbench.supervision.judge import judge
from workbench.supervision.progress import Window
from workbench.supervision.records import PortSample, Sample

CHILD = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'sglang::detoken'); print(flush=True); time.sleep(600)"
MAIN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}]).wait()"
UNHEALTHY, WELL = 503, 200


class Server:
    """The seam between the rule and a server: a clock, the record, and what a watch sees."""

    def __init__(self, pid: int, health: int) -> None:
        self.now, self.health = 0.0, health
        self.target = SimpleNamespace(record=SimpleNamespace(pid=pid))
        self.rule = Stall(self, lambda: self.now)  # type: ignore[arg-type]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def look(self) -> SimpleNamespace:
        seen = Sample(at=self.now, port=PortSample(port=1, accepts=True, health=self.health, health_at=self.now))
        window = Window()
        window.add(seen)
        return SimpleNamespace(sample=seen, verdict=judge(window))

    def told(self, until: float, tokens: int = 100, dumps: int = 0) -> tuple[float, str] | None:
        """When the server is given up, and why, in so many seconds from now with a request in flight."""
        flying = [Attempt(sample(0, tokens), 0)]
        for second in range(int(self.now), int(until) + 1):
            self.now = second
            if said := self.rule.look(flying, dumps):
                return self.now, said
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    one = Server(os.getpid(), UNHEALTHY)
    monkeypatch.setattr(stall, "stopped", lambda pid: ())
    monkeypatch.setattr(stall, "of_record", lambda record: record)
    monkeypatch.setattr(stall, "Watch", lambda target, attached: one)
    return one


@pytest.mark.parametrize(
    ("slowest", "tokens", "bound"),
    [
        ((2.0, 100), 100, 60),  # the floor
        ((30.0, 100), 100, 300),  # ten times as long
        ((30.0, 100), 50, 300),
        ((30.0, 100), 300, 2700),  # and nine times as much attention
    ],
)
def test_silence_is_measured_by_what_the_run_has_shown(
    server: Server, slowest: tuple[float, int], tokens: int, bound: int
) -> None:
    server.rule.took(0.5, 4000)
    server.rule.took(*slowest)
    found = server.told(3000, tokens)
    assert found is not None
    when, said = found
    assert bound <= when <= bound + 2
    assert "1 request in flight" in said
    assert "/health answers 503" in said
    server.rule.moved()
    again = server.told(when + 6000, tokens)  # a server that it ended may have been slow only
    assert again is not None
    assert again[0] - when >= (60 if bound == 60 else 2 * bound)


def test_who_answers_moves_or_showed_nothing_yet_is_not_given_up(server: Server) -> None:
    assert server.told(2000) is None
    server.rule.took(1.0, 100)
    server.health = WELL
    assert server.told(4000) is None
    server.health = UNHEALTHY
    for dumps in range(1, 20):
        assert server.told(server.now + 50, dumps=dumps) is None
    assert server.told(server.now + 70, dumps=19) is not None


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A server of two processes, its own and one that is called as SGLang's detokenizer is."""
    with subprocess.Popen([sys.executable, "-c", MAIN], start_new_session=True, stdout=subprocess.PIPE) as main:
        assert main.stdout is not None
        main.stdout.readline()
        children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
        yield main.pid, int(children[0])
        os.killpg(main.pid, signal.SIGKILL)


@pytest.mark.parametrize("which", [0, 1])
def test_a_stopped_process_is_told_at_once_and_one_that_goes_on_is_not(processes: tuple[int, int], which: int) -> None:
    one, pid = Server(processes[0], WELL), processes[which]
    assert one.told(50) is None

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    one.rule.moved()
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state() == "T")
    found = one.told(100)
    assert found is not None
    assert (found[0] - 50, f"({pid}) was stopped by a signal, with 1 request in flight" in found[1]) == (12, True)
    assert found[1].startswith("STOPPED_CHILD: ")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: state() != "T")
    one.rule.moved()
    assert one.told(found[0] + 50) is None


def test_a_run_goes_on_with_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.server.target = msgspec.structs.replace(run.server.target, record=SimpleNamespace(pid=1))
    monkeypatch.setattr(stall, "STOPPED_S", 0.1)
    monkeypatch.setattr(stall, "LOOK_S", 0.05)
    monkeypatch.setattr(stall, "stopped", lambda pid: () if run.server.starts else ("sglang::detokenizer (7)",))

    def answer(server: FakeServer, one: Row, rid: str) -> None:
        if one.index >= 4 and not server.starts:
            server.dead.wait(60)
            server.die()
        server.record(one, rid)

    run.server.answer = answer
    assert run.go().done() == set(range(12))
    assert run.server.starts == 1
    assert "the server is STOPPED_CHILD: sglang::detokenizer (7) was stopped by a signal" in run.said()
    assert run.counts.restarts == 1
