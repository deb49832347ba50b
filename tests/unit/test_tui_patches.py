"""The Patches mode on real SGLang sources that the patch is really applied to."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from patches import manage, support
from patches.errors import NoTree, PatchError
from patches.tree import Tree
from tests.trees import FILES, LLAMA, NEW, apply_llama, installed_root
from tests.unit.tui_support import HOSTILE, FakeApp, app_with, record, run, screen_text, status, task, until
from workbench import cli
from workbench.tui import glyphs
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.confirm import Confirm
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.patches import PatchesScreen
from workbench.tui.services import TaskView
from workbench.tui.sources.patches import PatchesSource, split_diff
from workbench.tui.widgets.patches_choose import ChooseTree
from workbench.tui.widgets.patches_diff import DiffView
from workbench.tui.widgets.patches_hunks import paired, parse, side_by_side, unified
from workbench.tui.widgets.table import RowTable


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    glyphs.set_ascii(False)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The release's own files, whether or not the environment that runs the tests is patched."""
    source, root = installed_root(), tmp_path / "site" / "sglang"
    for name in FILES:
        kept = source / "_hs" / "original" / name
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept if kept.is_file() else source / name, root / name)
    return Tree(root, NEW, None)


def look(tree: Tree) -> Any:
    judged = PatchesSource(tree).collect().judged
    assert judged is not None
    return judged


def states(tree: Tree) -> dict[str, str]:
    return {family.name: family.state for family in look(tree).families}


def on(app: FakeApp) -> PatchesScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, PatchesScreen)
    return screen


def judged_as(app: FakeApp, state: str) -> bool:
    seen = on(app).seen
    return seen is not None and seen.judged is not None and seen.judged.state == state


# The source


def test_a_clean_tree_and_a_patched_one(tree: Tree) -> None:
    assert (look(tree).state, set(states(tree).values()), dict(look(tree).diffs)) == ("clean", {"clean"}, {})
    apply_llama(tree)
    judged = look(tree)
    assert (judged.state, list(judged.diffs)) == ("applied", [LLAMA])
    assert {name for name, state in states(tree).items() if state == "applied"} == {"llama"}
    assert [(file.path, file.content, file.families) for file in judged.files] == [(LLAMA, "patched", ("llama",))]
    found = [str(line) for line in manage.grep(tree)]
    assert [f"{tree.root}/{line}" for line in judged.lines] == found
    assert judged.files[0].inserted == judged.lines_all == len(found) > 0


def test_the_families_of_every_state(tree: Tree) -> None:
    original = (tree.root / LLAMA).read_bytes()
    apply_llama(tree)
    patched = (tree.root / LLAMA).read_bytes()
    (tree.root / LLAMA).write_bytes(original)
    assert states(tree)["llama"] == "incomplete"
    (tree.root / LLAMA).write_bytes(patched + b"# _hs_x\n")
    assert (states(tree)["llama"], states(tree)["qwen2"]) == ("foreign", "clean")
    (tree.root / LLAMA).write_bytes(original + b"# a newer release\n")
    assert states(tree)["llama"] == "stale"
    shutil.rmtree(tree.root / "_hs")
    (tree.root / LLAMA).unlink()
    assert states(tree)["llama"] == "missing"


def test_nothing_is_hashed_again_until_a_file_changes(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_llama(tree)
    looks: list[Tree] = []
    real = manage.status
    monkeypatch.setattr(manage, "status", lambda tree: looks.append(tree) or real(tree))  # type: ignore[func-returns-value]
    source = PatchesSource(tree)
    first = source.collect()
    assert source.collect().judged is first.judged
    assert len(looks) == 1
    for change in (LLAMA, "_hs/manifest.json", "_hs/recorder/store.py", f"_hs/original/{LLAMA}"):
        before = len(looks)
        path = tree.root / change
        path.write_bytes(path.read_bytes() + b" ")
        source.collect()
        assert len(looks) == before + 1, change


def test_the_rows_of_a_difference_are_lines_of_both_files(tree: Tree) -> None:
    before = (tree.root / LLAMA).read_text().split("\n")
    apply_llama(tree)
    after = (tree.root / LLAMA).read_text().split("\n")
    rows = parse(look(tree).diffs[LLAMA])
    real = [row for row in rows if row.sign != "@"]
    assert {row.text for row in real if row.old} == {before[row.old - 1] for row in real if row.old}
    assert all(row.old is None or before[row.old - 1] == row.text for row in real)
    assert all(row.new is None or after[row.new - 1] == row.text for row in real)
    assert {row.sign for row in rows} == {"@", " ", "+", "-"}
    text = manage.diff(tree)
    assert [row.sign for row in real] == [line[0] for line in text.split("\n")[2:-1] if not line.startswith("@@")]
    for left, right in paired(rows):
        assert left is None or left.sign != "+"
        assert right is None or right.sign != "-"
    shown, pairs = side_by_side(rows, 120)
    assert {len(line) for line in shown.plain.split("\n")} == {119, 120}
    assert len(shown.plain.split("\n")) == len(pairs) <= len(rows) == len(unified(rows).plain.split("\n"))


def test_a_difference_of_several_files_and_of_lines_that_look_like_headers() -> None:
    one = "--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/y\n same\n"
    two = "--- a/sglang/z.py\n+++ b/sglang/z.py\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"
    assert split_diff(one + two) == {"x.py": one, "z.py": two}
    assert [(row.sign, row.old, row.new, row.text) for row in parse(one)] == [
        ("@", 1, 1, "@@ -1,2 +1,2 @@"),
        ("-", 1, None, "-- a/y"),
        ("+", None, 1, "++ b/y"),
        (" ", 2, 2, "same"),
    ]
    assert [(row.sign, row.new) for row in parse(two)] == [("@", 1), ("+", 1)]
    assert split_diff("") == {}


def test_a_damaged_original_is_said_in_place_of_the_difference(tree: Tree) -> None:
    apply_llama(tree)
    (tree.root / "_hs" / "original" / LLAMA).write_bytes(b"")
    judged = look(tree)
    assert not judged.diffs
    assert "missing or damaged" in judged.diff_problem


def test_the_routes_are_those_that_the_command_printed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(support, "FAMILIES", {"llama": support.FAMILIES["llama"]})
    assert cli.run(["patch", "support", "--json", "--target", str(tree.root)]) == 0
    told = task("patch", "support", "--json")
    told.folder.mkdir(parents=True)
    (told.folder / "out").write_text(capsys.readouterr().out)
    source = PatchesSource(tree)
    source.tried = (task("patch", "support", name="20260921-101500-ffff"), told)
    families = {family.name: family for family in source.collect().judged.families}  # type: ignore[union-attr]
    assert [(cell.route, cell.ok) for cell in families["llama"].cells] == [
        ("patch", True),
        ("plugin", False),
        ("builtin", False),
    ]
    assert families["qwen2"].cells == ()
    other = PatchesSource(Tree(tree.root, "0.5.1", None))
    other.tried = (told,)
    assert other.collect().support is None


def test_who_runs_from_the_tree(tree: Tree) -> None:
    asked: list[str | None] = []

    def find(python: str | None) -> Tree:
        asked.append(python)
        if python == "/none":
            raise NoTree("there is none")
        return tree if python == "/ours" else Tree(tree.root.parent, NEW, python)

    source = PatchesSource(None, find)
    pythons = {"a": "/ours", "b": "/other", "c": "/none"}
    source.servers = tuple(status(name, server=record(name, python=python)) for name, python in pythons.items())
    source.servers += (status("d", "dead", server=record("d", python="/ours")),)
    source.python = "/ours"
    assert source.collect().users == ("a (ready)",)
    source.collect()
    assert asked == ["/ours", "/other", "/none"]  # each is started once
    source.stale = True
    source.collect()
    assert asked.count("/ours") == 2


# The screen


def test_apply_asks_with_the_tree_and_its_users_then_shows_what_changed(tree: Tree) -> None:
    async def session() -> None:
        source = PatchesSource(None, lambda python: tree)
        source.python = sys.executable
        app = app_with("patches", source, servers=[status()])
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: judged_as(app, "clean") and on(app).seen.users)  # type: ignore[union-attr]
            await pilot.press("r")
            assert not isinstance(app.screen, Confirm)
            await pilot.press("a")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert str(tree.root) in app.screen.question
            assert "demo (ready)" in app.screen.question
            await pilot.press("n", "a", "y")
            await until(pilot, lambda: app.started == [("patch", "apply", "--python", sys.executable)])
            apply_llama(tree)
            on(app).post_message(app.TaskEnded(TaskView(task("patch", "apply"), "done")))
            await until(pilot, lambda: judged_as(app, "applied"))
            text = screen_text(app)
            assert "● applied" in text
            assert f"Difference: {LLAMA}" in text
            assert "+ from sglang._hs import recorder as _hs_recorder" in text
            await pilot.press("r")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "original" in app.screen.question

    run(session())


def test_side_by_side_only_where_there_is_room(tree: Tree) -> None:
    apply_llama(tree)

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: judged_as(app, "applied"))
            view = on(app).query_one(DiffView)
            await pilot.press("s")
            assert not view.side
            await pilot.resize_terminal(120, 34)
            await until(pilot, lambda: view.fits)
            await pilot.press("s")
            await until(pilot, lambda: "s: side by side" in screen_text(app))
            lines = screen_text(app).split("\n")
            assert any(line.count("import torch") == 0 and line.count("│") == 3 and "+ from" in line for line in lines)
            await pilot.resize_terminal(80, 24)
            await until(pilot, lambda: "s: unified" in screen_text(app))
            assert view.side  # it comes back with the room
            await pilot.resize_terminal(160, 50)
            await until(pilot, lambda: "s: side by side" in screen_text(app))
            assert "Inserted lines" in screen_text(app)
            await pilot.press("s")
            assert not view.side

    run(session())


def test_inserted_lines_are_filtered_and_lead_to_their_place(tree: Tree) -> None:
    apply_llama(tree)
    finish = next(line for line in manage.grep(tree) if "_hs_recorder.finish" in line.text)

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: judged_as(app, "applied"))
            assert "path:line:text" not in screen_text(app)
            await pilot.press("slash", *"FINISH")
            table = on(app).query_one("#lines", RowTable)
            await until(pilot, lambda: table.keys() == [f"{LLAMA}:{finish.number}"])
            assert f"{LLAMA}:{finish.number}:" in screen_text(app)
            await pilot.press("enter")
            table.focus()
            await pilot.pause()
            copied = msgspec.json.decode(on(app).copied())
            assert (copied["path"], copied["number"], copied["text"]) == (finish.path, finish.number, finish.text)
            await pilot.press("enter")
            await until(pilot, lambda: finish.text.strip() in screen_text(app))
            assert "Difference:" in screen_text(app)

    run(session())


def test_a_family_opens_its_routes(tree: Tree) -> None:
    async def session() -> None:
        app = app_with("patches", PatchesSource(tree))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: judged_as(app, "clean"))
            await pilot.press("down", "enter")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            assert "srt/models/qwen2.py" in screen_text(app)
            await pilot.press("escape", "u")
            await pilot.press("v")
            where = ("--target", str(tree.root))
            assert app.started == [("patch", "support", "--json", *where), ("patch", "verify", *where)]

    run(session())


def test_a_verification_that_failed_says_why(tree: Tree) -> None:
    told = task("patch", "verify")
    told.folder.mkdir(parents=True)
    (told.folder / "out").write_text(f"problem: {HOSTILE}\nnot ok\n")

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: judged_as(app, "clean"))
            on(app).post_message(app.TaskEnded(TaskView(told, "failed")))
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            assert "problem: [/red] [bold]x[/]" in screen_text(app)

    run(session())


def test_without_a_tree_it_says_so_and_takes_another_interpreter(tree: Tree) -> None:
    def find(python: str | None) -> Tree:
        if python is None:
            raise NoTree(f"no package sglang {HOSTILE}", "name another with --python")
        return tree

    async def session() -> None:
        app = app_with("patches", PatchesSource(None, find), servers=[status()])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: on(app).seen is not None)
            assert "none: no package sglang [/red]" in screen_text(app)
            assert "name another with --python" in screen_text(app)
            await pilot.press("a", "u")
            assert app.started == []
            await until(pilot, lambda: bool(app.servers))
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, ChooseTree))
            assert [choice.python for choice in app.screen.choices] == ["", "/usr/bin/python3"]
            await pilot.press("down", "enter")
            await until(pilot, lambda: judged_as(app, "clean"))
            await pilot.press("v")
            await until(pilot, lambda: app.started == [("patch", "verify", "--python", "/usr/bin/python3")])
            await pilot.press("t", "tab", *"/x/py", "enter")
            await until(pilot, lambda: on(app).seen.where == ("--python", "/x/py"))  # type: ignore[union-attr]

    run(session())


def test_how_the_last_command_ended(tree: Tree) -> None:
    ended = [TaskView(task("patch", "support"), "done"), TaskView(task("patch", "verify", name="b"), "failed")]

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree), tasks=ended)
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: "last: verify failed, " in screen_text(app))

    run(session())


def test_a_running_command_is_shown_and_not_started_twice(tree: Tree) -> None:
    running = TaskView(task("patch", "apply"), "running")

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree), tasks=[running])
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: judged_as(app, "clean") and "apply runs" in screen_text(app))
            await pilot.press("a", "v")
            assert app.started == []
            assert not isinstance(app.screen, Confirm)
            await pilot.press("u")
            await until(pilot, lambda: len(app.started) == 1)

    run(session())


def test_hostile_sources_a_tree_that_vanishes_and_sizes_that_change(tree: Tree) -> None:
    apply_llama(tree)
    path = tree.root / LLAMA
    path.write_text(path.read_text() + f"# _hs_ {HOSTILE}\n")

    async def session() -> None:
        source = PatchesSource(tree)
        source.every_s = 0.4
        app = app_with("patches", source)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: judged_as(app, "foreign"))
            await pilot.press("slash", *"bold", "enter")
            await until(pilot, lambda: "# _hs_ [/red] [bold]x[/]" in screen_text(app))
            for number, size in enumerate([(160, 50), (40, 12), (20, 6), (110, 34), (80, 24)]):
                path.write_text(path.read_text() + f"# _hs_ {number}\n")
                await pilot.resize_terminal(*size)
            await pilot.press("escape", "s", "i")
            shutil.rmtree(tree.root)
            await until(pilot, lambda: f"{tree.root} is gone" in on(app).seen.missing)  # type: ignore[union-attr]
            await pilot.press("a", "i", "down", "enter")
            assert app.started == []

    run(session())


def test_what_cannot_be_read_leaves_the_picture_and_says_why(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_llama(tree)

    async def session() -> None:
        source = PatchesSource(tree)
        source.every_s = 0.4
        app = app_with("patches", source)
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: judged_as(app, "applied"))

            def refuse(tree: Tree) -> Any:
                raise PatchError("cannot read [/red]", "run as another user")

            monkeypatch.setattr(manage, "status", refuse)
            os.utime(tree.root / LLAMA, (1, 1))
            await until(pilot, lambda: "cannot read [/red]" in screen_text(app))
            assert "● applied" in screen_text(app)

    run(session())


def test_ascii_mode_draws_nothing_else(tree: Tree) -> None:
    apply_llama(tree)
    path = tree.root / LLAMA
    path.write_text(path.read_text() + "# _hs_ é\n")

    async def session() -> None:
        app = app_with("patches", PatchesSource(tree), config=Config(app=AppSettings(ascii=True)))
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: judged_as(app, "foreign"))
            await pilot.press("s")
            await pilot.pause()
            strange = {c for c in screen_text(app) if not c.isascii()}
            assert not strange

    run(session())
