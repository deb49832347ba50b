"""The frame of the app: modes, actions, keys, questions, snapshots, and what happens around."""

import importlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from textual.app import ComposeResult
from textual.widgets import Input

from tests.unit.tui_support import HOSTILE, FakeApp, Given, app_with, run, screen_text, status, task, until
from workbench.errors import ServerError
from workbench.tui.actions import ACTIONS, MODES, of_mode
from workbench.tui.bindings import bindings_of
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.confirm import Confirm
from workbench.tui.modals.leave import Leave
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.base import ModeScreen
from workbench.tui.services import Services, Surroundings, TaskView
from workbench.tui.source import Failed, Poller
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, Row, RowTable
from workbench.tui.widgets.topline import TopLine


class WordsScreen(ModeScreen):
    """Shows what its source says, in the place of the probe mode."""

    MODE = "probe"
    BINDINGS: ClassVar = bindings_of("probe")

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.words = ""

    def body(self) -> ComposeResult:
        yield Plain(id="words")
        yield RowTable([Column("name", 20), Column("value", 10, right=True)], id="rows")

    def show(self, snapshot: Any) -> None:
        self.query_one("#words", Plain).show(str(snapshot))
        if isinstance(snapshot, list):
            self.query_one(RowTable).show(snapshot)

    def question(self, verb: str) -> str:
        return f"Really {verb} {HOSTILE}?" if verb == "self_test" else ""

    def unavailable(self, verb: str) -> str:
        return "nothing is marked" if verb == "compare" else ""

    def do_self_test(self) -> None:
        self.done.append("self_test")

    def do_mark(self) -> None:
        self.done.append("mark")

    def do_reference(self) -> None:
        raise ServerError("it is gone [/x]", "start it [b]")

    def search(self, words: str) -> None:
        self.words = words


class WordsApp(FakeApp):
    MODES: ClassVar = {**FakeApp.MODES, "probe": WordsScreen}


def words_app(source: Given, *, config: Config | None = None, around: Given | None = None) -> WordsApp:
    surroundings = around or Given(Surroundings((), ()))
    other = Given(Failed("not looked at here"))
    services = Services(source=lambda mode: source if mode == "probe" else other, surroundings=lambda: surroundings)
    return WordsApp(config or Config(), services, "probe")


def the_screen(app: FakeApp) -> WordsScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, WordsScreen)
    return screen


def test_every_action_is_done_by_its_screen() -> None:
    for mode in MODES:
        module = importlib.import_module(f"workbench.tui.screens.{mode.name}")
        screen = getattr(module, f"{mode.name.capitalize()}Screen")
        assert mode.name == screen.MODE
        for action in of_mode(mode.name):
            assert callable(getattr(screen, f"do_{action.verb}")), action.id
    for action in of_mode(""):
        assert callable(getattr(FakeApp, f"do_{action.verb}")), action.id


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_no_key_means_two_things_in_a_view(mode: str) -> None:
    keys = Counter(action.key for action in (*of_mode(mode), *of_mode("")))
    keys.update(one.key for one in MODES)
    assert [key for key, count in keys.items() if count > 1] == []


def test_ids_are_unique() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def test_each_mode_is_reached_by_its_key_and_by_a_click() -> None:
    async def drive() -> None:
        app = app_with("probe", Given(Failed("not now")))
        async with app.run_test(size=(110, 30), notifications=True) as pilot:
            for mode in MODES:
                await pilot.press(mode.key)
                await until(pilot, lambda mode=mode: app.current_mode == mode.name)
            names = list(app.screen.query("ModeName"))
            await pilot.click(names[0])
            await until(pilot, lambda: app.current_mode == "server")

    run(drive())


def test_the_palette_finds_every_action_and_does_it_in_its_mode() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"))
        async with app.run_test(size=(110, 40)) as pilot:
            await pilot.press("6")
            await until(pilot, lambda: app.current_mode == "machine")
            await pilot.press("colon")
            await pilot.press(*"probe mark")
            await pilot.pause(0.5)
            await pilot.press("enter", "enter")
            await until(pilot, lambda: app.current_mode == "probe" and the_screen(app).done == ["mark"])

    run(drive())


def test_help_is_of_this_view_and_shows_the_key_that_is_bound() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"), config=Config(keys={"probe.mark": "ctrl+k"}))
        async with app.run_test(size=(110, 40)) as pilot:
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            shown = screen_text(app)
            assert "ctrl+k" in shown
            assert "Mark the selected probe" in shown
            assert "End the selected server" not in shown
            await pilot.press("escape")
            await pilot.press("m")
            assert the_screen(app).done == []
            await pilot.press("ctrl+k")
            await until(pilot, lambda: the_screen(app).done == ["mark"])

    run(drive())


def test_a_question_is_answered_by_y_alone() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"))
        async with app.run_test(size=(80, 24)) as pilot:
            for key in ("n", "escape"):
                await pilot.press("S")
                await until(pilot, lambda: isinstance(app.screen, Confirm))
                await pilot.press("enter")
                await until(pilot, lambda: isinstance(app.screen, Confirm))
                await pilot.press(key)
                await until(pilot, lambda: not isinstance(app.screen, Confirm))
            assert the_screen(app).done == []
            await pilot.press("S")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await until(pilot, lambda: the_screen(app).done == ["self_test"])

    run(drive())


def test_what_cannot_be_done_says_why_and_an_error_is_a_message() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await pilot.press("c")
            await until(pilot, lambda: "nothing is marked" in screen_text(app))
            await pilot.press("R")
            await until(pilot, lambda: "it is gone [/x]" in screen_text(app))
            assert "start it [b]" in screen_text(app)

    run(drive())


def test_read_only_starts_nothing() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"), config=Config(app=AppSettings(readonly=True)))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: "READ-ONLY" in screen_text(app))
            await pilot.press("S", "R", "m")
            await until(pilot, lambda: the_screen(app).done == ["mark"])
            assert not isinstance(app.screen, Confirm)
            assert app.run_command(("stop", "demo")) is None
            assert app.started == []
            assert app.run_command(("verify", "x"), reads=True) is not None

    run(drive())


def test_a_look_that_fails_is_told_and_the_next_one_heals_it() -> None:
    source = Given("all is well")

    async def drive() -> None:
        app = words_app(source)
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: "all is well" in screen_text(app))
            source.now = ServerError(f"no answer {HOSTILE}", "look again")
            await until(pilot, lambda: "next: look again" in screen_text(app))
            assert "all is well" in screen_text(app)
            source.now = ValueError("a defect")
            await until(pilot, lambda: "ValueError: a defect" in screen_text(app))
            source.now = "well again"
            await until(pilot, lambda: "well again" in screen_text(app))
            assert "a defect" not in screen_text(app)

    source_closes(drive)
    assert source.closed


def source_closes(drive: Any) -> None:
    """Run a test that ends its app; the poller's thread closes its source soon after."""
    pollers = [thread for thread in threading.enumerate() if isinstance(thread, Poller)]
    run(drive())
    for thread in threading.enumerate():
        if isinstance(thread, Poller) and thread not in pollers:
            thread.join(10)
            assert not thread.is_alive()


def test_held_still_the_picture_stays_while_looks_go_on() -> None:
    async def drive() -> None:
        source = Given("first")
        app = words_app(source)
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: "first" in screen_text(app))
            await pilot.press("space")
            await until(pilot, lambda: "HELD" in screen_text(app))
            source.now, looks = "second", source.looks
            await until(pilot, lambda: source.looks > looks + 2)
            assert "first" in screen_text(app)
            await pilot.press("space")
            await until(pilot, lambda: "second" in screen_text(app))

    run(drive())


def test_a_hidden_mode_is_not_looked_at() -> None:
    async def drive() -> None:
        source = Given("hello")
        services = Services(
            source=lambda mode: source if mode == "probe" else Given(Failed("")),
            surroundings=lambda: Given(Surroundings((), ())),
        )
        app = WordsApp(Config(), services, "probe")
        async with app.run_test() as pilot:
            await until(pilot, lambda: source.looks > 2)
            await pilot.press("2")
            await until(pilot, lambda: app.current_mode == "patches")
            await pilot.pause(0.2)
            looks = source.looks
            await pilot.pause(0.3)
            assert source.looks <= looks + 1
            await pilot.press("3")
            await until(pilot, lambda: source.looks > looks + 2)

    run(drive())


def test_search_passes_each_letter_on_and_escape_ends_it() -> None:
    async def drive() -> None:
        app = words_app(Given("hello"))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await pilot.press("slash", "q", "1")
            await until(pilot, lambda: the_screen(app).words == "q1")
            assert isinstance(app.focused, Input)
            assert app.current_mode == "probe"
            await pilot.press("escape")
            await until(pilot, lambda: the_screen(app).words == "")
            assert not isinstance(app.focused, Input)

    run(drive())


def rows_of(*names: str, value: str = "1") -> list[Row]:
    return [Row(name, (name, value)) for name in names]


def test_a_table_keeps_its_cursor_when_rows_come_and_go() -> None:
    async def drive() -> None:
        source = Given(rows_of("a", "b", "c"))
        app = words_app(source)
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            table = the_screen(app).query_one(RowTable)
            await until(pilot, lambda: table.keys() == ["a", "b", "c"])
            await pilot.press("j", "j")
            await until(pilot, lambda: table.selected == "c")
            source.now = rows_of("new", HOSTILE, "b", "c", value="[/]2")
            await until(pilot, lambda: len(table.keys()) == 4)
            assert table.selected == "c"
            assert "[/]2" in screen_text(app)
            source.now = rows_of("b")
            await until(pilot, lambda: table.keys() == ["b"])
            assert table.selected == "b"
            source.now = []
            await until(pilot, lambda: table.keys() == [])
            assert table.selected is None

    run(drive())


def test_a_row_is_copied_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drive() -> None:
        app = words_app(Given([Row("a", ("a", "1"), {"name": "a", "value": float("nan")})]))
        copied: list[str] = []
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        async with app.run_test() as pilot:
            await until(pilot, lambda: the_screen(app).query_one(RowTable).keys())
            await pilot.press("y")
            await until(pilot, lambda: copied)
        assert copied == ['{"name": "a", "value": NaN}']

    run(drive())


def test_the_top_line_tells_the_truth_in_any_width() -> None:
    async def drive() -> None:
        servers = (status("demo"), status(HOSTILE, "starting", phase="kv cache"), status("old", "dead"))
        app = words_app(Given("x"), around=Given(Surroundings(servers, ())))
        async with app.run_test(size=(200, 30)) as pilot:
            await until(pilot, lambda: "demo :30017 ● ready" in screen_text(app))
            assert "starting: kv cache" in screen_text(app)
            await pilot.resize_terminal(80, 24)
            await until(pilot, lambda: "3 servers" in screen_text(app))
            assert all(len(line) <= 80 for line in screen_text(app).split("\n"))

    run(drive())


@pytest.mark.parametrize(
    "found", [Failed("no such folder"), Surroundings((), ()), Surroundings((status("x", "silent"),), ())]
)
def test_the_top_line_with_anything(found: Any) -> None:
    async def drive() -> None:
        app = words_app(Given("x"), around=Given(found))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.servers is not None)
            assert app.screen.query_one(TopLine)

    run(drive())


def test_a_command_that_failed_is_told_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def drive() -> None:
        around = Given(Surroundings((), ()))
        app = words_app(Given("x"), around=around)
        async with app.run_test(size=(110, 30), notifications=True) as pilot:
            started = app.run_command(("stop", HOSTILE))
            assert started is not None
            started.folder.mkdir(parents=True)
            (started.folder / "err").write_text("[  0.1 s] looking\nhsbench: no server is named [/x]\n  next: status\n")
            around.now = Surroundings((), (TaskView(started, "failed"),))
            await until(pilot, lambda: "no server is named [/x]" in screen_text(app))

    run(drive())


def test_leaving_says_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def drive() -> None:
        tasks = (TaskView(task("bench", "--concurrency", "4"), "running"), TaskView(task("probe", "x"), "done"))
        app = words_app(Given("x"), around=Given(Surroundings((status("demo"), status("old", "dead")), tasks)))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: app.servers)
            await pilot.press("q")
            await until(pilot, lambda: isinstance(app.screen, Leave))
            shown = screen_text(app)
            assert "server demo at http://127.0.0.1:30017, ready" in shown
            assert "hsbench bench --concurrency 4" in shown
            assert "probe x" not in shown
            assert "server old" not in shown
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, Leave))
            await pilot.press("q", "q")
            await until(pilot, lambda: app._exit)
        assert app.return_code == 0

    run(drive())


def test_with_nothing_running_it_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def drive() -> None:
        app = words_app(Given("x"))
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.servers == ())
            await pilot.press("q")
            await until(pilot, lambda: app._exit)

    run(drive())


def test_a_picture_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def drive() -> None:
        app = words_app(Given("seen"))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: "seen" in screen_text(app))
            await pilot.press("ctrl+s")
            await until(pilot, lambda: list(tmp_path.rglob("probe-*.svg")))

    run(drive())
    assert "seen" in next(tmp_path.rglob("probe-*.svg")).read_text()


def test_a_theme_that_is_not_there_is_told() -> None:
    async def drive() -> None:
        app = words_app(Given("x"), config=Config(app=AppSettings(theme="[no]")))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await until(pilot, lambda: "there is no theme '[no]'" in screen_text(app))
            assert app.theme == "hsbench"

    run(drive())


def test_a_poller_ends_while_it_is_paused() -> None:
    source, told = Given("x"), threading.Event()
    poller = Poller(source, lambda _: told.set())
    poller.start()
    assert told.wait(10)
    poller.pause()
    poller.stop()
    poller.join(10)
    assert not poller.is_alive()
    assert source.closed
