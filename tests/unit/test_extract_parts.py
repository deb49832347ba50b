"""Parts of the extraction job: the estimate, arrivals, the gate, the journal, and what the command refuses."""

import contextlib
import io
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import msgspec
import pytest

from tests.unit.extract_support import sample, write_both
from tests.unit.job_support import wait_until
from workbench import cli, output
from workbench.commands.extract import Lines
from workbench.errors import CheckFailed, Missing, UsageError
from workbench.extract.dataset import Dataset, Tally
from workbench.extract.index import Index, IndexLine
from workbench.extract.job import detach, preflight
from workbench.extract.job import gate as gate_module
from workbench.extract.job.arrivals import Arrivals, sweep
from workbench.extract.job.estimate import LOOK_AT, estimate, from_lengths
from workbench.extract.job.events import Ended, Progress, Told
from workbench.extract.job.files import JobFile, JobFiles, Journal, Request, recent
from workbench.extract.job.gate import Gate
from workbench.extract.job.roster import known_jobs, note
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.sample import Refused, Sample
from workbench.server.state import ServerRecord


def test_the_estimate_is_exact_when_all_rows_were_seen() -> None:
    seen = from_lengths(4, [10, 0, 30, 20], sample(0))
    assert (seen.tokens, seen.tokens_low, seen.longest) == (60, 60, 30)


def test_the_interval_is_that_of_a_sample_without_replacement() -> None:
    seen = from_lengths(100, [10, 20, 30, 40], sample(0))
    deviation = math.sqrt((15**2 + 5**2 + 5**2 + 15**2) / 3)
    assert seen.tokens == 2500
    assert seen.tokens_low == pytest.approx(2500 - 100 * 1.96 * deviation / 2 * math.sqrt(1 - 4 / 100))


class Lengths:
    """A data set by its lengths; 0 is a refused row."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.tally, self.asked = lengths, Tally(), list[int]()

    def samples(self, numbers: Iterable[int]) -> Iterator[Sample | Refused]:
        for number in numbers:
            self.asked.append(number)
            length = self.lengths[number]
            row = sample(number, tokens=length) if length else Refused(number, "mask", "no")
            self.tally.add(row)
            yield row


def test_rows_are_looked_at_from_the_first_to_the_last_and_the_shortest_is_probed() -> None:
    data = Lengths([3000 - number for number in range(1535)])
    seen = estimate(cast(Dataset, data), range(1535))
    assert len(data.asked) == len(set(data.asked)) == LOOK_AT
    assert data.asked[0] == 0
    assert data.asked[-1] >= 1530
    assert seen.shortest is not None
    assert seen.shortest.index == data.asked[-1]


def test_only_the_first_start_minds_how_many_rows_are_refused() -> None:
    data = cast(Dataset, Lengths([0, 0]))
    with pytest.raises(CheckFailed):
        estimate(data, [0, 1])
    assert estimate(data, [0, 1], check=False).shortest is None


def test_passes_of_one_prompt_are_waited_for_and_ordered(tmp_path: Path) -> None:
    whole = sample(1, tokens=20)
    arrivals = Arrivals(tmp_path, "hs-t-", allow_chunked=True)
    expected = arrivals.expect("hs-t-1", 20)
    second = {"chunk": 1, "num_tokens": 8, "pass": {"index": 9, "requests": 1, "rows": 8, "row": 0}}
    write_both(tmp_path, whole, request_id="hs-t-1", **second)
    time.sleep(0.1)
    assert not expected.came.is_set()
    first = {"chunk": 0, "num_tokens": 12, "pass": {"index": 8, "requests": 1, "rows": 12, "row": 0}}
    write_both(tmp_path, whole, request_id="hs-t-1", **first)
    assert expected.came.wait(5)
    assert [folder.name for folder in expected.folders] == ["req_1", "req_0"]
    arrivals.close()


def test_a_dump_after_its_request_was_given_up_is_removed(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, "hs-t-")
    expected = arrivals.expect("hs-t-1", 20)
    arrivals.give_up(expected)
    folder = write_both(tmp_path, sample(1), request_id="hs-t-1")
    wait_until(lambda: not folder.exists())
    assert arrivals.highest == 0
    arrivals.close()


def test_an_emptied_dump_folder_is_followed_from_its_new_beginning(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, "hs-t-")
    for number in range(3):
        write_both(tmp_path, sample(number), request_id=f"hs-t-{number}")
    wait_until(lambda: not list(tmp_path.glob("req_*")))
    (tmp_path / "index.jsonl").unlink()
    arrivals.look()
    expected = arrivals.expect("hs-t-9", 10)
    write_both(tmp_path, sample(0), request_id="hs-t-9")
    assert expected.came.wait(5)
    arrivals.close()


def test_half_written_dumps_are_swept(tmp_path: Path) -> None:
    (tmp_path / "req_7.tmp").mkdir()
    (tmp_path / "req_8").mkdir()
    assert sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.glob("req_*")] == ["req_8"]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes free in the folders `out` and `dumps`."""
    free = {"out": 1000 << 20, "dumps": 1000 << 20}
    monkeypatch.setattr(gate_module, "free_bytes", lambda folder: free[folder.name])
    monkeypatch.setattr(preflight, "free_bytes", lambda folder: free[folder.name])
    return free


def test_what_keeps_the_gate_closed(tmp_path: Path, rooms: dict[str, int]) -> None:
    high, floor = 100 << 20, 50 << 20
    (tmp_path / "dumps").mkdir()
    gate = Gate(tmp_path / "out", tmp_path / "dumps", high_water=high, min_free=floor, pause=tmp_path / "pause")
    assert gate.closed(1 << 20) is None
    assert gate.closed(200 << 20) is None, "one sample larger than the mark still goes, alone"
    gate.take(60 << 20)
    assert gate.closed(50 << 20).kind == "back-pressure"  # type: ignore[union-attr]
    rooms["out"] = 120 << 20
    assert gate.closed(20 << 20).kind == "disk"  # type: ignore[union-attr]
    gate.give(60 << 20)
    assert gate.closed(20 << 20) is None
    rooms["dumps"] = 20 << 20
    assert gate.closed(20 << 20).kind == "dump folder"  # type: ignore[union-attr]
    gate.pause.touch()
    assert gate.closed(1).kind == "person"  # type: ignore[union-attr]


def test_the_high_water_mark_is_half_of_what_is_free_or_as_told(tmp_path: Path, rooms: dict[str, int]) -> None:
    settings = ExtractSettings(data="d", out="o")
    assert preflight.high_water(settings, tmp_path / "dumps", 100, 1000) == 500 << 20
    told = msgspec.structs.replace(settings, high_water_bytes=7000)
    assert preflight.high_water(told, tmp_path / "dumps", 100, 10) == 7000
    assert preflight.high_water(told, tmp_path / "dumps", 100, 1000) == 100_000, "the longest sample must pass"
    rooms["dumps"] = 64 << 20
    with pytest.raises(Missing, match=r"67\.1 MB free, and the longest sample alone takes 134\.2 MB"):
        preflight.high_water(settings, tmp_path / "dumps", 4096, 32768)


def job_file(out: Path, pid: int = 1, since_boot: float = -5.0) -> JobFile:
    settings = ExtractSettings(data="d.jsonl", out=str(out))
    return JobFile(run="abc", start=1, pid=pid, since_boot=since_boot, started=1e9, settings=settings)


def test_a_journal_goes_on_after_half_a_line(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    journal = Journal(files)
    journal.append(Told(time=1, text="one"))
    journal.close()
    with open(files.events, "ab") as file:
        file.write(b'{"type":"Told","ti')
    journal = Journal(files)
    journal.append(Told(time=2, text="two"))
    journal.close()
    events, offset = recent(files.events)
    assert [event.text for event in events if isinstance(event, Told)] == ["one", "two"]
    assert offset == files.events.stat().st_size
    assert recent(files.events, offset=offset) == ([], offset)


def test_the_tail_of_a_journal_begins_with_a_whole_line(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    journal = Journal(files)
    for number in range(100):
        journal.append(Told(time=number, text="x" * 50))
    journal.close()
    events, _ = recent(files.events, nbytes=1000)
    assert [event.time for event in events] == list(range(100 - len(events), 100))
    assert 5 < len(events) < 20


def test_only_one_process_writes_into_a_folder(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from workbench.extract.job.files import JobFiles\n"
    script += "with JobFiles(Path(sys.argv[1])).locked():\n  print('mine', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"mine\n"
        with pytest.raises(UsageError, match="a job already writes into"), JobFiles(tmp_path).locked():
            pass
        child.kill()
    with JobFiles(tmp_path).locked():
        pass


def test_jobs_are_listed_with_what_became_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, last in (
        ("killed", Progress(time=2, state="running", rows=9, written=4)),
        ("done", Ended(time=2, state="done", message="")),
    ):
        files = JobFiles(tmp_path / name)
        files.save(job_file(tmp_path / name))
        journal = Journal(files)
        journal.append(Progress(time=1, state="running", rows=9, written=3))
        journal.append(last)
        journal.close()
        note(files.out)
        note(files.out)
    note(tmp_path / "gone")
    listed = [(Path(job.folder).name, job.state, job.written, job.pid) for job in known_jobs()]
    assert listed == [("killed", "killed", 4, None), ("done", "done", 3, None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["extract"], "it takes DATA and --out DIR"),
        (["extract", "missing.jsonl", "--out", "o"], "there is no missing.jsonl"),
        (["extract", "--resume", "nowhere"], "there was no job in nowhere"),
        (["extract", "d", "--resume", "nowhere"], "--resume DIR knows DATA"),
        (["extract", "d", "--out", "o", "--shard", "4/4"], "'4/4' is not I/N"),
        (["extract", "d", "--out", "o", "--shard", "1"], "'1' is not I/N"),
        (["extract", "d", "--out", "o", "--concurrency", "0"], "--concurrency"),
        (["extract", "d", "--out", "o", "--shard", "0/" + "9" * 5000], "is not I/N"),
        (["extract", "d", "--out", "o", "--min-free", "nan"], "not a number of GiB"),
        (["extract", "d", "--out", "o", "--high-water", "1e300"], "not a number of GiB"),
        (["extract", "--resume", "nowhere", "--shard", "0/2"], "--resume DIR knows DATA, --out, --shard"),
        (["extract", "/etc/passwd", "--out", ""], "cannot be a folder"),
        (["extract", "/etc/passwd", "--out", "/etc/passwd/x"], "/etc/passwd is a file"),
        (["extract", "/etc/passwd", "--out", "\udcff"], "no text in UTF-8"),
        (["job", "stop", "nowhere"], "there was no job in nowhere"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_a_detached_job_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    data = tmp_path / "rows.jsonl"
    data.write_text('{"input_ids": [1, 2, 3]}\n')
    out = tmp_path / "out"
    assert cli.run(["extract", str(data), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "no server named 'default' runs, and no model is named" in told
    last = json.loads((out / ".hsbench/events.jsonl").read_text().splitlines()[-1])
    assert (last["type"], last["state"], last["exit_code"]) == ("Ended", "failed", 2)


def server_record(name: str, folder: Path) -> ServerRecord:
    return ServerRecord(
        name=name, pid=1, since_boot=-9.0, create_time=0.0, argv=(), env={}, url="http://x", host="x", port=1,
        model=str(folder), python="here", engine_version="0", device="cpu", log=str(folder / "log"), started=0.0,
    )  # fmt: skip


def test_a_job_remembers_its_server_when_the_servers_own_record_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    files = JobFiles(tmp_path / "out")
    assert files.load_server("a") is None
    files.save_server(server_record("a", tmp_path))
    assert files.load_server("a") == server_record("a", tmp_path)
    assert files.load_server("b") is None
    server_record("a", tmp_path / "newer").save()
    assert files.load_server("a") == server_record("a", tmp_path / "newer")


def test_a_job_in_the_foreground_says_now_and_then_how_far_it_is(tmp_path: Path) -> None:
    JobFiles(tmp_path).save(job_file(tmp_path))
    lines = Lines(tmp_path)
    picture = Progress(time=time.time(), state="running", rows=9, written=3)
    assert lines.of(picture) == "", "none is due yet"
    lines._every_s = 0.0
    assert "3/9 samples" in lines.of(picture)


def test_a_run_does_not_begin_among_the_files_of_others(tmp_path: Path) -> None:
    (tmp_path / ".hsbench").mkdir()
    preflight.refuse_used_folder(tmp_path)
    preflight.refuse_used_folder(tmp_path / "new")
    (tmp_path / "rows_0-2000").mkdir()
    with pytest.raises(UsageError, match=r"is not empty \(rows_0-2000\)"):
        preflight.refuse_used_folder(tmp_path)


def test_dumps_and_data_set_do_not_share_a_folder(tmp_path: Path) -> None:
    preflight.refuse_same_folder(tmp_path / "dumps", tmp_path / "out")
    for dumps in (tmp_path / "out", tmp_path / "out/dumps", tmp_path / "x/../out"):
        with pytest.raises(UsageError, match="lies in --out"):
            preflight.refuse_same_folder(dumps, tmp_path / "out")


def test_an_index_whose_folder_was_moved_takes_no_line(tmp_path: Path) -> None:
    index = Index(tmp_path / "out")
    index.append(IndexLine(index=0, status="refused"))
    (tmp_path / "out").rename(tmp_path / "moved")
    with pytest.raises(CheckFailed, match="moved or removed"):
        index.append(IndexLine(index=1, status="refused"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/index.jsonl").touch()
    with pytest.raises(CheckFailed, match="moved or removed"):
        index.append(IndexLine(index=1, status="refused"))
    index.close()


def test_a_secret_on_the_command_line_is_not_written_down_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    data, out = tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text('{"input_ids": [1, 2, 3]}\n')
    arguments = ["extract", str(data), "--out", str(out), "--foreground", "--", "--api-key", "TOPSECRET"]
    monkeypatch.setattr(sys, "argv", ["hsbench", *arguments])
    assert cli.run(arguments) == 2
    kept = json.loads((out / ".hsbench/job.json").read_text())
    assert "TOPSECRET" not in kept["command"]
    assert (out / ".hsbench").stat().st_mode & 0o077 == 0


def test_a_moved_folder_is_resumed_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    JobFiles(tmp_path / "new").save(job_file(tmp_path / "old"))
    cli.run(["extract", "--resume", str(tmp_path / "new"), "--foreground"])
    assert not (tmp_path / "old").exists()
    kept = JobFiles(tmp_path / "new").load()
    assert kept is not None
    assert kept.settings.out == str(tmp_path / "new")


def test_narration_that_a_full_disk_does_not_take_is_lost_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fills(stream: str) -> IO[str]:
        full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - its close would fail as its flush does
        monkeypatch.setattr(sys, stream, full)
        return full

    held = [fills("stderr"), fills("stdout")]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    output.narrate("x")
    monkeypatch.setattr(sys, "stdout", held[1])
    with pytest.raises(OSError, match="No space left"):
        output.data("x")
    monkeypatch.undo()
    for full in held:
        with contextlib.suppress(OSError):
            full.close()


def test_a_folder_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    request = Request(settings=ExtractSettings(data="/d", out=str(tmp_path)))
    with pytest.raises(UsageError, match="of no run of ours"):
        detach.ask(JobFiles(tmp_path), request)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    request = Request(settings=ExtractSettings(data="/d", out=str(tmp_path / "file" / "out")))
    with pytest.raises(UsageError, match=r"cannot make .*/file/out/\.hsbench"):
        detach.ask(JobFiles(tmp_path / "file" / "out"), request)
