"""Several jobs at one URL, interleaved on one store: the newest goes on, the others end, nothing is lost or doubled."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.extract_support import sample, states_of, write_both
from tests.unit.job_support import wait_until
from tests.unit.storage_support import Far, check_recorded, in_memory, memory_url, recorded
from workbench.storage.errors import StorageError, TakenOver
from workbench.storage.parts import Parts


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A prefix of a store in this process, of its own for each test."""
    return memory_url(request.node.nodeid)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_memory(monkeypatch, tmp_path)


def test_of_two_jobs_at_one_url_the_older_ends(url: str, tmp_path: Path) -> None:
    old = Far(url, tmp_path / "old")
    old.write(0)
    old.drain()
    new = Far(url, tmp_path / "new")
    old.write(1)
    with pytest.raises(TakenOver, match=r"was taken over by .*process"):
        old.drain()
    assert set(recorded(old.store)) == {0}
    old.close()
    late = Far(url, tmp_path / "late")  # removes what the old one sent and could not record
    late.write(1, 2, 3, 4, 5)
    late.finish().close()
    new.write(2)
    with pytest.raises(TakenOver):
        new.drain()
    new.close()
    assert check_recorded(late.store) == 6


def test_the_newer_job_goes_on_where_the_older_stores_what_it_can_no_longer_record(url: str, tmp_path: Path) -> None:
    old, record, go = Far(url, tmp_path / "old"), threading.Event(), threading.Event()
    append = old.remote._parts.append
    old.write(0)
    old.drain()
    old.remote._parts.append = lambda lines: (record.set(), go.wait(20), append(lines))[2]  # type: ignore[method-assign]
    new = Far(url, tmp_path / "new")
    stored = {row: others_sample(old, row).file for row in (1, 2, 5)}
    wait_until(lambda: set(stored.values()) <= set(new.store.names()))
    older = {name: new.store.read(name) for name in stored.values()}
    new.write(1, 2)
    new.drain()
    assert set(recorded(new.store)) == {0, 1, 2}
    assert all(new.store.read(stored[row]) != older[stored[row]] for row in (1, 2))
    go.set()
    with pytest.raises(TakenOver, match="was taken over by"):
        old.drain()
    old.close()
    assert record.is_set()
    new.write(3, 4, 5)
    new.finish().close()
    assert check_recorded(new.store) == 6
    parts = [new.store.read(name) or b"" for name in new.store.names("index") if "part-" in name]
    rows = [row["index"] for part in parts for row in map(json.loads, part.splitlines()) if "index" in row]
    assert sorted(rows) == [*range(6)], "each is recorded once"


def others_sample(far: Far, row: int) -> Any:
    """A sample of other bytes than `Far.write` makes, as a job with another server has."""
    other = [state + 1 for state in states_of(sample(row))]
    return far.writer.write(sample(row), write_both(far.dumps, sample(row), other))


def test_the_older_job_touches_nothing_that_the_newer_has(url: str, tmp_path: Path) -> None:
    old = Far(url, tmp_path / "old")
    put, there, go = old.store.fs.put_file, threading.Event(), threading.Event()

    def slow(path: str, name: str, **more: Any) -> None:
        put(path, name, **more)
        there.set()
        go.wait(20)

    old.store.fs.put_file = slow
    try:
        line = others_sample(old, 1)
        there.wait(20)
    finally:
        del old.store.fs.put_file
    new = Far(url, tmp_path / "new")  # removes what the old one has just stored
    new.write(1)
    new.drain()
    go.set()
    with pytest.raises(TakenOver, match="was taken over by"):
        old.drain()
    old.close()
    assert new.store.has(line.file)
    assert check_recorded(new.store) == 1
    new.close()


def test_a_folder_as_a_store_is_not_written_over_by_an_older_job(tmp_path: Path) -> None:
    url, go = f"file://{tmp_path}/far", threading.Event()
    old = Far(url, tmp_path / "old")
    put = old.store.put
    old.store.put = lambda *a, **k: (go.wait(20), put(*a, **k))  # type: ignore[method-assign,assignment,func-returns-value]
    others_sample(old, 1)
    new = Far(url, tmp_path / "new")
    new.write(1)
    new.drain()
    go.set()
    with pytest.raises(TakenOver, match="was taken over by"):
        old.drain()
    old.close()
    assert check_recorded(new.store) == 1
    new.close()


def test_an_older_job_does_not_say_that_all_is_there(url: str, tmp_path: Path) -> None:
    old = Far(url, tmp_path / "old")
    old.write(*range(6))
    old.drain()
    Parts(old.store).claim()
    with pytest.raises(TakenOver, match="was taken over by"):
        old.writer.finalise()
    old.close()
    assert not old.store.has("index.jsonl")


def test_only_the_newest_job_replaces_and_only_what_no_part_knows(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    (line,) = far.write(0)
    far.drain()
    parts = far.remote._parts
    parts.may_replace("rows_0-2000/data_1.pt")
    with pytest.raises(TakenOver, match=r"data_0\.pt is recorded already"):
        parts.may_replace(line.file)
    later = Parts(far.store)
    later.claim()
    with pytest.raises(TakenOver, match="was taken over"):
        parts.may_replace("rows_0-2000/data_1.pt")
    with pytest.raises(TakenOver, match="was taken over"):
        far.writer._parts.load()
    late = Parts(far.store)
    late.load()
    with pytest.raises(TakenOver, match=r"data_0\.pt is recorded already"):
        late.may_replace(line.file)
    with pytest.raises(TakenOver, match="was taken over"):
        later.refuse_newer()  # whoever may replace has claimed the URL
    far.close()


def test_a_start_gets_in_between_the_parts_of_the_job_that_it_takes_over(url: str, tmp_path: Path) -> None:
    old = Far(url, tmp_path / "old")
    new, create = Parts(old.store), old.store.create

    def first(name: str, data: bytes) -> None:
        old.store.create = create  # type: ignore[method-assign]
        old.write(0)
        old.drain()
        create(name, data)

    old.store.create = first  # type: ignore[method-assign]
    new.claim()
    assert set(new.load()) == {0}
    old.close()


def test_a_part_whose_answer_was_lost_is_not_another_jobs(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    create, lost = far.store.create, threading.Event()

    def loses(name: str, data: bytes) -> None:
        create(name, data)
        if not lost.is_set():
            lost.set()
            far.remote._parts._lock.release()  # its own, as another thread would wait for it
            try:
                far.remote._parts.may_replace("rows_0-2000/data_5.pt")
            finally:
                far.remote._parts._lock.acquire()
            raise StorageError("its answer was lost")

    far.store.create = loses  # type: ignore[method-assign]
    far.write(0)
    far.drain().close()
    assert lost.is_set()
    assert check_recorded(far.store) == 1
