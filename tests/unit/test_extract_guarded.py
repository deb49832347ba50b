"""What a job asks before its first sample, of a server that hangs at it."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.unit.extract_support import sample
from tests.unit.job_support import FakeServer
from workbench.errors import ServerBroken, ServerError, UsageError
from workbench.extract.job import guarded as module
from workbench.extract.job import preflight, stall
from workbench.extract.job.events import Told
from workbench.extract.job.guarded import guarded
from workbench.extract.job.settings import ExtractSettings

HUNG = ("sglang::scheduler (7)",)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """One that is looked at at once."""
    monkeypatch.setattr(stall, "STOPPED_S", 0.02)
    monkeypatch.setattr(stall, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    one = FakeServer(tmp_path, ExtractSettings(data="d", out=str(tmp_path / "out"), concurrency=3, baseline_s=60.0))
    one.target = msgspec.structs.replace(one.target, record=SimpleNamespace(pid=1))
    return one


def hangs(server: FakeServer, monkeypatch: pytest.MonkeyPatch, starts: int) -> None:
    """The first `starts` servers have a stopped process, and answer nothing until they are killed."""
    monkeypatch.setattr(stall, "stopped", lambda pid: HUNG if server.starts < starts else ())


def run(server: FakeServer, work: Callable[[], Any]) -> tuple[Any, str]:
    told: list[Told] = []
    going = guarded(server, [sample(0)], work)
    try:
        while True:
            told.append(next(going))
    except StopIteration as ended:
        return ended.value, "\n".join(event.text for event in told)


def asking(server: FakeServer, starts: int) -> Callable[[], int]:
    def work() -> int:
        if server.starts < starts:
            assert server.dead.wait(60)
            raise ServerError("the server broke off")
        return server.starts

    return work


def test_a_server_that_hangs_is_started_again_and_asked_anew(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs(server, monkeypatch, 1)
    found, said = run(server, asking(server, 1))
    assert found == server.starts == 1
    assert "restarting: the server is STOPPED_CHILD: sglang::scheduler (7) was stopped" in said
    assert "started again" in said


def test_one_hang_after_the_other_ends_the_job(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs(server, monkeypatch, 9)
    with pytest.raises(ServerBroken, match="2 servers in a row hung before the first sample; the last was STOPPED"):
        run(server, asking(server, 9))
    assert server.starts == 1
    assert server.dead.is_set(), "it was left hanging"


def test_an_answer_and_an_error_pass_as_they_are(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs(server, monkeypatch, 0)
    assert run(server, lambda: time.sleep(0.2)) == (None, "")

    def refused() -> None:
        raise UsageError("no such layer")

    with pytest.raises(UsageError, match="no such layer"):
        run(server, refused)
    assert server.starts == 0


def test_plain_prefill_ends_with_its_server(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its ten minutes are over; then it is measured on the next server."""
    hangs(server, monkeypatch, 1)
    rows = [sample(index) for index in range(6)]
    server.by_ids = {row.input_ids: row for row in rows}
    server.answer = lambda own, one, rid: None if own.starts else own.dead.wait(60) and own.die()

    def work() -> float | None:
        baseline = 0.1 if server.starts else 600.0
        return preflight.plain_prefill(server, rows, msgspec.structs.replace(server.settings, baseline_s=baseline))

    found, said = run(server, work)
    assert found > 0
    assert said.count("restarting") == 1
