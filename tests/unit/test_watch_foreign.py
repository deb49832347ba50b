"""Watching a run that has no job file: what its folders tell, and that a look costs the same however many there are."""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.extract_support import run_record
from tests.unit.watch_support import T0, dump, foreign_rows, numbered_files
from workbench.errors import UsageError
from workbench.extract.record import save_record
from workbench.extract.watch import dumps
from workbench.extract.watch.counting import BOUND, HOLES, numbered
from workbench.extract.watch.foreign import ForeignRun

LAYERS, HIDDEN = [2, 14, 25, 27], 64
PER_TOKEN = len(LAYERS) * HIDDEN * 2 + 16


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for many files: in memory where there is such, and gone afterwards."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


class InOrder(list[Any]):
    """A listing that was sorted."""

    def __enter__(self) -> "InOrder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings begin with the lowest numbers, whatever the file system does, so that the highest must be searched."""

    def by_number(entry: os.DirEntry[str]) -> int:
        return int("".join(filter(str.isdecimal, entry.name)) or 0)

    def scandir(path: Any = ".") -> Any:
        with real(path) as entries:
            return InOrder(sorted(entries, key=by_number))

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)


def config(folder: Path, **data: Any) -> None:
    """`data_config.json` as speculators 0.4 writes it, as far as it matters here."""
    whole = {
        "model": {"hidden_size": HIDDEN},
        "data": {"max_samples": None, **data},
        "hidden_states": {"layer_ids": LAYERS},
        "format": {"schema": {"hidden_states": {"dtype": "torch.bfloat16"}}},
    }
    (folder / "data_config.json").write_text(json.dumps(whole), encoding="utf-8")


def age(paths: list[Path], first: float, step: float) -> None:
    """Have the files written one after the other."""
    for place, path in enumerate(paths):
        os.utime(path, (first + place * step,) * 2)


def test_the_layout_of_rows(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 4123, size=PER_TOKEN * 50)
    age([tmp_path / "rows_4000-6000" / f"data_{n}.pt" for n in range(4000, 4123)], T0, 0.5)
    os.utime(tmp_path / "rows_0-2000" / "data_0.pt", (T0 - 4000,) * 2)
    config(tmp_path, max_samples=8246)
    found = ForeignRun(tmp_path, clock=lambda: T0 + 62).look()
    assert (found.kind, found.written, found.rows, found.share) == ("foreign", 4123, 8246, 0.5)
    assert found.nbytes == 4123 * PER_TOKEN * 50
    assert found.tokens == 4123 * 50
    assert found.samples_s_now == pytest.approx(2.0)
    assert found.tok_s_now == pytest.approx(100.0)
    assert found.bytes_s_now == pytest.approx(2.0 * PER_TOKEN * 50)
    assert found.samples_s_avg == pytest.approx(4122 / (4000 + 61))
    assert found.eta_s == pytest.approx(4123 / (4122 / 4061))
    assert {"written", "nbytes", "tokens", "samples_s_now", "eta_s"} <= set(found.estimated)
    assert found.state == "running"


def test_one_folder_of_rows_is_counted_exactly(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 17, suffix=".ckpt")
    (tmp_path / "rows_0-2000" / "data_3.ckpt").unlink()
    found = ForeignRun(tmp_path).look()
    assert found.written == 16
    assert "written" not in found.estimated
    assert found.tokens is None


def test_a_folder_made_ahead_is_passed_over(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 2100)
    (tmp_path / "rows_4000-6000").mkdir()
    assert ForeignRun(tmp_path).look().written == 2100


def test_rows_of_a_shard_are_counted_as_such(tmp_path: Path) -> None:
    numbered_files(tmp_path / "rows_0-2000", "data_", ".pt", range(1, 2000, 3))
    numbered_files(tmp_path / "rows_2000-4000", "data_", ".pt", range(2002, 2030, 3))
    save_record(tmp_path, run_record("speculators-v1", rows=3001, shard=(1, 3)))
    found = ForeignRun(tmp_path).look()
    assert found.written == len(range(1, 2000, 3)) + 10
    assert found.rows == 1000


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("place", ["hidden_states/hs_{}.safetensors", "data_{}.pt", "data_{}.ckpt"])
@pytest.mark.parametrize("count", [3, 4096, 4097, 10_000, 16_384])
def test_flat_folders(memory: Path, place: str, count: int) -> None:
    folder, name = memory / os.path.dirname(place), os.path.basename(place)
    prefix, suffix = name.split("{}")
    numbered_files(folder, prefix, suffix, range(count))
    assert ForeignRun(memory).look().written == count


@pytest.mark.usefixtures("in_order")
def test_holes_do_not_end_the_search(memory: Path) -> None:
    numbered_files(memory, "data_", ".pt", range(9000))
    for number in [*range(4096, 4103), *range(4607, 4614), *range(6143, 6150), 8991, 8998]:
        (memory / f"data_{number}.pt").unlink()
    found = numbered(str(memory), "data_", (".pt", ".ckpt"))
    assert (found.highest, found.total, found.exact) == (8999, 9000, False)


@pytest.mark.usefixtures("in_order")
def test_numbers_that_do_not_begin_at_0(memory: Path) -> None:
    numbered_files(memory, "data_", ".pt", range(50_000, 56_000))
    assert numbered(str(memory), "data_", (".pt",)).highest == 55_999


def test_rates_between_looks(tmp_path: Path) -> None:
    clock = [T0]
    foreign_rows(tmp_path, 100, size=PER_TOKEN * 10)
    config(tmp_path)
    run = ForeignRun(tmp_path, clock=lambda: clock[0])
    run.look()
    for when in (10, 20, 30, 40):
        numbered_files(tmp_path / "rows_0-2000", "data_", ".pt", range(100 + when, 110 + when), PER_TOKEN * 10)
        numbered_files(tmp_path / "rows_0-2000", "data_", ".pt", range(1000 + when, 1000 + when + when // 10))
        clock[0] = T0 + when
        found = run.look()
    # In the last 30 seconds, from 10 to 40, came 3 x 10 and 2 + 3 + 4 samples.
    assert found.samples_s_now == pytest.approx(39 / 30)
    assert "samples_s_now" not in found.estimated
    assert [when for when, _ in found.history] == [T0 + 10, T0 + 20, T0 + 30, T0 + 40]
    assert found.history_unit == "tok/s"


def test_old_files_are_a_run_that_is_still(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 40)
    age([tmp_path / "rows_0-2000" / f"data_{n}.pt" for n in range(40)], T0, 1.0)
    found = ForeignRun(tmp_path, clock=lambda: T0 + 39 + 3600).look()
    assert (found.state, found.samples_s_now) == ("still", None)
    assert found.why == "the newest file is 3600 s old"


def test_every_row_there_is_the_end(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 40)
    config(tmp_path, max_samples=40)
    found = ForeignRun(tmp_path).look()
    assert (found.state, found.over, found.share) == ("done", True, 1.0)
    assert "rows" in found.estimated
    config(tmp_path, max_samples=30)
    found = ForeignRun(tmp_path).look()
    assert (found.state, found.rows) == ("running", None)


def test_a_dump_folder(tmp_path: Path) -> None:
    for number in (7, 9, 11):
        dump(tmp_path / "d", number, 1000)
    (tmp_path / "d" / "req_12.tmp").mkdir()
    foreign_rows(tmp_path / "out", 2)
    found = ForeignRun(tmp_path / "out", tmp_path / "d").look()
    assert (found.dump_n, found.waiting_bytes, found.at_least) == (11, 3000, ())
    (tmp_path / "d" / "index.jsonl").write_text('{"n": 40}\n{"n": 41}\n{"n": 4', encoding="utf-8")
    assert ForeignRun(tmp_path / "out", tmp_path / "d").look().dump_n == 41


@pytest.mark.parametrize("where", ["out/d", "d"], ids=["inside", "beside"])
@pytest.mark.parametrize("sign", ["req", "index.jsonl", "recorder.json"])
def test_a_dump_folder_is_found(tmp_path: Path, where: str, sign: str) -> None:
    foreign_rows(tmp_path / "out", 2)
    other = foreign_rows(tmp_path / "other", 2)
    save_record(other, run_record("speculators-v1"))
    (other / "index.jsonl").write_text('{"n": 1}\n', encoding="utf-8")
    folder = tmp_path / where
    folder.mkdir()
    if sign == "req":
        dump(folder, 5, 10)
    else:
        (folder / sign).write_text('{"n": 5}\n', encoding="utf-8")
    found = ForeignRun(tmp_path / "out").look()
    assert found.dump_dir == str(folder)
    assert found.dump_n == (None if sign == "recorder.json" else 5)
    assert "dump_dir" in found.estimated


def test_a_dump_folder_alone_can_be_watched(tmp_path: Path) -> None:
    dump(tmp_path / "d", 5, 10)
    found = ForeignRun(tmp_path / "d").look()
    assert (found.state, found.written, found.dump_n, found.estimated) == ("waiting", 0, 5, ("waiting_bytes",))


def test_many_waiting_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5000):
        os.mkdir(tmp_path / f"req_{number}")
    (tmp_path / "req_4999" / "aux_0.pt").write_bytes(b"x" * 100)
    if os.stat(tmp_path).st_nlink > 2:
        assert dumps.look(tmp_path) == (4999, 5000, 500_000, True)
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: os.stat_result((*real(path, **how)[:3], 1, *([0] * 6))))
    assert dumps.look(tmp_path) == (4999, 4096, 409_600, False)


def test_damaged_side_files_tell_nothing(tmp_path: Path) -> None:
    foreign_rows(tmp_path, 2)
    for text in ("{", "[]", '{"model": 1}', '{"hidden_states": {"layer_ids": 5}, "model": {"hidden_size": 4}}'):
        (tmp_path / "data_config.json").write_text(text, encoding="utf-8")
        found = ForeignRun(tmp_path).look()
        assert (found.written, found.tokens, found.rows) == (2, None, None)
    (tmp_path / "hsbench.json").write_text("{", encoding="utf-8")
    assert ForeignRun(tmp_path).look().written == 2


def test_nothing_to_watch(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    for folder in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UsageError):
            ForeignRun(folder)
    with pytest.raises(UsageError, match="dump folder"):
        ForeignRun(tmp_path / "empty", tmp_path / "none")


class Calls:
    """Counts calls to the file system, and the entries that listings gave."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        for owner, name in ((os, "stat"), (os.path, "exists"), (os, "listdir"), (os, "open")):
            patch.setattr(owner, name, self._counted(name, getattr(owner, name)))
        self._scandir = os.scandir
        patch.setattr(os, "scandir", self.scandir)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.seen[name] += 1
            return real(*args, **more)

        return call

    def scandir(self, path: Any = ".") -> Any:
        self.seen["scandir"] += 1
        return Listing(self, self._scandir(path))


class Listing:
    """A listing whose entries are counted."""

    def __init__(self, calls: Calls, real: Any) -> None:
        self._calls, self._real = calls, real

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __iter__(self) -> Iterator[Any]:
        for entry in self._real:
            self._calls.seen["entries"] += 1
            yield entry


def cost(folder: Path) -> Counter[str]:
    """Calls of one look, after the first, which searches for a dump folder."""
    run = ForeignRun(folder)
    run.look()
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        run.look()
    assert calls.seen["scandir"]
    return calls.seen


def test_a_look_at_a_dump_folder_costs_the_same_at_any_number(memory: Path) -> None:
    costs: list[Counter[str]] = []
    for count in (5_000, 20_000):
        folder = memory / f"of_{count}"
        folder.mkdir()
        for number in range(count):
            os.mkdir(folder / f"req_{number}")
        dump(folder, count, 100)
        with open(folder / "index.jsonl", "w", encoding="utf-8") as file:
            file.writelines(f'{{"n": {number}}}\n' for number in range(count + 1))
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch)
            found = dumps.look(folder)
        assert (found.highest, found.waiting) in ((count, count + 1), (count, BOUND))
        costs.append(calls.seen)
    assert costs[1]["entries"] <= BOUND + 1 + 2 * dumps.WEIGHED
    assert sum(costs[1].values()) <= sum(costs[0].values()) + 2 * HOLES * 2


def make(kind: str, folder: Path, count: int) -> Path:
    if kind == "rows":
        return foreign_rows(folder, count)
    if kind == "flat":
        numbered_files(folder, "data_", ".pt", range(count))
    else:
        numbered_files(folder / "hidden_states", "hs_", ".safetensors", range(count))
    return folder


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("kind", ["rows", "flat", "hidden_states"])
def test_a_look_costs_the_same_at_any_number_of_samples(memory: Path, kind: str) -> None:
    costs = {}
    for count in (2_000, 20_000, 200_000):
        folder = make(kind, memory / str(count) / "out", count)
        costs[count] = cost(folder)
        shutil.rmtree(memory / str(count))
    few = costs.pop(2_000)
    for count, found in costs.items():
        folders = (count - 2_000) // 2_000
        # Flat folders are searched: up and down by powers of 2, and up to 8 names are tried for each number.
        steps = 0 if kind == "rows" else 2 * HOLES * count.bit_length()
        listed = few["entries"] + folders if kind == "rows" else 2 * (BOUND + 1)
        assert found["entries"] <= listed
        calls = sum(n for name, n in found.items() if name != "entries")
        assert calls <= sum(n for name, n in few.items() if name != "entries") + steps
