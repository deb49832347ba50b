"""The Server mode: its source over real processes, what is made of samples, and the screen."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from textual.widgets import Input

from tests.unit import tui_support as support
from tests.unit.tui_records import hung
from tests.unit.tui_support import HOSTILE, Given, app_with, run, screen_text, until
from workbench.server import processes
from workbench.server.survey import ServerStatus
from workbench.supervision import known_good
from workbench.supervision.known_good import GoodStart, KnownGood
from workbench.supervision.milestones import Milestone
from workbench.supervision.records import GpuSample, ProcessSample, Sample, StackSample
from workbench.supervision.verdict import State, Verdict
from workbench.tasks import store
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.confirm import Confirm
from workbench.tui.modals.form import CommandForm
from workbench.tui.modals.text import TextScreen
from workbench.tui.services import TaskView
from workbench.tui.sources import server as source_module
from workbench.tui.sources.server import ServerSource, StartFollower
from workbench.tui.sources.server_facts import (
    GpuRow,
    Hidden,
    Machine,
    Phase,
    ProcessRow,
    ServerView,
    gpu_rows,
    named,
    phases,
    process_rows,
    standing,
)
from workbench.tui.widgets.logpane import LogPane
from workbench.tui.widgets.server_launch import free_name
from workbench.tui.widgets.server_verdict import verdict_text

NAN = float("nan")
TO_COME = Phase("ready", "to come")
SLEEPER = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


# What is made of samples


def test_phases_stand_beside_what_good_starts_took() -> None:
    good = GoodStart(
        seconds=40.0,
        lines=100,
        longest_silence=9.0,
        milestones=(
            Milestone("start workers", 5.0, 1),
            Milestone("load weights", 10.0, 2),
            Milestone("warm-up", 30.0, 3),
        ),
    )
    known = KnownGood(model="m", version="1", flags=(), starts=(good,))
    now = [Milestone("start workers", 6.0, 1), Milestone("load weights", 8.0, 2)]
    assert list(phases(now, "load weights", 31.0, known, alive=True)) == [
        Phase("import", "done", 6.0, 5.0),
        Phase("start workers", "done", 2.0, 5.0),
        Phase("load weights", "running", 31.0, 20.0),
        Phase("warm-up", "to come", None, 10.0),
        Phase("ready", "to come", None, 40.0),
    ]
    ended = list(phases(now, "load weights", 3.0, None, alive=False))
    assert [phase.state for phase in ended] == ["done", "done", "ended here", *["to come"] * 4]
    over = list(phases([*now, Milestone("ready", 50.0, 9)], "ready", 99.0, known, alive=True))
    assert over[-1] == Phase("ready", "done", 50.0, 40.0)


def process(pid: int, rank: str = "", **changes: Any) -> ProcessSample:
    values: dict[str, Any] = {
        "parent": 1, "name": f"p{pid}", "role": "rank" if rank else "server", "state": "R", "created": 5,
        "cpu_s": 10.0, "wanted_s": 10.0, "rss": 1000, "read": 0, "faults": 0,
    }  # fmt: skip
    return ProcessSample(pid=pid, rank=rank, **{**values, **changes})


def test_processes_come_by_rank_with_rates_of_two_samples() -> None:
    before = Sample(at=100.0, processes=(process(1), process(2, "TP10"), process(3, "TP2")))
    now = Sample(
        at=102.0,
        processes=(
            process(2, "TP10", cpu_s=12.0, read=4000),
            process(1, cpu_s=10.5),
            process(3, "TP2", created=6),
            process(4, "TP0"),
        ),
    )
    rows = list(process_rows(now, before, [StackSample(pid=2, label="x", source="py-spy", frames=("f (a.py:1)",))]))
    assert [row.rank for row in rows] == ["server", "TP0", "TP2", "TP10"]
    assert [row.cpu for row in rows] == [0.25, None, None, 1.0]
    assert (rows[3].read, rows[3].stack) == (2000.0, "f (a.py:1)")
    assert all(row.cpu is None for row in process_rows(now, None))


def test_whoever_stands_elsewhere_is_told_apart() -> None:
    dumped = [
        StackSample(pid=pid, label="x", source="py-spy", frames=(f"all_reduce (pynccl.py:{pid})", "run (s.py:1)"))
        for pid in range(7)
    ]
    dumped.append(StackSample(pid=7, label="x", source="py-spy", frames=("load (loader.py:3)",)))
    found = standing(dumped, {pid: f"TP{pid}" for pid in range(8)})
    assert [named(one.who) for one in found] == ["TP0 to TP6", "TP7"]
    assert found[0].frames[0].startswith("all_reduce (pynccl.py")


def test_traffic_over_nvlink_is_a_rate_where_it_is_counted() -> None:
    def gpu(nvlink: int | None) -> GpuSample:
        return GpuSample(index=0, name="x", used=1, total=2, nvlink=nvlink)

    assert [row.nvlink for row in gpu_rows([gpu(5000)], [gpu(1000)], 2.0)] == [2000.0]
    assert [row.nvlink for row in gpu_rows([gpu(None)], [gpu(1000)], 2.0)] == [None]
    assert [row.nvlink for row in gpu_rows([gpu(5000)], [], float("inf"))] == [None]


def test_of_a_long_log_only_start_and_end_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        file.write("server_args=\nLoad weight begin\n")
        for number in range(300_000):
            file.write(f"Decode batch, #token: {number} xxxxxxxxxxxxxxxxxxxxxxxx\n")
        file.write("RuntimeError: the end\n")
    follower = StartFollower(path, time.time())
    follower.sample()
    seen = follower.sample()
    assert follower.skipped > 4 << 20
    assert (seen.phase, seen.error) == ("load weights", "RuntimeError: the end")
    assert seen.activity < 200_000


# The source over real processes


class Server:
    """A process that stands for a server, its log, and its status."""

    def __init__(self, folder: Path, code: str = SLEEPER, env: dict[str, str] | None = None) -> None:
        self.log = folder / "server.log"
        self.log.write_text("import\n[2026-01-01 00:00:00] server_args=ServerArgs(x)\n")
        self.child = subprocess.Popen(
            [sys.executable, "-c", code], start_new_session=True, env={**os.environ, **(env or {})}
        )
        born = psutil.Process(self.child.pid)
        self.record = support.record(
            pid=self.child.pid, since_boot=processes.since_boot(born), log=str(self.log), started=time.time(), port=1
        )

    def status(self, state: str = "starting") -> ServerStatus:
        return support.status(state=state, server=self.record)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path, env={"MY_API_KEY": "correct-horse"})
    yield found
    found.kill()


def test_source_watches_a_server_until_it_is_dead(server: Server) -> None:
    known_good.learn(
        server.record.model,
        server.record.engine_version,
        server.record.argv,
        GoodStart(seconds=30.0, lines=641, longest_silence=31.0, milestones=(Milestone("start workers", 6.0, 1),)),
    )
    source = ServerSource()
    source.selected = server.status()
    first = source.collect()
    assert (first.name, first.verdict, first.log) == ("demo", None, str(server.log))
    assert source.every_s < 0.1
    view = source.collect()
    assert view.verdict is not None
    assert view.verdict.state is State.PROGRESSING
    assert (view.known_lines, view.known_silence, view.allowed) == (641, 31.0, 62.0)
    assert [row.pid for row in view.processes] == [server.child.pid]
    assert [phase.name for phase in view.phases if phase.state == "running"] == ["start workers"]
    assert view.machine is not None
    assert view.secrets == ("correct-horse",)
    assert "correct-horse" not in repr(view)
    with server.log.open("a") as file:
        file.write("RuntimeError: correct-horse ran out of memory\n")
    server.kill()
    view = source.collect()
    assert not view.alive
    assert view.verdict is not None
    assert view.verdict.state is State.DEAD_CHILD
    assert view.why == "RuntimeError: *** ran out of memory"
    assert "correct-horse" not in str(view.last_words)
    assert {phase.state for phase in view.phases} >= {"done", "ended here"}
    source.close()


def test_source_tells_of_a_server_that_was_dead_before(server: Server) -> None:
    server.kill()
    source = ServerSource()
    source.selected = server.status("dead")
    source.collect()
    view = source.collect()
    assert view.verdict is not None
    assert view.verdict.state is State.DEAD_CHILD
    assert view.last_words[0] == "import"
    server.log.unlink()
    assert source.collect().last_words == ()
    source.close()


def test_source_keeps_its_watch_for_one_server_and_ends_it_for_another(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Watch(source_module.Watch):
        def __init__(self, *args: Any, **how: Any) -> None:
            made.append(how)
            super().__init__(*args, **how)

    monkeypatch.setattr(source_module, "Watch", Watch)
    source = ServerSource()
    source.selected = server.status()
    for _ in range(3):
        source.collect()
    assert [(how["generate"], how["attached"]) for how in made] == [(False, False)]
    old = time.time() - 100
    os.utime(server.log, (old, old))
    source.selected = None
    assert source.collect().name == ""
    source.selected = server.status()
    source.collect()
    assert made[-1]["attached"]
    source.close()


# The screen


def shows(app: Any, *words: str) -> bool:
    text = screen_text(app)
    return all(word in text for word in words)


@pytest.mark.parametrize("size", [(80, 24), (110, 34), (160, 50)])
def test_a_hang_is_what_is_seen_first(size: tuple[int, int], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\nlast words\n")
    app = app_with("server", Given(hung(str(log))), [support.status(state="starting")])

    async def scenario() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: shows(app, "HUNG_SPIN", "last words"))
            assert shows(app, "95% sure", "warm-up for 1 min 34 s", "1 min 14 s of 1 min 02 s allowed")
            assert shows(
                app, "TP1 to TP3", "TP0: f (b.py", "next", "d diagnose", "217 lines", "known good 641", "!94 s"
            )
            assert shows(app, "3 GiB") == (size[1] >= 30)
            assert app.screen.query_one("#verdict").has_class("-bad")

    run(scenario())


def test_in_ascii_mode_nothing_else_is_drawn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("für 🚀 " + "x" * 300)
    view = hung(str(log), last_words=(HOSTILE,), why=HOSTILE, alive=False)
    config = Config(app=AppSettings(ascii=True))
    app = app_with("server", Given(view), [support.status(state="dead")], config=config)

    async def scenario() -> None:
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: shows(app, "HUNG_SPIN", "f\\xfcr"))
            body = [line for line in screen_text(app).splitlines()[1:-1]]
            scrollbars = str.maketrans("", "", "▁▂▃▄▅▆▇█▉▊▋▌▍▎▏")
            assert [line for line in body if not line.translate(scrollbars).isascii()] == []

    run(scenario())


def test_hostile_words_and_numbers_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "[red]log"
    log.write_text(HOSTILE)
    verdict = Verdict(
        state=State.WAITING, phase=HOSTILE, confidence=NAN, evidence=(HOSTILE,), against=(HOSTILE,),
        next_step=HOSTILE, waiting_on=HOSTILE, eta_s=None,
    )  # fmt: skip
    row = ProcessRow(
        pid=1, created=1, rank=HOSTILE, name=HOSTILE, cpu=NAN, rss=0, read=None, state=HOSTILE, stack=HOSTILE
    )
    view = hung(
        str(log), verdict=verdict, phases=(Phase("import", "done", NAN, NAN), Phase("x" * 30, "running", None, NAN)),
        processes=(row,), machine=Machine(cpu=NAN, cores=1, load=NAN, used=0, total=0),
        gpus=(GpuRow(GpuSample(index=0, name=HOSTILE, used=0, total=0, busy=NAN, power_w=NAN, traffic=NAN), NAN),),
    )  # fmt: skip
    source = Given(view)
    app = app_with("server", source, [support.status(state="starting")])

    async def scenario() -> None:
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: shows(app, "WAITING", "[/red] [bold]x[/]"))
            for size in ((20, 5), (200, 60), (80, 24)):
                await pilot.resize_terminal(*size)
                source.now = msgspec.structs.replace(view, silent=float(size[0]))
                await pilot.pause(0.1)
            source.now = RuntimeError("[/red]")
            await until(pilot, lambda: shows(app, "RuntimeError: [/red]"))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))

    run(scenario())


def test_stop_and_restart_ask_first_and_name_what_they_end() -> None:
    app = app_with("server", Given(hung()), [support.status()])

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "HUNG_SPIN"))
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert shows(app, "Stop demo at http://127.0.0.1:30017?")
            await pilot.press("n")
            assert app.started == []
            for key, command in (("x", "stop"), ("r", "restart")):
                await pilot.press(key)
                await until(pilot, lambda: isinstance(app.screen, Confirm))
                await pilot.press("y")
                await until(pilot, lambda command=command: app.started[-1:] == [(command, "demo")])

    run(scenario())


def test_launch_comes_to_the_command_of_the_form() -> None:
    app = app_with("server", Given(ServerView()), [])

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "No server runs"))
            await pilot.press("l")
            await until(pilot, lambda: isinstance(app.screen, CommandForm))
            app.screen.query_one("#field-0", Input).value = "demo"
            app.screen.query_one("#field-11", Input).value = "--tp-size 2"
            await pilot.press("ctrl+r")
            await until(pilot, lambda: bool(app.started))
            assert app.started == [("serve", "--model", "demo", "--name", "default", "--", "--tp-size", "2")]

    run(scenario())


def test_a_launch_without_a_server_yet_is_listed_with_its_words() -> None:
    folder = store.tasks_dir() / "20260921-101500-0001"
    folder.mkdir(parents=True)
    (folder / "err").write_text("making a bf16 copy of [/red] the model\n")
    task = support.task("serve", "--model", "demo", "--name", "fresh", started=time.time())
    app = app_with("server", Given(ServerView()), [], [TaskView(task, "running")])

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "fresh", "preparing", "making a bf16 copy of [/red] the model"))
            await until(pilot, lambda: app.screen.query_one(LogPane).extent.lines == 1)

    run(scenario())


def test_diagnosis_shows_its_verdict_when_it_ends() -> None:
    app = app_with("server", Given(hung()), [support.status()])
    found = {
        "verdict": "SUSPECT_SPIN",
        "phase": "warm-up",
        "confidence": 0.5,
        "evidence": ["[/red] stands"],
        "lines": 3,
    }

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "HUNG_SPIN"))
            await pilot.press("d")
            await until(pilot, lambda: app.started == [("doctor", "--name", "demo", "--json")])
            task = support.task("doctor", "--name", "demo", "--json", name="task-1")
            task.folder.mkdir(parents=True)
            (task.folder / "out").write_text(json.dumps(found))
            app.tasks = (TaskView(task, "failed"),)
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            assert shows(app, "Diagnosis of demo", "SUSPECT_SPIN", "50% sure", "[/red] stands")

    run(scenario())


def test_what_cannot_be_done_is_said_and_not_done() -> None:
    app = app_with("server", Given(hung()), [support.status()], config=Config(app=AppSettings(readonly=True)))

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "HUNG_SPIN"))
            await pilot.press("l", "x", "r", "d")
            await pilot.pause()
            assert app.started == []
            assert len(app.screen_stack) == 1

    run(scenario())


def test_search_and_follow_by_keys(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{'boom' if n % 100 == 50 else 'line'} {n}\n" for n in range(1000)))
    app = app_with("server", Given(hung(str(log))), [support.status()])

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            pane = app.screen.query_one(LogPane)
            await until(pilot, lambda: pane.extent.lines == 1000)
            await pilot.press("slash", *"boom", "enter")
            await until(pilot, lambda: pane.found is not None and pane.found.done and pane.hit is not None)
            await until(pilot, lambda: pane.has_focus and shows(app, "/boom  10 of 10"))
            await pilot.press("n")
            await until(pilot, lambda: shows(app, "boom 50", "1 of 10"))
            await pilot.press("N")
            await until(pilot, lambda: shows(app, "boom 950", "10 of 10"))
            await pilot.press("f")
            await until(pilot, lambda: pane.following and shows(app, "line 999"))
            await pilot.press("escape")
            await until(pilot, lambda: pane.found is None)

    run(scenario())


def test_a_server_that_dies_under_the_app_keeps_its_log(server: Server) -> None:
    app = app_with("server", ServerSource(), [server.status()])
    around = app._poller.source

    async def scenario() -> None:
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: shows(app, "PROGRESSING", "server_args"))
            server.kill()
            with server.log.open("a") as file:
                file.write("RuntimeError: gone [/red]\n")
            around.now = around.now._replace(servers=(server.status("dead"),))
            await until(pilot, lambda: shows(app, "DEAD_CHILD", "why      RuntimeError: gone [/red]"))
            around.now = around.now._replace(servers=())
            await until(pilot, lambda: shows(app, "No server runs", "of a server that is gone", "server_args"))

    run(scenario())


def test_verdict_keeps_what_matters_most_in_little_room() -> None:
    lines = verdict_text(hung(), 60, 5).plain.split("\n")
    assert [line.split()[0] for line in lines] == ["✗", "silent", "stands", "but", "next"]
    assert all(len(line) <= 60 for line in lines)


def test_secrets_are_not_in_a_printed_view() -> None:
    assert "sesame" not in repr(hung(secrets=Hidden(("open-sesame",))))


def test_a_free_name_is_offered() -> None:
    assert free_name([]) == "default"
    assert free_name(["default", "server2"]) == "server3"
