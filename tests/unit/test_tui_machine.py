"""The Machine mode on real tasks, a real extraction's folder, real processes, and the real doctor."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.unit.tui_support import HOSTILE, FakeApp, app_with, record, run, screen_text, status, until
from workbench.extract.job import roster
from workbench.extract.job.events import Progress
from workbench.extract.job.files import JobFile, JobFiles, Journal
from workbench.extract.job.settings import ExtractSettings
from workbench.server import processes
from workbench.supervision import doctor
from workbench.supervision.doctor import Finding
from workbench.supervision.records import GpuSample
from workbench.tasks import store
from workbench.tasks.store import Task
from workbench.tui import glyphs
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.confirm import Confirm
from workbench.tui.screens.machine import MachineScreen
from workbench.tui.sources.machine import MachineSource, Room, Vitals, busy
from workbench.tui.widgets import machine_words
from workbench.tui.widgets.table import RowTable

FINDINGS = (
    Finding("hsbench", "ok", "hsbench 1, Python 3"),
    Finding("gpu", "note", f"no GPU {HOSTILE}"),
    Finding("/dev/shm", "problem", "too small", "mount a bigger one"),
)


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    glyphs.set_ascii(False)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends at Ctrl-C and otherwise sleeps."""
    code = "import signal, time; signal.signal(2, signal.SIG_DFL); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def kept(*argv: str, name: str, pid: int = 2**22 + 1, **files: str) -> Task:
    """A task as the store leaves it on the disk."""
    since_boot = processes.since_boot(psutil.Process(pid)) if psutil.pid_exists(pid) else 1.0
    found = Task(id=name, argv=argv, pid=pid, since_boot=since_boot, started=time.time() - 5)
    found.folder.mkdir(parents=True)
    (found.folder / "task.json").write_bytes(msgspec.json.encode(found))
    for file, text in files.items():
        (found.folder / file).write_text(text)
    return found


def extraction(folder: Path, pid: int, **progress: Any) -> JobFiles:
    """A job's folder as its own code leaves it."""
    files = JobFiles(folder)
    settings = ExtractSettings(data="chat.jsonl", out=str(folder))
    born = processes.since_boot(psutil.Process(pid))
    files.save(JobFile(run="ab", start=1, pid=pid, since_boot=born, started=time.time() - 60, settings=settings))
    journal = Journal(files)
    journal.append(Progress(time=time.time(), state="running", **progress))
    journal.close()
    files.log.write_text("sending the first sample\n")
    roster.note(files.out)
    return files


def source_of(look: Any = lambda: FINDINGS) -> MachineSource:
    source = MachineSource(look)
    source.every_s = 0.2
    return source


def on(app: FakeApp) -> MachineScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, MachineScreen)
    return screen


def table(app: FakeApp) -> RowTable:
    return on(app).query_one("#jobs", RowTable)


# The source


def test_a_real_task_is_followed_to_its_end(tmp_path: Path) -> None:
    source = source_of()
    task = store.start(["job", "stop", str(tmp_path / "nothing")])
    source.selected = f"task:{task.id}"
    seen = source.collect()
    deadline = time.monotonic() + 30
    while seen.jobs[0].running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        seen = source.collect()
    (job,) = seen.jobs
    assert (job.kind, job.state, job.exit_code) == ("job", "failed", 2)
    assert job.last == f"hsbench: there was no job in {tmp_path / 'nothing'}"
    assert job.seconds is not None
    assert 0 <= job.seconds < 30
    assert seen.detail is not None
    assert any(line.strip().startswith("next: ") for line in seen.detail.narration)


def test_every_kind_of_job_the_running_ones_first(tmp_path: Path) -> None:
    kept("bench", "run", name="20260101-000000-aaaa", exit="0", out="made of\noutput\n", err="[   2.5 s] narrated\n")
    kept("sweep", name="20260102-000000-bbbb")
    kept("probe", "Hello", name="20260103-000000-cccc", pid=os.getpid())
    extraction(tmp_path / "set", os.getpid(), rows=50, written=12)
    source = source_of()
    source.servers = (status(), status("old", "dead", server=record("old")))
    seen = source.collect()
    found = [(job.key.partition(":")[0], job.state, job.running) for job in seen.jobs]
    assert sorted(found[:3]) == [("extraction", "running", True), ("server", "ready", True), ("task", "running", True)]
    assert sorted(found[3:]) == [("server", "dead", False), ("task", "done", False), ("task", "killed", False)]
    assert next(job for job in seen.jobs if job.kind == "extraction").last == "12 of 50 samples of chat.jsonl"
    assert next(job for job in seen.jobs if job.kind == "sweep").seconds is None
    source.selected = "task:20260101-000000-aaaa"
    detail = source.collect().detail
    assert detail is not None
    assert (detail.narration, detail.output) == (("[   2.5 s] narrated",), ("made of", "output"))
    assert next(job for job in seen.jobs if job.kind == "bench").last == "narrated"
    source.selected = f"extraction:{tmp_path / 'set'}"
    detail = source.collect().detail
    assert detail is not None
    assert detail.narration == ("sending the first sample",)


def test_what_is_over_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        kept("layers", name=f"20260101-000000-{number:04x}", exit="0")
    source = source_of()
    assert len(source.collect().jobs) == 200
    asked: list[str] = []
    real = Task.narration
    monkeypatch.setattr(Task, "narration", lambda task, lines=20: asked.append(task.id) or real(task, lines))
    assert len(source.collect().jobs) == 200
    assert asked == []


def test_the_doctor_looks_once_and_again_when_asked() -> None:
    go_on, looks = threading.Event(), []

    def look() -> Iterator[Finding]:
        looks.append(1)
        yield FINDINGS[0]
        assert go_on.wait(20)
        yield FINDINGS[2]

    source = source_of(look)
    source.collect()
    deadline = time.monotonic() + 20
    while not source.collect().report.findings:
        assert time.monotonic() < deadline
    report = source.collect().report
    assert (report.examining, report.findings, report.ended) == (True, FINDINGS[:1], None)
    go_on.set()
    while source.collect().report.examining:
        assert time.monotonic() < deadline
    report = source.collect().report
    assert (report.findings, len(looks)) == ((FINDINGS[0], FINDINGS[2]), 1)
    assert report.ended is not None
    go_on.clear()
    source.examination.begin()
    source.examination.begin()
    report = source.collect().report
    assert (report.examining, report.count("problem"), len(looks)) == (True, 1, 2)  # the last report stays meanwhile
    go_on.set()


def test_a_doctor_that_fails_is_a_finding() -> None:
    def look() -> Iterator[Finding]:
        yield FINDINGS[0]
        raise OSError("no more")

    source = source_of(look)
    source.collect()
    deadline = time.monotonic() + 20
    while (report := source.collect().report).examining:
        assert time.monotonic() < deadline
    assert report.findings[-1].text == "OSError: no more"


def test_the_real_doctor_and_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_engine", lambda python: iter(()))  # it starts an interpreter that imports torch
    source = MachineSource()
    source.collect()
    deadline = time.monotonic() + 30
    while (seen := source.collect()).report.examining:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {"hsbench", "memory", "disk", "limits"} <= {finding.area for finding in seen.report.findings}
    assert len(seen.vitals.cores) == psutil.cpu_count()
    assert all(0 <= share <= 1 for share in seen.vitals.cores)
    assert seen.vitals.memory.total == psutil.virtual_memory().total
    assert seen.vitals.disk.total == shutil.disk_usage(tmp_path).total
    assert dict(seen.places)["state"] == str(tmp_path / "state" / "hsbench")
    assert dict(seen.versions)["sglang"] == "0.5.23"


def test_how_busy_a_core_is() -> None:
    times = namedtuple("times", "user nice system idle iowait guest guest_nice")
    before, now = times(10, 0, 5, 100, 5, 2, 0), times(14, 0, 6, 103, 7, 4, 0)
    # user 4, of which 2 are a guest's and told twice; system 1; idle 3; waiting 2: 5 of 10 are busy
    assert busy([before], [now]) == (0.5,)
    assert busy([], [now]) == busy([now], [now]) == (0.0,)
    assert busy([before, before], [now]) == (0.0,)


def test_numbers_that_are_none() -> None:
    nan = math.nan
    gpu = GpuSample(index=0, name=HOSTILE, used=0, total=0, busy=nan, power_w=nan, power_limit_w=None)
    dark = GpuSample(index=1, name="", used=1, total=2)
    vitals = Vitals((nan, 0.0, 1.0, 0.5), (nan, 0.0, 0.0), Room(0, 0), Room(95, 100), None, (gpu, dark), "")
    seen = msgspec.structs.replace(source_of().collect(), vitals=vitals)
    for width in (0, 20, 60, 200):
        text = machine_words.machine_text(seen, width).plain
        assert "n/a" in text
        assert "[/red] [bold]x[/] \\x1b[31m" in text
    assert "▁▁█▅" in text
    assert machine_words.summary(seen).plain.startswith("cpu n/a")
    assert "◌ disk 95/100 B" in machine_words.summary(seen).plain
    assert machine_words.core_bars((0.5,) * 30, 10).plain.count("\n") == 2
    assert machine_words.since(nan) == machine_words.took(nan) == ""


# The screen


def test_the_selected_job_says_what_it_did_and_the_parts_take_turns() -> None:
    kept("patch", "status", name="20260101-000000-aaaa", exit="0", err="first narration\n", out="clean\n")
    kept("probe", HOSTILE, name="20260102-000000-bbbb", exit="3", err=f"hsbench: {HOSTILE}\n  next: look\n")

    async def session() -> None:
        app = app_with("machine", source_of(), servers=[status()])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 3)
            table(app).choose("task:20260102-000000-bbbb")
            await until(pilot, lambda: "hsbench: [/red] [bold]x[/]" in screen_text(app))
            assert "✗ failed" in screen_text(app)
            assert "1 server: demo" in screen_text(app)
            table(app).choose("task:20260101-000000-aaaa")
            await until(pilot, lambda: "first narration" in screen_text(app))
            assert "hsbench patch status" in screen_text(app)
            assert msgspec.json.decode(on(app).copied())["exit_code"] == 0
            await pilot.press("v")
            await until(pilot, lambda: "1 problem, 1 note, 1 ok" in screen_text(app))
            lines = screen_text(app).split("\n")
            assert any("✗ problem" in line and "/dev/shm" in line and "too small" in line for line in lines)
            assert "next: mount a bigger one" in screen_text(app)
            assert "first narration" not in screen_text(app)
            await pilot.press("v")
            await until(pilot, lambda: "cores, load" in screen_text(app))
            await pilot.press("enter")
            await until(pilot, lambda: "first narration" in screen_text(app))
            await pilot.resize_terminal(160, 50)
            await until(pilot, lambda: "config.toml" in screen_text(app) and "mount a bigger" in screen_text(app))
            assert "sglang" in screen_text(app)

    run(session())


def test_filter(tmp_path: Path) -> None:
    kept("patch", "status", name="20260101-000000-aaaa", exit="0")
    kept("probe", "Hello", name="20260102-000000-bbbb", exit="3")

    async def session() -> None:
        app = app_with("machine", source_of())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 2)
            await pilot.press("slash", *"PATCH")
            await until(pilot, lambda: table(app).keys() == ["task:20260101-000000-aaaa"])
            assert "1 match PATCH" in screen_text(app)
            await pilot.press("escape")
            await until(pilot, lambda: len(table(app).keys()) == 2)

    run(session())


def test_a_task_is_interrupted_after_a_question(sleeper: subprocess.Popen[bytes]) -> None:
    kept("watch", "x", name="20260101-000000-aaaa", pid=sleeper.pid)
    kept("layers", name="20260102-000000-bbbb", exit="0")

    async def session() -> None:
        app = app_with("machine", source_of(), servers=[status()])
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 3)
            for key in ("server:demo", "task:20260102-000000-bbbb"):
                table(app).choose(key)
                await pilot.press("x")
                assert not isinstance(app.screen, Confirm)
            table(app).choose("task:20260101-000000-aaaa")
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "hsbench watch x" in app.screen.question
            await pilot.press("n")
            await until(pilot, lambda: sleeper.poll() is None)
            await pilot.press("x", "y")
            await until(pilot, lambda: sleeper.poll() is not None)
            assert sleeper.returncode == -signal.SIGINT
            await until(pilot, lambda: "✗ killed" in screen_text(app))
            assert app.started == []

    run(session())


def test_an_extraction_is_stopped_by_its_command(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    extraction(tmp_path / HOSTILE.replace("/", "_"), sleeper.pid, rows=50, written=12)
    folder = str(tmp_path / HOSTILE.replace("/", "_"))

    async def session() -> None:
        app = app_with("machine", source_of())
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: table(app).keys() == [f"extraction:{folder}"])
            await until(pilot, lambda: "sending the first sample" in screen_text(app))
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await until(pilot, lambda: app.started == [("job", "stop", folder)])
            assert sleeper.poll() is None

    run(session())


def test_read_only_ends_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    kept("watch", "x", name="20260101-000000-aaaa", pid=sleeper.pid)

    async def session() -> None:
        app = app_with("machine", source_of(), config=Config(app=AppSettings(readonly=True)))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 1)
            await pilot.press("x")
            assert not isinstance(app.screen, Confirm)
            await pilot.press("d")
            await until(pilot, lambda: "next: mount a bigger one" in screen_text(app))

    run(session())


def test_examining_is_said_until_there_is_a_report() -> None:
    go_on = threading.Event()

    def look() -> Iterator[Finding]:
        assert go_on.wait(30)
        yield from FINDINGS

    async def session() -> None:
        app = app_with("machine", source_of(look))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "◐ examining" in screen_text(app))
            await pilot.press("d")  # it is under way already
            await pilot.press("v")
            await until(pilot, lambda: "examining…" in screen_text(app))
            go_on.set()
            await until(pilot, lambda: "✗ 1 problem" in screen_text(app))

    run(session())


def test_the_state_folder_is_deleted_while_sizes_change(tmp_path: Path) -> None:
    for number in range(30):
        kept("probe", HOSTILE, name=f"20260101-000000-{number:04x}", exit="1", err=f"{HOSTILE}\n" * 300)
    extraction(tmp_path / "set", os.getpid(), rows=50, written=12)

    async def session() -> None:
        app = app_with("machine", source_of())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 31)
            await pilot.press("G")
            for size in ((160, 50), (40, 12), (20, 6), (110, 34)):
                await pilot.resize_terminal(*size)
            shutil.rmtree(tmp_path / "set")
            shutil.rmtree(tmp_path / "state")
            await until(pilot, lambda: not any(key.startswith("task:") for key in list(table(app).keys())))
            await pilot.press("x", "n", "enter", "v", "v")
            await until(pilot, lambda: not table(app).keys(), 15)
            assert "no job is selected" in screen_text(app) or "cores, load" in screen_text(app)

    run(session())


def test_ascii_mode_draws_nothing_else(tmp_path: Path) -> None:
    kept("probe", HOSTILE, name="20260101-000000-aaaa", exit="1", err="é\n", out="ü\n")
    extraction(tmp_path / ("long" * 20), os.getpid(), rows=50, written=12)

    async def session() -> None:
        app = app_with("machine", source_of(), config=Config(app=AppSettings(ascii=True)))
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: len(table(app).keys()) == 2)
            table(app).choose("task:20260101-000000-aaaa")
            await until(pilot, lambda: "\\xe9" in screen_text(app) and "X problem" in screen_text(app))
            strange = {c for c in screen_text(app) if not c.isascii()}
            assert not strange

    run(session())
