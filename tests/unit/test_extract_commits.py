"""Samples become part of a data set in groups: order, one sync for many, and what an error costs whom."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.job_support import wait_until
from workbench.errors import Missing
from workbench.extract.commits import Commits
from workbench.extract.index import Index, IndexLine, read_lines


def line(index: int) -> IndexLine:
    return IndexLine(index=index, status="written", file=f"data_{index}", nbytes=1, time=0.0)


def built(folder: Path, index: int) -> tuple[Path, Path, IndexLine]:
    building = folder / f".data_{index}.tmp"
    building.write_bytes(b"x")
    return building, folder / f"data_{index}", line(index)


class Recorder:
    """Takes groups; holds the first one until told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: list[list[int]] = []
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self, lines: Sequence[IndexLine]) -> None:
        assert all((self.folder / one.file).exists() for one in lines), "a line before its file"
        self.groups.append([one.index for one in lines])
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error


def start(commits: Commits, folder: Path, indices: Sequence[int]) -> tuple[list[threading.Thread], dict[int, str]]:
    said: dict[int, str] = {}

    def add(index: int, args: tuple[Path, Path, IndexLine]) -> None:
        try:
            commits.add(*args)
            said[index] = "ok"
        except Exception as error:
            said[index] = type(error).__name__

    threads = [threading.Thread(target=add, args=(index, built(folder, index))) for index in indices]
    for thread in threads:
        thread.start()
    return threads, said


def test_what_comes_meanwhile_is_one_group(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    commits = Commits(recorder)
    first, said_first = start(commits, tmp_path, [0])
    wait_until(lambda: recorder.groups == [[0]])
    rest, said = start(commits, tmp_path, range(1, 9))
    wait_until(lambda: len(commits._waiting) == 8)
    assert not said
    assert not said_first, "nobody is told before the line is there"
    recorder.go.set()
    for thread in [*first, *rest]:
        thread.join(20)
    assert said_first == {0: "ok"}
    assert said == dict.fromkeys(range(1, 9), "ok")
    assert [sorted(group) for group in recorder.groups] == [[0], list(range(1, 9))]


def test_a_file_that_cannot_have_its_name_costs_only_itself(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    commits = Commits(recorder)
    first, _ = start(commits, tmp_path, [0])
    wait_until(lambda: recorder.groups == [[0]])
    (tmp_path / "data_2").mkdir()
    rest, said = start(commits, tmp_path, [1, 2, 3])
    wait_until(lambda: len(commits._waiting) == 3)
    recorder.go.set()
    for thread in [*first, *rest]:
        thread.join(20)
    assert said == {1: "ok", 2: "IsADirectoryError", 3: "ok"}
    assert [sorted(group) for group in recorder.groups] == [[0], [1, 3]]


def test_a_group_that_cannot_be_recorded_is_told_to_each_and_the_next_goes_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    commits = Commits(recorder)
    recorder.error = Missing("the disk is full")
    first, said_first = start(commits, tmp_path, [0])
    wait_until(lambda: recorder.groups == [[0]])
    rest, said = start(commits, tmp_path, [1, 2])
    wait_until(lambda: len(commits._waiting) == 2)
    recorder.go.set()
    for thread in [*first, *rest]:
        thread.join(20)
    assert {**said_first, **said} == dict.fromkeys(range(3), "Missing")
    recorder.error = None
    commits.add(*built(tmp_path, 3))
    assert recorder.groups[-1] == [3]


def test_the_index_takes_all_lines_of_a_group_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path)
    index.append(line(0))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            index.extend([line(1), line(2)])
    assert [one.index for one in read_lines(tmp_path) if isinstance(one, IndexLine)] == [0]
    assert 1 not in index
    index.extend([line(2), line(1)])
    index.close()
    assert [one.index for one in read_lines(tmp_path) if isinstance(one, IndexLine)] == [0, 2, 1]
