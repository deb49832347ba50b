"""Commands that outlive whoever started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from workbench.errors import UsageError
from workbench.tasks import store


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_its_output_its_words_and_its_code_are_kept() -> None:
    good, bad = store.start(("layers", "--help")), store.start(("stop", "nobody"))
    until(lambda: good.state() != "running" and bad.state() != "running")
    assert (good.state(), good.exit_code(), good.kind) == ("done", 0, "layers")
    assert good.output().startswith("Usage: hsbench layers")
    assert (bad.state(), bad.exit_code()) == ("failed", 3)
    assert "hsbench: no server is named 'nobody'" in bad.narration()
    assert [task.id for task in store.all_tasks()] == sorted((good.id, bad.id), reverse=True)
    assert store.load(good.id) == good


def test_it_has_a_session_of_its_own_and_outlives_its_parent(tmp_path: Path) -> None:
    code = "from workbench.tasks import store; print(store.start(('doctor', '--pid', '1', '--seconds', '60')).id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    task = store.load(done.stdout.strip())
    assert task is not None
    assert task.running()
    assert os.getsid(task.pid) == task.pid
    until(lambda: "watching process 1" in " ".join(task.narration()))
    assert store.interrupt(task)
    until(lambda: not task.running())
    assert task.exit_code() == 130
    assert not store.interrupt(task)


def test_one_that_is_killed_is_not_taken_for_done() -> None:
    task = store.start(("doctor", "--pid", "1", "--seconds", "60"))
    psutil.Process(task.pid).send_signal(signal.SIGKILL)
    until(lambda: task.state() != "running")
    assert (task.state(), task.exit_code()) == ("killed", None)


def test_secrets_are_in_no_file_but_reach_the_command() -> None:
    task = store.start(("serve", "--model", "/nowhere", "--", "--api-key", "sesame-0123"))
    until(lambda: task.state() != "running")
    kept = (task.folder / "task.json").read_text()
    assert "sesame" not in kept
    assert task.argv[-2:] == ("--api-key", "***")


def test_the_oldest_finished_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT", 2)
    started = []
    for _ in range(3):
        started.append(store.start(("--version",)))
        until(lambda: started[-1].state() == "done")
        time.sleep(1.01)  # ids are told apart by the second
    store.start(("--version",))
    left = [task.id for task in store.all_tasks()]
    assert started[0].id not in left
    assert len(left) <= 3


def test_what_is_no_task_is_passed_over(tmp_path: Path) -> None:
    task = store.start(("--version",))
    for name, text in (("half", '{"id": "h'), ("other", "[]"), ("empty", "")):
        (store.tasks_dir() / name).mkdir()
        (store.tasks_dir() / name / "task.json").write_text(text)
    (store.tasks_dir() / "a-file").write_text("")
    assert [found.id for found in store.all_tasks()] == [task.id]
    until(lambda: task.state() != "running")


def test_no_room_for_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot write into"):
        store.start(("--version",))
    assert list(store.all_tasks()) == []
