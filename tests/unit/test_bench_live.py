"""What a run tells while it goes on, who is running, and where sweeps are found."""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from bench.load import live
from bench.load.client import LoadClient, clock
from bench.load.dialects import dialect
from bench.load.known_server import KnownServer, Schedule
from bench.load.live import LIVE_FILE, Beat, LiveLog, Meter, last_beats
from bench.load.load import LagSampler, put
from bench.load.records import Trace
from bench.load.runner import Measured, Round
from bench.load.session import measure
from bench.load.spec import BenchSettings, WarmUp, Workload, grid
from bench.load.store import RunFolder, Summary, new_run, state_of
from bench.sweep import roster
from bench.sweep.journal import Journal, Settings
from tests.unit.sweep_support import flag_variants
from workbench.errors import ServerError
from workbench.server import processes

NOBODY = 2**22 + 5


def trace(start: float, times: list[float], end: float = 0.0, error: str | None = None) -> Trace:
    """A request with a token a chunk."""
    made = Trace()
    made.start = start
    for number, time in enumerate(times, 1):
        made.count(number, time)
    made.end, made.error = end, error
    return made


def beats_of(folder: Path) -> list[Beat]:
    return [msgspec.json.decode(line, type=Beat) for line in (folder / LIVE_FILE).read_bytes().splitlines()]


def test_what_is_counted() -> None:
    traces: list[Trace] = []
    lag = LagSampler()
    meter = Meter(traces, lag)
    t = clock()
    traces += [trace(t, [t + 0.1, t + 0.2, t + 0.4]), trace(t, [t + 0.3]), trace(t, [])]
    seen = meter.look(t + 1.0)
    assert (seen["done"], seen["failed"], seen["in_flight"], seen["tokens"]) == (0, 0, 3, 4)
    assert seen["ttft"] == pytest.approx(0.2, abs=1e-5)
    assert seen["tpot"] == pytest.approx(0.15, abs=1e-5)
    assert seen["tok_s"] == pytest.approx(4.0, rel=0.01)
    for number, made in enumerate(traces):
        made.end = t + 1.5
        made.error = "refused" if number == 2 else None
    traces[1].count(7, t + 1.4)
    seen = meter.look(t + 2.0)
    assert (seen["done"], seen["failed"], seen["in_flight"], seen["tokens"]) == (2, 1, 0, 10)
    assert seen["tok_s"] == pytest.approx(6.0, rel=0.01)
    seen = meter.look(t + 3.0)
    assert (seen["done"], seen["tokens"], seen["ttft"], seen["tok_s"]) == (2, 10, None, 0.0)


def test_what_limits_the_client() -> None:
    lag = LagSampler()
    lag.lags += [0.0001] * 980 + [0.003] * 20
    made = trace(0.0, [1.0, 1.001])
    meter = Meter([made], lag, ceiling=4.0)
    assert meter.look(clock() + 1.0)["limited"] == ("loop lag",)
    made.count(40, 1.01)
    assert set(meter.look(clock() + 2.0)["limited"]) == {"loop lag", "ceiling"}
    slow = Meter([trace(0.0, [1.0, 2.0])], lag)
    assert slow.look(clock() + 1.0)["limited"] == (), "5 % of a TPOT of 1 s are 50 ms"


def test_a_run_tells_how_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.03)
    with KnownServer(Schedule(ttft=0.03, itl=0.003)) as server:
        work = grid([3, 5], [20], [2], requests=4)
        settings = BenchSettings(
            url=server.url, workloads=work, seed=1, warm_up=WarmUp(windows=2, within=9.0, most_rounds=2)
        )
        states: list[str] = []

        def tell(told: Any) -> None:
            folder = RunFolder(tmp_path / "run")
            states.append(state_of(folder.run(), folder.summary()))

        folder = measure(settings, tell, tmp_path / "run")
    told = beats_of(folder.path)
    assert {beat.phase for beat in told} == {"warm-up", "measuring"}
    order = [key for key, _ in itertools.groupby((beat.point, beat.round) for beat in told)]
    assert order == [(0, 1), (0, 2), (0, 0), (1, 1), (1, 2), (1, 0)]
    for number, point in enumerate(folder.summary().points):
        last = [beat for beat in told if (beat.point, beat.phase) == (number, "measuring")][-1]
        assert (last.done, last.failed, last.in_flight, last.tokens) == (4, 0, 0, point.metrics.tokens)
        assert (last.asked, last.workload) == (4, point.workload.label)
    under_way = [beat for beat in told if beat.in_flight and beat.ttft is not None]
    assert under_way
    assert all(beat.ttft >= 0.03 for beat in under_way if beat.ttft is not None)
    assert set(states) == {"running"}
    assert state_of(folder.run(), folder.summary()) == "finished"
    assert last_beats(folder.path)[-1] == told[-1]


@pytest.mark.parametrize("where", ["full", "gone"])
def test_a_disk_that_takes_nothing_breaks_no_run(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    if where == "full":
        (tmp_path / LIVE_FILE).symlink_to("/dev/full")
    folder = tmp_path if where == "full" else tmp_path / "gone"

    async def load(url: str) -> int:
        spoken, work = dialect("native"), Workload(input_len=1, output_len=10, concurrency=2, requests=6)
        with LiveLog(folder) as log:
            async with LoadClient(url, spoken) as client:
                bodies = itertools.repeat(spoken.body([1], 10, True))
                loaded = await put(client, bodies, work, watch=log.of(0, work))
        return sum(record.tokens for record in loaded.records if record.ok)

    with KnownServer(Schedule(ttft=0.01, itl=0.002)) as server:
        assert asyncio.run(load(server.url)) == 60


def test_a_stuck_disk_costs_lines_and_no_time(tmp_path: Path) -> None:
    """A writer that does not come back: what is told meanwhile is dropped, and the loop goes on."""
    os.mkfifo(tmp_path / LIVE_FILE)  # opening it to write waits for a reader
    log = LiveLog(tmp_path)
    beat = Beat(time=1.0, point=0, workload="w", phase="measuring", at=0.0)
    for _ in range(3):
        log._tell(beat)
    reader = os.open(tmp_path / LIVE_FILE, os.O_RDONLY)
    log.__exit__()
    assert os.read(reader, 1 << 16).count(b"\n") == 1
    os.close(reader)


def test_a_line_cut_off_costs_that_line_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LiveLog(tmp_path)
    lines = [msgspec.json.encode(Beat(time=n, point=0, workload="w", phase="measuring", at=n)) for n in range(4)]
    write = os.write
    log._write(lines[0] + b"\n")
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:9]))
    log._write(lines[1] + b"\n")
    monkeypatch.undo()
    log._write(lines[2] + b"\n")
    log._write(lines[3] + b"\n")
    assert [beat.time for beat in last_beats(tmp_path)] == [0, 2, 3]
    assert [beat.time for beat in last_beats(tmp_path, len(lines[0]) + 5)] == [3]
    assert last_beats(tmp_path / "nowhere") == ()


def settings_of(url: str = "http://x") -> BenchSettings:
    return BenchSettings(url=url, workloads=grid([3], [4], [1, 2], requests=3), seed=1, warm_up=None)


def test_how_a_run_that_is_not_finished_is_told(tmp_path: Path) -> None:
    run = new_run(settings_of(), "m", {})
    assert run.pid == os.getpid()
    assert state_of(run, Summary()) == "running"
    assert state_of(run, Summary(finished=True)) == "finished"
    assert state_of(run, Summary(broken="no")) == "broken off"
    assert state_of(msgspec.structs.replace(run, pid=NOBODY), Summary()) == "broken off"
    assert run.since_boot is not None
    other = msgspec.structs.replace(run, since_boot=run.since_boot - 60)
    assert state_of(other, Summary()) == "broken off", "the number was given on"
    old = msgspec.to_builtins(run)
    del old["pid"], old["since_boot"]
    assert state_of(msgspec.convert(old, type(run)), Summary()) == "broken off"


def test_a_run_broken_off_keeps_what_was_over_and_says_why(tmp_path: Path) -> None:
    def tell(told: Any) -> None:
        if isinstance(told, Measured):
            raise ServerError("the cable was pulled", "put it back")

    with KnownServer(Schedule(ttft=0.01, itl=0.001)) as server, pytest.raises(ServerError):
        measure(settings_of(server.url), tell, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert len(folder.summary().points) == 1
    assert folder.summary().broken == "the cable was pulled"
    assert state_of(folder.run(), folder.summary()) == "broken off"


def test_a_run_of_which_nothing_was_measured_leaves_nothing(tmp_path: Path) -> None:
    def tell(told: Any) -> None:
        if isinstance(told, Round):
            assert (tmp_path / "run" / LIVE_FILE).exists()
            raise ServerError("the cable was pulled", "put it back")

    settings = msgspec.structs.replace(settings_of(), warm_up=WarmUp(windows=1, most_rounds=1))
    with KnownServer(Schedule(ttft=0.01, itl=0.001)) as server, pytest.raises(ServerError):
        measure(msgspec.structs.replace(settings, url=server.url), tell, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hsbench" / "bench"


def test_where_sweeps_are_found(state: Path, tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("a"), server={"model": "/models/Some Model [x]"})
    other = msgspec.structs.replace(settings, seed=1)
    folder = roster.default_folder(settings)
    assert folder == roster.default_folder(msgspec.convert(msgspec.to_builtins(settings), Settings))
    assert folder != roster.default_folder(other)
    assert folder.parent == state / "sweeps"
    assert folder.name.startswith("Some-Model-x-")
    Journal(folder, settings).close()
    roster.note(tmp_path / "elsewhere")
    assert roster.known() == {folder: ()}, "a folder without a sweep is none"
    Journal(tmp_path / "elsewhere", other).close()
    roster.note(tmp_path / "elsewhere")
    calls = roster.known()[tmp_path / "elsewhere"]
    assert len(calls) == 2
    assert processes.find(calls[0].pid, calls[0].since_boot) == psutil.Process()
    with open(state / "sweeps.jsonl", "ab") as file:
        file.write(b'{"folder": 3}\nhalf a li')
    assert set(roster.known()) == {folder, tmp_path / "elsewhere"}


def test_a_sweep_that_runs_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("a"))
    assert not roster.is_running(tmp_path)
    journal = Journal(tmp_path, settings)
    assert roster.is_running(tmp_path)
    journal.close()
    assert not roster.is_running(tmp_path)
    Journal(tmp_path, settings).close()
