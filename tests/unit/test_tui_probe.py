"""The Probe mode, on reports that the probe's own code makes and keeps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from textual.widgets import Input

from probes.stats import describe
from tests.unit import tui_support
from tests.unit.tui_records import report_of
from tests.unit.tui_support import HOSTILE, Given, app_with, record, run, screen_text, status, until
from workbench.errors import UsageError
from workbench.paths import state_dir
from workbench.probe import history
from workbench.probe.history import Kept
from workbench.probe.report import OtherDump, ProbeReport, TensorRow, Token
from workbench.tasks import store
from workbench.tui import glyphs
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.probe import ProbeScreen, when
from workbench.tui.services import TaskView
from workbench.tui.sources import probe as source
from workbench.tui.sources.probe import ProbeSource, Snapshot
from workbench.tui.widgets import probe_cells, probe_compare
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.probe_pictures import Pictures, norm_picture, value_picture
from workbench.tui.widgets.probe_progress import ProgressPanel
from workbench.tui.widgets.probe_prompt import PromptBox
from workbench.tui.widgets.probe_tensors import TensorTable
from workbench.tui.widgets.table import RowTable

REFERENCE = {
    "num_tokens": 31,
    "note": "a built-in text, since 2 tokens are too few to judge by",
    "tensors": [
        {"name": "aux_0", "claimed": 2, "error": 0.008, "error_before": 0.32, "error_after": 0.25, "best": "block 2",
         "verdict": "ok"},
        {"name": "final", "claimed": 29, "error": 0.3, "error_before": None, "error_after": None, "best": "block 28",
         "verdict": "wrong block"},
    ],
}  # fmt: skip
LOGITS = {"verdict": "ok", "error": 0.003, "error_other": 9.1, "claimed": "pre", "other": "post"}
SELF_TEST = {
    "batch": 6,
    "rows": [{"label": "yours", "num_tokens": 2, "error": 0.0, "bit_equal": True, "verdict": "ok"}],
}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    glyphs.set_ascii(False)


def row(name: str, tensor: torch.Tensor, block: int = 2, norm: str | None = None) -> TensorRow:
    """A row with the statistics that the probe makes of a tensor."""
    stats = describe(tensor)
    same = {field: getattr(stats, field) for field in TensorRow.__struct_fields__ if hasattr(stats, field)}
    entering = None if norm else block + 1
    return TensorRow(name=name, after_block=block, captured_entering=entering, norm=norm, **same)


def report(words: tuple[str, ...] = ("Hello", " world"), **changes: Any) -> ProbeReport:
    torch.manual_seed(0)
    states = [(torch.randn(len(words), 64) * scale).bfloat16() for scale in (2, 300)]
    tokens = tuple(Token(100 + at, word) for at, word in enumerate(words))
    tensors = (row("aux_0", states[0]), row("final", states[1], 29, "pre"))
    return report_of(**{"tokens": tokens, "tensors": tensors, "prompt": "".join(words), **changes})


def hostile() -> ProbeReport:
    """Everything from outside is nasty, and no statistic exists."""
    nothing = row(HOSTILE, torch.full((2, 4), float("nan")))
    bad = msgspec.structs.replace(nothing, mean=float("nan"), std=float("inf"), min=-1e308, token_norms=(float("inf"),))
    return report(
        prompt=HOSTILE, model=f"/m/{HOSTILE}", tokens=(Token(1, HOSTILE), Token(2, "\ufffd"), Token(3, "\x00\n")),
        tensors=(nothing, nothing, bad), verdict=HOSTILE, summary=HOSTILE * 30, next_step=HOSTILE, request_id=HOSTILE,
        other_dumps=(OtherDump(HOSTILE, HOSTILE, 5),), dump=HOSTILE, route=HOSTILE,
        reference={"tensors": [{"name": HOSTILE, "verdict": HOSTILE, "best": HOSTILE}], "note": HOSTILE},
        logits={"verdict": HOSTILE}, self_test={"rows": [{}], "batch": HOSTILE},
    )  # fmt: skip


def kept_at(name: str) -> Kept:
    found = history.load(name)
    assert found is not None
    return found


# The source


def test_an_empty_history_is_a_snapshot() -> None:
    assert ProbeSource().collect() == Snapshot()


def test_the_newest_is_selected_and_a_report_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("a",), ("b",), ("c",)):
        history.keep(report(words))
    loads: list[str] = []
    load = history.load
    monkeypatch.setattr(history, "load", lambda name: loads.append(name) or load(name))
    looks = ProbeSource()
    first = looks.collect()
    assert [entry.prompt for entry in first.entries] == ["c", "b", "a"]
    assert first.chosen == first.entries[0].name
    assert first.selected is not None
    assert first.selected.report == kept_at(first.chosen).report
    loads.clear()
    again = looks.collect()
    assert loads == []
    assert again.entries is first.entries
    assert again.selected is first.selected
    looks.selected, looks.marked = first.entries[2].name, first.entries[1].name
    third = looks.collect()
    assert third.selected is not None
    assert third.marked is not None
    assert (third.selected.report.prompt, third.marked.report.prompt) == ("a", "b")


def test_what_is_gone_or_unreadable_is_left_out() -> None:
    for words in (("a",), ("b",)):
        history.keep(report(words))
    (history.probes_dir() / "29991231-000000-000000-aaaa.json").write_text("{")
    looks = ProbeSource()
    found = looks.collect()
    assert (len(found.entries), found.unread) == (2, 1)
    looks.selected = found.entries[0].name
    (history.probes_dir() / f"{found.entries[0].name}.json").unlink()
    after = looks.collect()
    assert [entry.prompt for entry in after.entries] == ["a"]
    assert after.selected is not None
    assert after.selected.report.prompt == "a"


def test_a_long_history_is_read_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LOADED_A_LOOK", 3)
    for number in range(5):
        history.keep(report((str(number),)))
    looks = ProbeSource()
    assert [entry.prompt for entry in looks.collect().entries] == ["4", "3", "2"]
    assert len(looks.collect().entries) == 5


def put_task(name: str, argv: tuple[str, ...], *, err: str = "", out: str = "", code: int | None = None) -> None:
    """A task's folder as `workbench.tasks.store` leaves it; its process does not exist."""
    given = tui_support.task(*argv, name=name, started=4e9)
    given.folder.mkdir(parents=True)
    (given.folder / "task.json").write_bytes(msgspec.json.encode(given))
    (given.folder / "err").write_text(err)
    (given.folder / "out").write_text(out)
    if code is not None:
        (given.folder / "exit").write_text(str(code))


FAILED = (
    "[   0.1 s] starting\n  | Traceback\n  | OutOfMemory\nhsbench: the server died while starting\n"
    "  next: hsbench serve --model demo, and look at its log\n"
)


def test_why_a_probe_failed() -> None:
    put_task("20260921-101500-0001", ("probe", "--json", "Hi"), err=FAILED, code=3)
    put_task("20260921-101501-0001", ("serve",), code=1)
    found = ProbeSource().collect().progress
    assert found is not None
    assert (found.state, found.command) == ("failed", "probe --json Hi")
    assert found.lines == (
        "  | Traceback",
        "  | OutOfMemory",
        "the server died while starting",
        "  next: hsbench serve --model demo, and look at its log",
    )
    assert source.failure(["just", "words"]) == ["just", "words"]


def test_a_red_verdict_is_no_failure_to_probe() -> None:
    put_task("20260921-101500-0001", ("probe", "Hi"), out='{"verdict": "radix_hit"}\n', code=1)
    assert ProbeSource().collect().progress is None


def test_a_probe_that_runs_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    put_task("20260921-101500-0001", ("probe", "Hi"), err="[ 1.0 s] one\n[ 2.0 s] two\n")
    monkeypatch.setattr(store.Task, "running", lambda self: True)
    found = ProbeSource().collect().progress
    assert found is not None
    assert (found.state, found.lines) == ("running", ("[ 1.0 s] one", "[ 2.0 s] two"))


# The command


@pytest.mark.parametrize(
    ("states", "wanted", "name", "words"),
    [
        ((), None, None, "starts the demo model"),
        ((("a", "ready"),), None, "a", "to a: demo, blocks 2, 15, 27"),
        ((("a", "ready"), ("b", "silent")), None, "a", "to a"),
        ((("a", "ready"), ("b", "ready")), None, None, "2 servers record"),
        ((("a", "ready"), ("b", "ready")), "b", "b", "to b"),
        ((("a", "ready"), ("default", "ready")), None, "default", "to default"),
        ((("default", "starting"),), None, None, "default is starting"),
        ((("default", "dead"),), "gone", None, "starts the demo model"),
    ],
)
def test_where_a_probe_goes(states: tuple[tuple[str, str], ...], wanted: str | None, name: str, words: str) -> None:
    servers = [status(one, state, server=record(one)) for one, state in states]
    found = source.target(servers, wanted)
    assert found[0] == name
    assert words in found[1]


def test_a_server_that_records_nothing_is_not_probed() -> None:
    assert source.target([status("a", server=record("a", dump=None))])[0] is None


def test_the_command_of_a_prompt() -> None:
    assert source.command("Hi there", name="a") == ("probe", "--json", "--name", "a", "Hi there")
    assert source.command("-v", chat=True) == ("probe", "--json", "--chat", "--", "-v")
    assert source.command("1,2", tokens=True) == ("probe", "--json", "--tokens", "1,2")
    for bad in ("", "  ", "a\0b", "x" * 200_000):
        with pytest.raises(UsageError):
            source.command(bad)


def test_a_kept_prompt_is_probed_again_as_the_same_tokens() -> None:
    plain = report(("Hello", " world"))
    assert source.again(plain, "a", "--reference") == (
        "probe", "--json", "--name", "a", "--reference", "Hello world",
    )  # fmt: skip
    with_start = msgspec.structs.replace(plain, tokens=(Token(1, "<s>"), *plain.tokens))
    assert source.again(with_start, None, "--self-test")[-1] == "Hello world"
    chat = report(("<|im_start|>user\n", "Hi", "<|im_end|>"), prompt="Hi")
    assert source.again(chat, None, "--reference")[-2:] == ("--tokens", "100,101,102")
    given_ids = report(("a", "b"), prompt="100,101")
    assert source.again(given_ids, None, "--reference")[-2:] == ("--tokens", "100,101")
    assert source.again(report(("a\0",)), None, "--reference")[-2:] == ("--tokens", "100")


# Words, cells, pictures


def test_columns_go_when_there_is_no_room() -> None:
    labels = {room: [one.label for one in probe_cells.columns_for(room, True)] for room in (0, 54, 80, 132)}
    assert labels[0] == ["tensor"]
    assert labels[54] == ["tensor", "block", "std", "reference"]
    assert "mean" in labels[80]
    assert len(labels[132]) == len(probe_cells.FACTS)
    assert "reference" not in [one.label for one in probe_cells.columns_for(200, False)]
    for room in (30, 54, 80, 132, 200):
        assert sum((one.width or 0) + 2 for one in probe_cells.columns_for(room, True)) <= room


def test_the_cells_of_a_tensor() -> None:
    columns = probe_cells.columns_for(500, True)
    shown = probe_cells.rows_of(report(reference=REFERENCE), columns)
    cells = {column.label: getattr(cell, "plain", cell) for column, cell in zip(columns, shown[0].cells, strict=True)}
    assert cells["tensor"] == "aux_0"
    assert (cells["block"], cells["taken"], cells["shape"], cells["dtype"]) == ("2", "entering 3", "[2, 64]", "bf16")
    assert (cells["zeros"], cells["nan"], cells["inf"]) == ("0 %", "0", "0")
    assert cells["reference"] == "● 2 (1: .32 3: .25)"
    assert getattr(shown[1].cells[-1], "plain", "") == "✗ wrong block: 28"
    assert shown[0].data["std"] == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (-56320.0, "-56320"), (-0.63512, "-0.6351"), (-1.2345e-7, "-1.2e-07")]
)
def test_a_value_in_eight_columns(value: float | None, text: str) -> None:
    assert probe_cells.few(value) == text


def test_two_probes_are_compared_where_they_can_be() -> None:
    one = report(("a", "b", "c"))
    assert probe_compare.shared(one.tokens, one.tokens) == 3
    other = (one.tokens[0], Token(7, "x"), one.tokens[2])
    assert probe_compare.shared(one.tokens, other) == 1
    base = one.tensors[0]
    twice = msgspec.structs.replace(base, token_norms=tuple(2 * norm for norm in base.token_norms))
    assert probe_compare.norms(base, twice, 3) == (3, pytest.approx(1), pytest.approx(1))
    assert probe_compare.norms(base, twice, 0) == (0, None, None)
    broken = msgspec.structs.replace(base, token_norms=(float("nan"), None, 0.0))  # type: ignore[arg-type]
    assert probe_compare.norms(broken, base, 3) == (0, None, None)


def test_pictures_of_any_tensor() -> None:
    bad = hostile()
    for tensor in (*bad.tensors, *report().tensors):
        for size in ((0, 0), (10, 1), (24, 5), (40, 12)):
            assert isinstance(value_picture(tensor, *size), str)
            assert isinstance(norm_picture(bad, tensor, *size), str)
    assert "'Hello'" in norm_picture(report(), report().tensors[0], 40, 5)
    many = report(tuple("abcdefghij"))
    assert "'a'" not in norm_picture(many, many.tensors[0], 40, 8)


def test_when_it_was() -> None:
    assert when(1_790_000_000.0, 1_790_000_000.0).count(":") == 1
    assert when(1_790_000_000.0, 1_800_000_000.0).count("-") == 1
    assert when(1e300) == "?"


# The screen


def probe_screen(app: tui_support.FakeApp) -> ProbeScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, ProbeScreen)
    return screen


def quick() -> ProbeSource:
    """The real source, looking more often."""
    looks = ProbeSource()
    looks.every_s = 0.3
    return looks


def seen(app: tui_support.FakeApp, prompt: str) -> bool:
    """Whether that prompt's report is what is drawn."""
    drawn = getattr(app.screen_stack[0], "_drawn", None)
    return drawn is not None and drawn.report.prompt == prompt


@pytest.mark.parametrize("size", [(80, 24), (110, 34), (160, 50)])
def test_a_report_is_seen(size: tuple[int, int]) -> None:
    async def check() -> None:
        history.keep(report(reference=REFERENCE, logits=LOGITS, self_test=SELF_TEST))
        app = app_with("probe", quick(), servers=[status("demo")])
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: seen(app, "Hello world"))
            text = screen_text(app)
            for words in ("Hello wor", "aux_0", "final", "wrong block: 28", "● ok", "to demo: demo, blocks 2, 15, 27"):
                assert words in text
            assert ("L2 norm by token" in text) == (size[1] >= 30)
            assert ("other dumps" in text) == (size[0] >= 150)
            assert ("100 'Hello'" in text) == (size[0] >= 100)
            if size[1] < 30:
                await pilot.press("v")
                await until(pilot, lambda: "L2 norm by token" in screen_text(app))
                assert "0 'Hello'" in screen_text(app)

    run(check())


def test_before_the_first_probe_nothing_is_said_to_lack_room() -> None:
    async def check() -> None:
        app = app_with("probe", Given(Snapshot()))
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: screen_text(app).count("no tensor is selected") == 2)
            assert "no room" not in screen_text(app)

    run(check())


def test_a_prompt_is_probed() -> None:
    async def check() -> None:
        app = app_with("probe", quick(), servers=[status("demo")])
        async with app.run_test(size=(110, 34), notifications=True) as pilot:
            await until(pilot, lambda: "to demo" in screen_text(app))
            assert "Nothing was probed yet" in screen_text(app)
            await pilot.press("p", *"-R", "space", "x", "enter")
            await until(pilot, lambda: app.started)
            assert app.started == [("probe", "--json", "--name", "demo", "--", "-R x")]
            assert not isinstance(app.focused, Input)
            await pilot.press("p", "tab", "space")
            box = app.screen.query_one(PromptBox)
            assert box.switched("chat")
            await pilot.press("tab", "space")
            await until(pilot, lambda: (box.switched("chat"), box.switched("ids")) == (False, True))
            app.screen.query_one("#text", Input).value = "1,2"
            await pilot.press("p", "enter")
            await until(pilot, lambda: len(app.started) == 2)
            assert app.started[1] == ("probe", "--json", "--name", "demo", "--tokens", "1,2")
            app.screen.query_one("#text", Input).value = " "
            await pilot.press("p", "enter")
            await until(pilot, lambda: "the prompt is empty" in screen_text(app))
            assert len(app.started) == 2
            await pilot.press("escape")
            assert not isinstance(app.focused, Input)

    run(check())


def test_a_new_report_is_shown_when_it_comes() -> None:
    async def check() -> None:
        history.keep(report(("old",)))
        history.keep(report(("older", " news")))
        app = app_with("probe", quick())
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: seen(app, "older news"))
            await pilot.press("j")
            await until(pilot, lambda: seen(app, "old"))
            history.keep(report(("headless",)))
            screen = probe_screen(app)
            await until(pilot, lambda: len(screen._last.entries) == 3)
            assert seen(app, "old")  # what is looked at stays
            await pilot.press("R")
            await until(pilot, lambda: app.started)
            assert app.started == [("probe", "--json", "--reference", "old")]
            history.keep(report(("old", "!")))
            await until(pilot, lambda: seen(app, "old!"))
            table = app.screen.query_one("#history", RowTable)
            await until(pilot, lambda: table.cursor_row == 0)

    run(check())


def test_a_second_look_is_asked_for_on_the_reports_own_server() -> None:
    async def check() -> None:
        history.keep(report())
        servers = [status("a", server=record("a", url="http://127.0.0.1:1")), status("b", server=record("b"))]
        app = app_with("probe", quick(), servers=servers)
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: seen(app, "Hello world") and "2 servers record" in screen_text(app))
            await pilot.press("S")
            await until(pilot, lambda: app.started)
            assert app.started == [("probe", "--json", "--name", "b", "--self-test", "Hello world")]
            await pilot.press("s")
            await until(pilot, lambda: "to a: demo" in screen_text(app))
            await pilot.press("s")
            await until(pilot, lambda: "to b: demo" in screen_text(app))

    run(check())


def test_two_probes_beside_each_other() -> None:
    async def check() -> None:
        history.keep(report(("Hello", " moon")))
        history.keep(report())
        app = app_with("probe", quick())
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: seen(app, "Hello world"))
            await pilot.press("c")
            await until(pilot, lambda: app.screen is probe_screen(app))
            await pilot.press("m")
            await until(pilot, lambda: probe_screen(app)._last.marked is not None)
            await pilot.press("j")
            await until(pilot, lambda: seen(app, "Hello moon"))
            await pilot.press("c")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            text = screen_text(app)
            assert "Both have the same 2 tokens" in text  # the ids count, not the words
            assert "[2, 64]" in text
            assert "nan+inf" in text
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is probe_screen(app))

    run(check())


def test_different_tokens_are_said() -> None:
    async def check() -> None:
        whole = report(prompt=HOSTILE, tokens=(Token(1, HOSTILE), Token(2, HOSTILE)))
        other = msgspec.structs.replace(whole.tensors[0], name=HOSTILE, mean=None)
        history.keep(msgspec.structs.replace(whole, tensors=(other,), verdict=HOSTILE, model=HOSTILE))
        history.keep(report(("a", "b", "c"), model=HOSTILE, tokens=(Token(1, "a"), Token(9, "[b]"))))
        looks = ProbeSource()
        entries = looks.collect().entries
        looks.marked = entries[0].name
        app = app_with("probe", looks)
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: probe_screen(app)._last.marked is not None and app.screen.is_mounted)
            await pilot.press("j")
            await until(pilot, lambda: seen(app, HOSTILE))
            await pilot.press("c")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            text = screen_text(app)
            assert "The tokens differ from place 1 on: '[b]'" in text
            assert "selected only" in text

    run(check())


@pytest.mark.parametrize("ascii", [False, True])
def test_hostile_reports_while_the_size_changes(ascii: bool) -> None:
    async def check() -> None:
        given = Given(Snapshot())
        given.every_s = 0.3
        app = app_with("probe", given, config=Config(app=AppSettings(ascii=ascii)))
        progress = [source.Progress("1", HOSTILE, state, 9.0, (HOSTILE,) * 9)
                    for state in ("running", "failed", "killed")]  # fmt: skip
        async with app.run_test(size=(160, 50)) as pilot:
            for at, size in enumerate([(80, 24), (20, 6), (1, 1), (160, 50)]):
                kept = Kept(time=1e300, report=hostile() if at % 2 else report())
                entry = source.entry_of(f"{at}", kept)
                given.now = Snapshot((entry,), 1, entry.name, kept, kept, progress[at % 3])
                probe_screen(app).poller.wake()
                await pilot.resize_terminal(*size)
                await until(pilot, lambda kept=kept: probe_screen(app)._drawn is kept)
            given.now = Snapshot((entry,), 1, entry.name, Kept(time=0.0, report=hostile()), None, progress[1])
            await until(pilot, lambda: seen(app, HOSTILE))
            assert "[/red] [bold]x" in screen_text(app)
            assert "\x1b" not in screen_text(app)
            assert app.screen.query_one(TensorTable).row_count == 3
            await pilot.press("y", "tab", "j", "y")
            await until(pilot, lambda: json.loads(app.clipboard)["mean"] is None)

    run(check())


def test_a_failure_stays_until_it_is_dismissed() -> None:
    async def check() -> None:
        put_task("20260921-101500-0001", ("probe", "Hi [/red]"), err=FAILED, code=3)
        app = app_with("probe", quick())
        async with app.run_test(size=(80, 24)) as pilot:
            panel = app.screen.query_one(ProgressPanel)
            await until(pilot, lambda: panel.has_class("open"))
            text = screen_text(app)
            assert "the server died while starting" in text
            assert "next: hsbench serve" in text
            await pilot.press("escape")
            assert not panel.has_class("open")
            app.screen.poller.wake()  # type: ignore[attr-defined]
            await pilot.pause(0.2)
            assert not panel.has_class("open")

    run(check())


def test_the_history_is_filtered_and_may_vanish() -> None:
    async def check() -> None:
        for words in (("needle",), ("hay",), ("[/red]",)):
            history.keep(report(words))
        app = app_with("probe", quick())
        async with app.run_test(size=(110, 34)) as pilot:
            table = app.screen.query_one("#history", RowTable)
            await until(pilot, lambda: table.row_count == 3)
            await pilot.press("slash", *"need")
            await until(pilot, lambda: table.row_count == 1)
            await until(pilot, lambda: seen(app, "needle"))
            await pilot.press("escape")
            await until(pilot, lambda: table.row_count == 3)
            for path in history.probes_dir().iterdir():
                path.unlink()
            history.probes_dir().rmdir()
            (state_dir() / "gone").mkdir()
            await until(pilot, lambda: table.row_count == 0)
            await until(pilot, lambda: "Nothing was probed yet" in screen_text(app))
            assert app.screen.query_one(Pictures)

    run(check())


def test_read_only_probes_nothing() -> None:
    async def check() -> None:
        history.keep(report())
        app = app_with("probe", config=Config(app=AppSettings(readonly=True)))
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: seen(app, "Hello world"))
            await pilot.press("p", "R", "S")
            await until(pilot, lambda: app.screen.query_one("#text", Input).disabled)
            assert app.started == []

    run(check())


def test_a_probe_of_the_command_line_is_followed() -> None:
    async def check() -> None:
        put_task("20260921-101500-0001", ("probe", "Hi"), err="[ 1.0 s] weights (1.0 s after the start)\n")
        view = TaskView(tui_support.task("probe", "Hi"), "running")
        app = app_with("probe", tasks=[view])
        async with app.run_test(size=(110, 34)) as pilot:
            panel = app.screen.query_one(ProgressPanel)
            await until(pilot, lambda: panel.has_class("open"))
            assert "weights (1.0 s after the start)" in str(panel.query_one(Plain).render())

    run(check())
