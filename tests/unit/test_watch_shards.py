"""Watching a run of several shards. Expected sums, medians and shares come from arithmetic on events made by hand."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.extract_support import run_record
from tests.unit.watch_support import job_file, make_job, picture, tell
from workbench import cli
from workbench.errors import UsageError
from workbench.exitcodes import ExitCode
from workbench.extract.index import IndexLine
from workbench.extract.job.events import Ended, JobEvent, Told
from workbench.extract.job.files import JobFiles
from workbench.extract.merge import merge
from workbench.extract.record import save_record
from workbench.extract.watch import run_in
from workbench.extract.watch.own import LOST_S
from workbench.extract.watch.shards import ShardsRun
from workbench.extract.watch.together import waits_for
from workbench.extract.watch.view import RunView
from workbench.storage.store import Store
from workbench.tui.sources.extraction import ExtractionSource

NOW = 1_000_000.0 + 30


@pytest.fixture(autouse=True)
def at_a_known_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Thirty seconds after the jobs began; and a state folder of its own."""
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def work(rate: int, **changes: Any) -> list[JobEvent]:
    """Half a minute of work at so many tokens a second."""
    return [picture(s, rate * s, **(changes if s == 30 else {})) for s in (0, 10, 20, 30)]


def shard(out: Path, number: int, events: list[JobEvent], of: int = 4, alive: bool = True) -> JobFiles:
    folder = out / f"shard_{number}-of-{of}"
    files = make_job(folder, events, alive)
    save_record(folder, run_record("speculators-v1", 4000, shard=(number, of)))
    return files


DONE = Ended(time=NOW, state="done", message="1,000 samples", start=1)


def test_the_total_and_a_row_a_shard(tmp_path: Path) -> None:
    shard(tmp_path, 0, work(1000, waiting_bytes=5, in_flight=8, restarts=1))
    shard(tmp_path, 1, work(400, waiting_bytes=7, in_flight=8))
    shard(tmp_path, 2, work(1200, in_flight=8))
    seen = run_in(tmp_path).look()
    assert (seen.kind, seen.state, seen.rows) == ("shards", "running", 4000)
    assert seen.tok_s_now == pytest.approx(1000 + 400 + 1200)
    assert (seen.tokens, seen.written) == (30 * 2600, 300 + 120 + 360)
    assert (seen.waiting_bytes, seen.in_flight, seen.restarts) == (12, 24, 1)
    assert seen.tokens_expected == pytest.approx(3 * 1e6 * 4000 / 3000)
    assert seen.eta_s == pytest.approx((4e6 - 78_000) / 2600)
    assert [(row.shard, row.state, row.done) for row in seen.shards] == [
        ("shard_0-of-4", "running", 300),
        ("shard_1-of-4", "running", 120),
        ("shard_2-of-4", "running", 360),
        ("shard_3-of-4", "waiting", 0),
    ]
    assert [row.of_median for row in seen.shards[:3]] == pytest.approx([1.0, 0.4, 1.2])
    assert seen.slowest_shard == "shard_1-of-4 goes at 40 % of the median rate, and waits for " + (
        "its server's prefill, or its start"
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"in_flight": 4}, "server"),
        ({"in_flight": 4, "waiting_bytes": 90, "high_water_bytes": 100}, "disk"),
        ({"in_flight": 4, "waiting_bytes": 70, "high_water_bytes": 100}, "server"),
        ({"in_flight": 0}, "data set"),
        ({"state": "restarting", "why": "starting the server again"}, "server"),
        ({"state": "paused", "why": "paused by hand; hsbench job continue /out goes on"}, "a person"),
        ({"state": "paused", "why": "the storage is not reachable: refused; waiting"}, "upload"),
        ({"state": "paused", "why": "as much waits for the upload as may"}, "upload"),
        ({"state": "paused", "why": "1.0 GB free in /out, 2.0 GB are to stay free"}, "disk"),
        ({"state": "paused", "why": "1.0 kB free in /dumps, a dump takes 2.0 kB"}, "dump folder"),
        ({"state": "running", "why": "the job told nothing for 45 s"}, "stalled"),
        ({"state": "done"}, ""),
    ],
)
def test_what_a_shard_waits_for(changes: dict[str, Any], what: str) -> None:
    view = RunView(**{"kind": "own", "folder": "/out", "time": NOW, "state": "running", **changes})
    assert waits_for(view) == what


def test_the_slowest_is_the_one_that_stands_and_why_is_said(tmp_path: Path) -> None:
    shard(tmp_path, 0, work(1000, in_flight=8))
    shard(tmp_path, 1, work(400, in_flight=8))
    shard(tmp_path, 2, [*work(1200), picture(30, 36_000, state="paused", why="the storage is not reachable; waiting")])
    seen = run_in(tmp_path).look()
    assert seen.slowest_shard == (
        "shard_2-of-4 stands, and waits for the storage: samples wait to be uploaded "
        "(the storage is not reachable; waiting)"
    )


def test_equal_shards_have_no_slow_one(tmp_path: Path) -> None:
    for number in range(4):
        shard(tmp_path, number, work(1000 + number, in_flight=8))
    assert run_in(tmp_path).look().slowest_shard.endswith("none is slow")


def test_a_failed_or_killed_shard_comes_first_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(tmp_path, 0, work(1000))
    bad = Ended(time=NOW, state="failed", message="too many were bad", start=1, exit_code=1)
    shard(tmp_path, 2, [*work(900), bad], alive=False)
    shard(tmp_path, 3, work(900), alive=False)
    seen = run_in(tmp_path).look()
    assert [row.state for row in seen.shards] == ["failed", "killed", "running", "waiting"]
    assert (seen.state, seen.why.split(":")[0]) == ("running", "shard_2-of-4 failed")
    tell(JobFiles(tmp_path / "shard_0-of-4"), DONE)
    assert cli.run(["watch", str(tmp_path), "--once"]) == ExitCode.CHECK_FAILED
    out, said = capsys.readouterr()
    assert "shard_2-of-4 failed: too many were bad" in out
    assert said.endswith(f"  next: hsbench extract --resume {tmp_path}/shard_2-of-4\n")


def test_when_all_are_done_the_next_step_is_the_merge(tmp_path: Path) -> None:
    for number in range(3):
        shard(tmp_path, number, [*work(1000), DONE], alive=False)
    run = run_in(tmp_path)
    seen = run.look()
    assert (seen.state, seen.over, seen.why) == ("waiting", False, "1 of 4 shards are not begun")
    shard(tmp_path, 3, [*work(1000), DONE], alive=False)
    seen = run.look()
    assert (seen.state, seen.over, seen.next_step) == ("done", True, f"hsbench extract --merge {tmp_path}")


def test_shards_without_a_row_stand_for_no_other(tmp_path: Path) -> None:
    for number in (0, 1):
        folder = tmp_path / f"shard_{number}-of-5"
        make_job(folder, [*work(100), DONE], alive=False)
        save_record(folder, run_record("speculators-v1", 3, shard=(number, 5)))
    for number in (3, 4):
        make_job(tmp_path / f"shard_{number}-of-5", [picture(0, 0, rows=0, state="done"), DONE], alive=False)
    seen = run_in(tmp_path).look()
    assert (seen.state, seen.why) == ("waiting", "1 of 3 shards are not begun")
    assert [(row.shard, row.state, row.rows) for row in seen.shards] == [
        ("shard_2-of-5", "waiting", 1),
        *((f"shard_{n}-of-5", "done", {0: 1000, 1: 1000}.get(n, 0)) for n in (0, 1, 3, 4)),
    ]


def test_servers_and_nodes_are_those_of_the_cluster_and_its_job_tells_the_total(tmp_path: Path) -> None:
    make_job(tmp_path, work(5000, rows=4000))
    shard(tmp_path, 0, work(1000))
    shard(tmp_path, 1, work(2000))
    lines = [
        {"time": 1, "server": "hs-0", "node": "10.0.0.1", "shard": "shard_0-of-4", "state": "preflight", "verdict": ""},
        {"time": 2, "server": "hs-1", "node": "10.0.0.2", "shard": "shard_1-of-4", "state": "running"},
        {"time": 3, "server": "hs-0", "node": "10.0.0.3", "shard": "shard_0-of-4", "verdict": "READY", "more": [1]},
        {"time": 4, "server": "hs-0", "node": "10.0.0.3", "shard": None, "state": "lost"},
    ]
    path = tmp_path / ".hsbench/cluster.jsonl"
    path.write_text("not json\n" + "".join(json.dumps(line) + "\n" for line in lines) + '{"time": 5, "server"')
    run = run_in(tmp_path)
    seen = run.look()
    assert (seen.kind, seen.tokens, seen.tok_s_now) == ("own", 150_000, 5000)
    assert [(row.shard, row.server, row.node, row.verdict) for row in seen.shards[:2]] == [
        ("shard_0-of-4", "hs-0", "10.0.0.3", "READY"),
        ("shard_1-of-4", "hs-1", "10.0.0.2", ""),
    ]
    with open(path, "a", encoding="utf-8") as file:
        file.write(': "hs-9", "node": "10.0.0.9", "shard": "shard_1-of-4"}\n')
    assert run.look().shards[1].node == "10.0.0.9"
    assert "shard_0-of-4 on 10.0.0.3 goes at 67 % of the median rate" in seen.slowest_shard


def test_of_shards_that_lie_elsewhere_the_cluster_tells(tmp_path: Path) -> None:
    make_job(tmp_path, work(5000, rows=4000))
    about = {"verdict": "READY", "samples": 40, "waiting_bytes": 10}
    lines = [
        {"time": 1, "server": "a", "node": "n1", "shard": "shard_0-of-3", "state": "done", "samples": 99},
        {"time": 2, "server": "a", "node": "n1", "shard": "shard_2-of-3", "state": "running", "tok_s": 3000.0, **about},
        {"time": 2, "server": "b", "node": "n2", "shard": "shard_1-of-3", "state": "running", "tok_s": 1000.0, **about},
    ]
    path = tmp_path / ".hsbench/cluster.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = run_in(tmp_path)
    seen = run.look()
    assert [(row.shard, row.state, row.node, row.done, row.of_median) for row in seen.shards] == [
        ("shard_1-of-3", "running", "n2", 40, 0.5),
        ("shard_2-of-3", "running", "n1", 40, 1.5),
        ("shard_0-of-3", "done", "n1", 99, None),
    ]
    assert seen.slowest_shard == "shard_1-of-3 on n2 goes at 50 % of the median rate"
    with open(path, "a", encoding="utf-8") as file:
        file.write(
            '{"time": 3, "server": "b", "node": "n2", "shard": null, "state": "lost", "note": "the node died"}\n'
        )
    assert [(row.shard, row.state, row.why) for row in run.look().shards][1] == (
        "shard_1-of-3",
        "waiting",
        "the node died",
    )


def test_a_job_on_another_machine_is_judged_by_what_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = shard(tmp_path, 0, work(1000), alive=False)
    job = job_file(files.out, alive=False)
    files.save(type(job)(**{**{name: getattr(job, name) for name in job.__struct_fields__}, "host": "elsewhere"}))
    assert run_in(tmp_path).look().shards[0].state == "running"
    monkeypatch.setattr("time.time", lambda: NOW + LOST_S + 1)
    seen = run_in(tmp_path).look()
    assert (seen.shards[0].state, seen.shards[0].node) == ("killed", "elsewhere")
    assert "on elsewhere is gone" in seen.why


def test_shards_that_are_over_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path, 0, [*work(1000), DONE], alive=False)
    files = shard(tmp_path, 1, work(1000))
    looked: list[Path] = []
    real = ShardsRun._view.__globals__["OwnRun"].look

    def look(self: Any) -> RunView:
        looked.append(self.files.out)
        found = real(self)
        assert isinstance(found, RunView)
        return found

    monkeypatch.setattr(ShardsRun._view.__globals__["OwnRun"], "look", look)
    run = run_in(tmp_path)
    for _ in range(3):
        run.look()
    assert [path.name for path in looked] == ["shard_0-of-4", *["shard_1-of-4"] * 3]
    tell(files, Told(time=NOW, text="odd", level="warning"))
    assert [told.text for told in run.look().messages] == ["shard_1-of-4: odd"]


def test_the_last_shard_at_work_is_told_when_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path, 0, [*work(1000, in_flight=8), DONE], of=2, alive=False)
    files = shard(tmp_path, 1, work(900, in_flight=32), of=2)
    run = run_in(tmp_path)
    seen = run.look()
    assert not seen.slowest_shard
    assert seen.eta_s == pytest.approx((4e6 - 57_000) / 900)
    tell(files, *[picture(s, 27_000, in_flight=32) for s in range(32, 105, 2)])
    monkeypatch.setattr("time.time", lambda: NOW + 74)
    seen = run.look()
    assert seen.slowest_shard == (
        "shard_1-of-2 stands (0 tok/s, 32 in flight, no sample for 1 min 14 s), and waits for its server's prefill, "
        "or its start"
    )
    assert (seen.tok_s_now, seen.eta_s) == (0, None)
    alone = run_in(tmp_path / "shard_1-of-2").look()
    assert (alone.tok_s_now, alone.eta_s, alone.quiet_s) == (0, None, 74)


def test_the_last_shard_is_compared_with_those_that_are_done(tmp_path: Path) -> None:
    for number in range(3):
        shard(tmp_path, number, [*work(1000), DONE], alive=False)
    shard(tmp_path, 3, work(300, in_flight=8))
    assert run_in(tmp_path).look().slowest_shard == (
        "shard_3-of-4 goes at 30 % of the median rate of those done, and waits for its server's prefill, or its start"
    )


def test_the_total_counts_what_the_shards_hold(tmp_path: Path) -> None:
    make_job(tmp_path, [picture(0, 0, rows=2000)])
    shard(tmp_path, 0, [*work(1000), DONE], of=2, alive=False)
    shard(tmp_path, 1, work(500, quarantined=2), of=2)
    seen = run_in(tmp_path).look()
    assert (seen.written, seen.quarantined, seen.tokens, seen.nbytes) == (300 + 150, 2, 45_000, 45_000_000)
    tell(JobFiles(tmp_path), picture(30, 60_000, rows=2000))
    assert run_in(tmp_path).look().written == 600


def test_a_disk_whose_room_nobody_told_is_not_shown_as_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_job(tmp_path, work(1000))
    assert run_in(tmp_path).look().free_bytes is None
    assert cli.run(["watch", str(tmp_path), "--once"]) == ExitCode.OK
    assert "free" not in capsys.readouterr().out
    tell(JobFiles(tmp_path), picture(30, 30_000, free_bytes=1 << 30))
    assert run_in(tmp_path).look().free_bytes == 1 << 30


def test_a_shard_of_another_run_is_named_and_the_whole_is_not_called_done(tmp_path: Path) -> None:
    for number in range(3):
        shard(tmp_path, number, [*work(1000), DONE], alive=False)
    other = run_record("specforge", 4000, shard=(3, 4))
    shard(tmp_path, 3, work(1000))
    save_record(tmp_path / "shard_3-of-4", other)
    run = run_in(tmp_path)
    said = "shard_3-of-4 is of another run than shard_0-of-4: format: speculators-v1, now specforge"
    assert (run.look().state, run.look().why) == ("running", said)
    tell(JobFiles(tmp_path / "shard_3-of-4"), DONE)
    seen = run.look()
    assert (seen.state, seen.why) == ("failed", said)
    assert seen.next_step == "move shard_3-of-4 away, or make it again as the others were made"
    with pytest.raises(UsageError, match="shard_3-of-4 is of another run than shard_0-of-4"):
        list(merge(tmp_path))
    save_record(tmp_path / "shard_3-of-4", run_record("speculators-v1", 4000, shard=(3, 4)))
    assert run.look().state == "done"


def test_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(tmp_path, 0, work(1000, in_flight=8, waiting_bytes=2048))
    shard(tmp_path, 1, work(400, in_flight=8))
    assert cli.run(["watch", str(tmp_path), "--once"]) == ExitCode.OK
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith(" shard_1-of-4"))
    assert row.split() == ["shard_1-of-4", "running", "120/1,000", "400", "57", "%", "server"]
    assert "4 shards: 2 running, 2 waiting" in out
    assert "behind" in out
    assert cli.run(["watch", str(tmp_path), "--once", "--json"]) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["shards"]) == 4


def test_shards_at_a_url_have_a_row_each() -> None:
    url = "memory://bucket/watched"
    for number, count in ((0, 3), (1, 1)):
        store = Store.open(f"{url}/shard_{number}-of-2")
        store.replace("index/run.json", msgspec.json.encode(run_record("speculators-v1", 8, shard=(number, 2))))
        lines = [
            IndexLine(index=number + 2 * n, status="written", tokens=600 * (n + 1), time=NOW - 30 + n)
            for n in range(count)
        ]
        store.replace("index/part-000000.jsonl", b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    seen = run_in(url).look()
    assert [(row.shard, row.state, row.done, row.rows) for row in seen.shards] == [
        ("shard_0-of-2", "running", 3, 4),
        ("shard_1-of-2", "running", 1, 4),
    ]
    assert seen.shards[0].tok_s == pytest.approx((600 + 1200 + 1800) / 60)  # of the last minute
    assert seen.slowest_shard.startswith("shard_1-of-2 stands")


def test_the_app_shows_it_as_one_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(out, 0, work(1000))
    source = ExtractionSource()
    source.attach(str(out))
    first = source.collect()
    assert first.detail is not None
    assert first.detail.problem == ""
    assert first.detail.view is not None
    assert (first.detail.view.kind, first.detail.view.written) == ("shards", 300)
    source.relist()
    assert [(row.state, row.written) for row in source.collect().runs] == [("running", 300)]
