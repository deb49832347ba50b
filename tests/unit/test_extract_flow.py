"""The flow of a run, over a stand-in for the server that fails in every way a server does."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.extract_support import sample
from tests.unit.job_support import FakeServer, Run, wait_until
from workbench.errors import CheckFailed, Missing, ServerError
from workbench.extract.job import attempt
from workbench.extract.job import gate as gate_module
from workbench.extract.job.events import Progress
from workbench.extract.job.flow import Limits
from workbench.extract.sample import Refused, Sample
from workbench.server.client import AnsweredWithError


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "REST_S", 0.02)


def test_every_row_is_sent_once_and_no_dump_is_left(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=40).go()
    assert run.done() == set(range(40))
    assert sorted(run.server.asked) == list(range(40))
    assert run.left_dumps() == []
    assert 1 < run.server.most <= 4
    last = [event for event in run.events if isinstance(event, Progress)][-1:]
    assert run.gate.waiting == 0
    assert not last or last[0].written <= 40


def test_only_what_is_left_is_sent(tmp_path: Path) -> None:
    Run(tmp_path, rows=10).go()
    again = Run(tmp_path, rows=10)
    again.writer.index.forget(4)
    again.go()
    assert again.server.asked == [4]


def test_rows_that_the_server_would_not_take_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=4)
    run.rows[1] = Refused(1, "mask", "nothing is trained on")
    run.rows[2] = sample(2, tokens=60)
    run.limits = Limits(59, None, 100)
    run.go()
    assert run.done() == {0, 3}
    assert "60 tokens, the server takes 59" in run.writer.index.get(2).reason  # type: ignore[union-attr]


def test_ids_outside_the_vocabulary_are_not_sent(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=2)
    run.limits = Limits(None, max(sample(1).input_ids), 100)
    run.go()
    assert 1 not in run.server.asked
    assert "outside the model's vocabulary" in run.writer.index.get(1).reason  # type: ignore[union-attr]


def test_a_server_that_dies_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=30)
    deaths = iter([7, 15, 15])

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        nonlocal at
        if one.index == at:
            at = next(deaths, -1)
            server.die()
        if server.dead.is_set():
            raise ServerError("the server broke off")
        server.record(one, rid)

    at = next(deaths)
    run.server.answer = answer
    run.go()
    assert run.done() == set(range(30))
    assert run.server.starts == 3
    assert run.left_dumps() == []


def test_a_row_that_servers_die_of_is_sent_alone_and_then_given_up(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=12)
    company: list[int] = []

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 5:
            company.append(server.flying)
            server.die()
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == set(range(12)) - {5}
    assert company[-2:] == [1, 1]
    assert "row 5 is given up: the server died 4 times" in run.said()
    assert run.writer.index.get(5).status == "quarantined"  # type: ignore[union-attr]


def test_servers_that_die_without_a_sample_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=40)
    run.writer._max_bad = 100
    run.server.answer = lambda server, one, rid: server.die()
    with pytest.raises(ServerError, match="servers died in a row"):
        run.go()
    assert run.done() == set()
    assert run.server.starts == 10


def test_a_request_that_fails_is_sent_again_under_another_id(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=6)
    ids: list[str] = []

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 3:
            ids.append(rid)
            if len(ids) < 3:
                raise ServerError("the server broke off")
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == set(range(6))
    assert len(set(ids)) == 3


def test_a_server_that_takes_a_while_to_be_gone_uses_up_no_tries(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=12)
    dying = threading.Event()

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 5 and not dying.is_set():
            dying.set()
            threading.Timer(0.015, server.dead.set).start()
        if dying.is_set() and server.starts == 0:
            raise ServerError("connection refused")
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == set(range(12))


def test_the_last_row_is_waited_for_while_it_may_not_be_sent(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=6)
    failed = threading.Event()

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 5 and not failed.is_set():
            run.gate.pause.touch()
            threading.Timer(0.6, run.gate.pause.unlink).start()
            failed.set()
            raise ServerError("the server broke off")
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == set(range(6))


def test_what_the_recorder_fails_on_three_times_goes_to_quarantine(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=6)

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        server.fail(rid, "ValueError('no')") if one.index == 2 else server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == {0, 1, 3, 4, 5}
    assert "ValueError" in run.writer.index.get(2).reason  # type: ignore[union-attr]


def test_too_many_bad_dumps_end_the_run_with_what_was_good_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=30, concurrency=1)

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        server.record(one, rid, prefix_len=3 if one.index >= 10 else 0)

    run.server.answer = answer
    with pytest.raises(CheckFailed, match="4 samples were bad"):
        run.go()
    assert run.done() == set(range(10))
    assert len(list((tmp_path / "out.quarantine").iterdir())) >= 3


def test_a_busy_server_is_asked_again_and_a_refusal_is_the_rows_own(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=5)
    busy = iter([429, 503, 503, 503])

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 1 and (status := next(busy, 0)):
            raise AnsweredWithError(status, "later")
        if one.index == 2:
            raise AnsweredWithError(400, "this prompt never")
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.done() == {0, 1, 3, 4}
    assert "this prompt never" in run.writer.index.get(2).reason  # type: ignore[union-attr]
    assert run.server.asked.count(2) == 1


def test_a_server_that_refuses_everything_ends_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=30)

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        raise AnsweredWithError(401, "who are you")

    run.server.answer = answer
    with pytest.raises(CheckFailed, match="4 samples were bad, the last one: who are you"):
        run.go()
    assert len(run.writer.index) <= 5


def test_lines_without_a_file_wait_for_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, rows=6)
    run.rows[2] = Refused(2, "mask", "nothing is trained on")
    refuse, full = run.writer.refuse, [1, 1, 1]

    def when_there_is_room(row: Refused) -> Any:
        if full:
            full.pop()
            raise Missing("index.jsonl cannot be written")
        return refuse(row)

    monkeypatch.setattr(run.writer, "refuse", when_there_is_room)
    run.go()
    assert run.done() == {0, 1, 3, 4, 5}
    assert run.writer.index.get(2).status == "refused"  # type: ignore[union-attr]


def test_bytes_waiting_stay_under_the_high_water_mark(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=20)
    one = run.limits.bytes_per_token * 30
    run.gate.high_water = 2 * one
    most = 0
    take = run.gate.take

    def watched(nbytes: int) -> None:
        nonlocal most
        take(nbytes)
        most = max(most, run.gate.waiting)

    run.gate.take = watched  # type: ignore[method-assign]
    run.go()
    assert run.done() == set(range(20))
    assert 0 < most <= 2 * one


def test_a_full_disk_pauses_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, rows=20)
    free = {"bytes": 1 << 40}
    monkeypatch.setattr(gate_module, "free_bytes", lambda folder: free["bytes"] if folder == run.out else 1 << 40)

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 6:
            free["bytes"] = 0
        server.record(one, rid)

    run.server.answer = answer
    thread = threading.Thread(target=run.go)
    thread.start()
    wait_until(lambda: any(isinstance(e, Progress) and e.state == "paused" for e in run.events))
    before = run.server.asked.copy()
    free["bytes"] = 1 << 40
    thread.join(20)
    assert run.done() == set(range(20))
    assert len(before) < 20
    assert "paused: 0 B free in" in run.said()


def test_a_dump_that_could_not_be_written_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, rows=8, concurrency=2)
    full = threading.Event()
    free = {"bytes": 1 << 40}
    monkeypatch.setattr(gate_module, "free_bytes", lambda folder: free["bytes"] if folder == run.out else 1 << 40)
    real = run.writer.pool.call

    def call(name: str, **arguments: Any) -> Any:
        if name == "convert" and arguments["target"].find("data_3") > 0 and not full.is_set():
            full.set()
            free["bytes"] = 0
            raise Missing("the disk is full")
        return real(name, **arguments)

    monkeypatch.setattr(run.writer.pool, "call", call)
    thread = threading.Thread(target=run.go)
    thread.start()
    wait_until(lambda: any(isinstance(e, Progress) and e.state == "paused" for e in run.events))
    assert 3 not in run.done()
    free["bytes"] = 1 << 40
    thread.join(20)
    assert run.done() == set(range(8))
    assert run.server.asked.count(3) == 1, "the dump was kept"


def test_a_person_pauses_and_stops(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=50)

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 10:
            run.gate.pause.touch()
        server.record(one, rid)

    run.server.answer = answer
    thread = threading.Thread(target=run.go)
    thread.start()
    wait_until(lambda: any(isinstance(e, Progress) and e.state == "paused" for e in run.events))
    run.stopping = True
    thread.join(20)
    assert not thread.is_alive()
    assert 10 <= len(run.done()) < 50
    assert run.left_dumps() == []


def test_dumps_of_starts_that_were_killed_are_removed(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=5)
    run.server.record(sample(2), "hs-t-0-2-1")
    run.server.record(sample(3), "hs-other-3")
    run.go()
    assert run.left_dumps() == ["req_1"], "another run's dump is none of ours"


def test_a_stop_while_the_server_is_in_trouble_starts_none_and_ends_well(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=30)
    slow = threading.Event()
    write = run.writer.write

    def slowly(*args: Any, **how: Any) -> Any:
        slow.wait(0.3)
        return write(*args, **how)

    run.writer.write = slowly  # type: ignore[method-assign]

    def answer(server: FakeServer, one: Sample, rid: str) -> None:
        if one.index == 6:
            run.stopping = True
            server.die()
        server.record(one, rid)

    run.server.answer = answer
    run.go()
    assert run.server.starts == 0
    assert 0 < len(run.done()) < 30


def test_a_dump_is_written_however_full_the_dump_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, rows=4, concurrency=1)
    free = {run.out: 1 << 40, run.dumps: 1 << 40}
    monkeypatch.setattr(gate_module, "free_bytes", lambda folder: free[folder])
    real, failed = run.writer.pool.call, threading.Event()

    def call(name: str, **arguments: Any) -> Any:
        if name == "convert" and "data_2" in arguments["target"] and not failed.is_set():
            failed.set()
            free[run.out], free[run.dumps] = 0, 0
            threading.Timer(0.4, lambda: free.update({run.out: 1 << 40})).start()
            threading.Timer(1.2, lambda: free.update({run.dumps: 1 << 40})).start()
            raise Missing("the disk is full")
        return real(name, **arguments)

    monkeypatch.setattr(run.writer.pool, "call", call)
    run.go()
    assert run.done() == {0, 1, 2, 3}
    assert run.server.asked.count(2) == 1


def test_a_row_that_no_worker_can_write_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, rows=5)
    real = run.writer.pool.call

    def call(name: str, **arguments: Any) -> Any:
        if name == "convert" and "data_3" in arguments["target"]:
            raise Missing("the process that reads tensors ended (exit code -9)")
        return real(name, **arguments)

    monkeypatch.setattr(run.writer.pool, "call", call)
    run.go()
    assert run.done() == {0, 1, 2, 4}
    assert run.writer.index.get(3).status == "quarantined"  # type: ignore[union-attr]
    assert run.left_dumps() == []


def test_a_row_larger_than_the_dump_folder_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, rows=3)
    run.rows[1] = sample(1, tokens=90)
    run.limits = Limits(None, None, 100, largest=5000)
    run.go()
    assert run.done() == {0, 2}
    assert "more than the whole dump folder" in run.writer.index.get(1).reason  # type: ignore[union-attr]
