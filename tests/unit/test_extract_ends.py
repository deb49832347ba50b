"""How a job that needs no server ends and how that is shown: a shard without rows, a refusal, nothing left to do."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.extract_support import LocalWorker, local_pool, run_record
from tests.unit.merge_support import contents, join, write
from tests.unit.watch_support import make_job, picture, tell
from workbench import cli
from workbench.errors import CheckFailed
from workbench.exitcodes import ExitCode
from workbench.extract.dataset import Dataset, DatasetSettings
from workbench.extract.index import INDEX_FILE
from workbench.extract.job import start
from workbench.extract.job.events import Ended, JobEvent, Progress
from workbench.extract.job.files import JobFile, JobFiles, Request
from workbench.extract.job.roster import known_jobs
from workbench.extract.job.run import Control, run
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.watch import run_in

WHOLE = Ended(time=1_000_060.0, state="done", message="9 samples", next_step="hsbench verify OUT --all", start=1)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers without a process, folders of its own, and no server: whatever asked for one would fail."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(start, "WorkerPool", lambda *_: local_pool())
    monkeypatch.setattr(start, "Worker", LocalWorker)
    monkeypatch.setattr(start, "find_interpreter", lambda *_: "here")


def data_of(folder: Path, rows: int) -> Path:
    path = folder / f"{rows}.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [row + 1, 2], "loss_mask": [0, 1]}) + "\n" for row in range(rows)))
    return path


def finished(out: Path, **changes: Any) -> Path:
    """A run of 11 rows that is done."""
    write(out, "speculators-v1", **changes)
    make_job(out, [picture(10.0, 100, rows=11, written=9), WHOLE], alive=False)
    return out


def extract(data: Path, out: Path, *options: str) -> int:
    return cli.run(["extract", str(data), "--out", str(out), "--foreground", *options])


def test_a_shard_without_a_row_is_done_and_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = data_of(tmp_path, 3), tmp_path / "out"
    for number in range(3):
        folder = write(out / f"shard_{number}-of-5", "speculators-v1", (number, 5), rows=3)
        tell(JobFiles(folder), WHOLE)
    for number in (3, 4, 3):
        assert extract(data, out, "--shard", f"{number}/5") == ExitCode.OK
    said = capsys.readouterr().err
    assert "0 samples: none of the 3 rows belongs to shard 3/5" in said
    assert f"hsbench extract --merge {out}" in said
    alone = run_in(out / "shard_3-of-5").look()
    assert (alone.state, alone.rows, alone.written) == ("done", 0, 0)
    seen = run_in(out).look()
    assert (seen.state, seen.why) == ("done", "all 3 shards are done")
    assert {row.shard: row.state for row in seen.shards} == {f"shard_{number}-of-5": "done" for number in range(5)}
    assert cli.run(["watch", str(out), "--once"]) == ExitCode.OK
    assert join(out).state == "done"
    assert contents(out) == contents(write(tmp_path / "whole", "speculators-v1", rows=3))
    assert not list(out.glob("shard_*"))


def test_a_detached_shard_without_a_row_is_told_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["extract", str(data_of(tmp_path, 3)), "--out", str(tmp_path / "out"), "--shard", "4/5"]
    assert cli.run(call) == ExitCode.OK
    said = capsys.readouterr().err
    assert "done: 0 samples: none of the 3 rows belongs to shard 4/5" in said
    assert "it runs on by itself" not in said


def test_a_data_set_without_a_row_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract(data_of(tmp_path, 0), tmp_path / "out", "--shard", "3/5") == ExitCode.USAGE
    assert "is empty: it has no rows" in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--layers", "0,1"), ("--format", "specforge")])
def test_a_refusal_leaves_a_finished_run_as_it_is_shown(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = finished(tmp_path / "out")
    before = run_in(out).look()
    assert extract(data_of(tmp_path, 4), out, *options) == ExitCode.USAGE
    assert "this folder is of another run: " in capsys.readouterr().err
    seen = run_in(out).look()
    assert (seen.state, seen.why, seen.next_step) == (before.state, before.why, before.next_step) == shown(WHOLE)
    assert (seen.rows, seen.written, seen.tok_s_avg) == (11, 9, pytest.approx(100 / 10))
    assert cli.run(["watch", str(out), "--once"]) == ExitCode.OK
    events = [json.loads(line) for line in JobFiles(out).events.read_bytes().splitlines()]
    assert [event.get("state") for event in events[-2:]] == ["failed", "done"], "what it tells has the refusal"


def shown(ended: Ended) -> tuple[str, str, str]:
    return ended.state, ended.message, ended.next_step


def spoiling(out: Path) -> Iterator[JobEvent]:
    """A start that takes a row back, as --redo-bad does, and then fails."""
    yield Progress(time=1.0, state="preflight")
    with open(out / INDEX_FILE, "ab") as file:
        file.write(b'{"index": 6, "status": "again"}\n')
    raise CheckFailed("the server is gone")


def harmless(_: Path) -> Iterator[JobEvent]:
    yield Progress(time=1.0, state="preflight")
    raise CheckFailed("the server is gone")


@pytest.mark.parametrize(
    ("work", "before", "state"),
    [
        (harmless, WHOLE, "done"),
        (spoiling, WHOLE, "failed"),
        (harmless, Ended(time=1_000_060.0, state="stopped", message="2 rows to go", start=1), "failed"),
        (harmless, Ended(time=1_000_060.0, state="failed", message="no room", start=1), "failed"),
        (harmless, picture(11.0, 100, rows=11), "failed"),
    ],
)
def test_a_run_that_really_failed_is_shown_so(
    tmp_path: Path, work: Callable[[Path], Iterator[JobEvent]], before: JobEvent, state: str
) -> None:
    out = write(tmp_path / "out", "speculators-v1")
    make_job(out, [picture(10.0, 100, rows=11), before], alive=False)

    def do(files: JobFiles, job: JobFile, request: Request, stopping: Callable[[], bool]) -> Iterator[JobEvent]:
        return work(files.out)

    settings = ExtractSettings(data="/data.jsonl", out=str(out))
    with pytest.raises(CheckFailed, match="the server is gone"):
        list(run(Request(settings=settings), Control(), do))
    seen = run_in(out).look()
    assert (seen.state, seen.why) == (state, WHOLE.message if state == "done" else "the server is gone")


def test_a_resume_with_nothing_to_do_keeps_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_of(tmp_path, 11)
    source = Dataset.open(DatasetSettings(path=str(data)), LocalWorker("here")).source()
    out = finished(tmp_path / "out", source=source)
    assert run_record("speculators-v1", 11).source != source
    assert extract(data, out) == ExitCode.OK
    assert "9 samples" in capsys.readouterr().err
    assert run_in(out).look().tok_s_avg == pytest.approx(100 / 10)
    assert [(job.state, job.written, job.rows) for job in known_jobs()] == [("done", 9, 11)]
    assert cli.run(["job", "list"]) == ExitCode.OK
    assert "9/11" in capsys.readouterr().out
