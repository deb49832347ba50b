"""Patches: one SGLang tree, what is hooked into it, and what that changed."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.widgets import DataTable

from workbench.tui import glyphs
from workbench.tui.bindings import bindings_of
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.base import ModeScreen
from workbench.tui.services import TaskView
from workbench.tui.sources.patches import LINES_KEPT, FamilyView, FileView, Judged, PatchesSource, Snapshot
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.patches_choose import Choice, ChooseTree
from workbench.tui.widgets.patches_diff import SIDE_WIDTH, DiffView
from workbench.tui.widgets.patches_words import (
    family_row,
    family_text,
    file_row,
    next_step,
    routes,
    tree_text,
    tried_text,
)
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, Row, RowTable

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp

COMMANDS = ("apply", "verify", "revert", "support")
_COMMANDS = tuple((name,) for name in COMMANDS)
STYLES = """
PatchesScreen #work { layout: vertical; height: 1fr; }
PatchesScreen #tables { layout: horizontal; height: 10; }
PatchesScreen #views { layout: vertical; height: 1fr; }
PatchesScreen.-narrow #tables { height: 8; }
PatchesScreen.-narrow #families-panel { width: 50; }
PatchesScreen.-wide #work { layout: horizontal; }
PatchesScreen.-wide #tables { layout: vertical; width: 54; height: 1fr; }
PatchesScreen #lines-box { display: none; height: 1fr; }
PatchesScreen #diff-box { height: 1fr; }
PatchesScreen.see-lines #lines-box { display: block; }
PatchesScreen.see-lines #diff-box { display: none; }
PatchesScreen.-high #lines-box { display: block; height: 1fr; }
PatchesScreen.-high #diff-box { display: block; height: 2fr; }
PatchesScreen RowTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
"""
ROUTES = "patch plugin builtin"


class PatchesScreen(ModeScreen):
    """Families and files at one side, the difference and the inserted lines at the other."""

    MODE = "patches"
    BINDINGS: ClassVar = bindings_of("patches")
    DEFAULT_CSS = STYLES

    def __init__(self) -> None:
        super().__init__()
        self.seen: Snapshot | None = None
        self.words = ""
        self._under_way: tuple[TaskView, ...] = ()
        self._last: TaskView | None = None

    def body(self) -> ComposeResult:
        """The tree, its parts, what changed."""
        with Panel(title="Tree", id="tree", classes="auto"):
            yield Plain("looking for SGLang", id="tree-text")
        with Container(id="work"):
            with Container(id="tables"):
                with Panel(title="Families", id="families-panel"):
                    columns = [Column("family", 12), Column("state", 13), Column("routes", len(ROUTES))]
                    yield RowTable(columns, id="families", cell_padding=0)
                with Panel(title="Files", id="files-panel"):
                    columns = [Column("file", 15), Column("holds", 11), Column("lines", 6, True)]
                    yield RowTable(columns, id="files", cell_padding=0)
            with Container(id="views"):
                with Container(id="diff-box"), Panel(title="Difference", id="diff-panel"):
                    yield DiffView()
                with Container(id="lines-box"), Panel(title="Inserted lines", id="lines-panel"):
                    yield RowTable([Column("path:line:text", 200)], id="lines")

    def on_mount(self) -> None:
        """Look on at the commands that run, too; textual calls the base class's handler by itself."""
        self.watch(self.app, "tasks", self._on_tasks)

    def _on_servers(self, servers: Any) -> None:
        super()._on_servers(servers)
        if isinstance(self.source, PatchesSource) and isinstance(servers, tuple):
            self.source.servers = servers

    def _on_tasks(self, tasks: tuple[TaskView, ...]) -> None:
        ours = [view for view in tasks if view.task.argv[:1] == ("patch",) and view.task.argv[1:2] in _COMMANDS]
        running = tuple(view for view in ours if view.state == "running")
        over = [view for view in ours if view.state != "running"]
        last = next((view for view in over if view.task.argv[1] != "support"), None)
        tried = tuple(view.task for view in over if view.task.argv[1] == "support" and view.state == "done")
        if isinstance(self.source, PatchesSource) and self.source.tried != tried:
            self.source.tried = tried
            self.poller.wake()
        if (running, last) != (self._under_way, self._last):
            self._under_way, self._last = running, last
            with contextlib.suppress(NoMatches):  # the screen may be being taken down
                self._tell_tree()
                self.refresh_bindings()

    def on_workbench_app_task_ended(self, event: "WorkbenchApp.TaskEnded") -> None:
        """A command is over: look again; a verification that failed says why."""
        view = event.view
        if view.task.argv[:1] != ("patch",):
            return
        self._look_anew()
        if view.task.argv[1:2] == ("verify",) and view.state == "failed" and self.app.screen is self:
            self.app.push_screen(TextScreen("Verify", said(view.task.output(), view.task.narration())))

    def _look_anew(self) -> None:
        if isinstance(self.source, PatchesSource):
            self.source.stale = True
        self.poller.wake()

    # Drawing

    def show(self, snapshot: Snapshot) -> None:
        """Draw the tree, the tables, and the difference of the selected file."""
        if snapshot == self.seen:
            return
        self.seen = snapshot
        judged = snapshot.judged
        self.query_one("#families", RowTable).show([family_row(f) for f in judged.families] if judged else [])
        self.query_one("#files", RowTable).show([file_row(file) for file in judged.files] if judged else [])
        self._tell_tree()
        self._tell_family()
        self._tell_diff()
        self._tell_lines()

    def _tell_tree(self) -> None:
        if self.seen is not None and self.is_mounted:
            running = [view.task.argv[1] for view in self._under_way]
            self.query_one("#tree-text", Plain).show(tree_text(self.seen, running, self._last))
            release = f"SGLang {self.seen.version}" if self.seen.root else "SGLang: none"
            self.query_one("#tree", Panel).name_it(f"{release} (t: another)", next_step(self.seen))

    def _tell_family(self) -> None:
        family, seen = self._family(), self.seen
        tried = f"Families, tried {tried_text(seen.support.tried)}" if seen and seen.support else "Families"
        words = "u tries the routes" if family else ""
        if family and family.cells:
            words = f"{family.name}: {routes(family.cells).plain}"
        self.query_one("#families-panel", Panel).name_it(tried, words)

    def _file(self) -> FileView | None:
        judged = self.seen.judged if self.seen else None
        chosen = self.query_one("#files", RowTable).selected
        return next((file for file in judged.files if file.path == chosen), None) if judged else None

    def _tell_diff(self) -> None:
        file, judged = self._file(), self.seen.judged if self.seen else None
        panel, view = self.query_one("#diff-panel", Panel), self.query_one(DiffView)
        if file is None or judged is None:
            panel.name_it("Difference")
            view.show("", "")
            return
        diff = judged.diffs.get(file.path, "")
        view.show(diff, _why_no_diff(file, judged))
        how = "side by side" if view.side and view.fits else "unified"
        panel.name_it(f"Difference: {file.path}", f"s: {how}" if diff else "")

    def _tell_lines(self) -> None:
        judged = self.seen.judged if self.seen else None
        words = self.words.casefold()
        kept = [line for line in judged.lines if words in str(line).casefold()] if judged else []
        rows = []
        for line in kept:
            text = Text(glyphs.plain(f"{line.path}:{line.number}:"), style="dim")
            text.append(glyphs.plain(line.text.expandtabs(4)), style="not dim")
            rows.append(Row(f"{line.path}:{line.number}", (text,), self._as_grep(line.path, line.number, line.text)))
        self.query_one("#lines", RowTable).show(rows)
        count = judged.lines_all if judged else 0
        shown = f"{len(kept)} of {count}" if words or count > LINES_KEPT else f"{count}"
        self.query_one("#lines-panel", Panel).name_it(f"Inserted lines: {shown}")

    def _as_grep(self, path: str, number: int, text: str) -> dict[str, Any]:
        root = self.seen.root if self.seen else ""
        return {"path": str(Path(root) / path), "number": number, "text": text}

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The difference follows the file; the file follows the family."""
        event.stop()
        if event.data_table.id == "files":
            self._tell_diff()
        elif event.data_table.id == "families" and event.data_table.has_focus:
            chosen = self._family()
            files = self.query_one("#files", RowTable)
            found = [path for path in chosen.files if path in files.keys()] if chosen else []  # noqa: SIM118
            if found:
                files.choose(found[-1])
        if event.data_table.id == "families":
            self._tell_family()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: a family's routes, a file's difference, or the place of an inserted line."""
        event.stop()
        if event.data_table.id == "families" and (family := self._family()) is not None:
            self.app.push_screen(TextScreen(family.name, family_text(family)))
        elif event.data_table.id == "files":
            self.remove_class("see-lines")
            self.query_one(DiffView).focus()
        elif event.data_table.id == "lines" and event.row_key.value:
            path, _, number = event.row_key.value.rpartition(":")
            self.query_one("#files", RowTable).choose(path)
            self.remove_class("see-lines")
            self._tell_diff()
            self.call_after_refresh(self.query_one(DiffView).go_to, int(number))

    def _family(self) -> FamilyView | None:
        chosen = self.query_one("#families", RowTable).selected
        judged = self.seen.judged if self.seen else None
        return next((one for one in judged.families if one.name == chosen), None) if judged else None

    def on_resize(self) -> None:
        """The words in the border say how it is drawn."""
        self.call_after_refresh(self._tell_diff)

    # Actions

    def unavailable(self, verb: str) -> str:
        """Nothing can be done to no tree, nor while a command works on it."""
        if verb in COMMANDS:
            if self.seen is None:
                return "the tree is being looked for"
            if self.seen.judged is None:
                return self.seen.missing
            running = [view.task.argv[1] for view in self._under_way]
            busy = [one for one in running if (one == "support") == (verb == "support")]  # it works on a copy
            if busy:
                return f"hsbench patch {busy[0]} runs"
        if verb == "revert" and self.seen and self.seen.judged:
            judged = self.seen.judged
            return judged.reason if judged.state == "clean" and not judged.left else ""
        if verb == "layout" and not any(view.fits for view in self.query(DiffView)):
            return f"two columns need {SIDE_WIDTH} columns of room"
        return ""

    def question(self, verb: str) -> str:
        """Before the engine's files are changed: which, and who runs them."""
        if verb not in ("apply", "revert") or self.seen is None:
            return ""
        what = "Hook the recorder into" if verb == "apply" else "Give the original files back to"
        if self.seen.users:
            who = f"Running from it: {', '.join(self.seen.users)}. It keeps what it has loaded until it is restarted."
        else:
            who = "No running server of hsbench uses it."
        return f"{what} SGLang {self.seen.version} in {self.seen.root}?\n{who}"

    def _patch(self, verb: str, *options: str) -> None:
        assert self.seen is not None
        self.bench.run_command(("patch", verb, *options, *self.seen.where), reads=verb in ("verify", "support"))

    def do_apply(self) -> None:
        """Hook the recorder in."""
        self._patch("apply")

    def do_verify(self) -> None:
        """Compare and import."""
        self._patch("verify")

    def do_revert(self) -> None:
        """Give the originals back."""
        self._patch("revert")

    def do_support(self) -> None:
        """Try every family and route on a copy."""
        self._patch("support", "--json")

    def do_layout(self) -> None:
        """Two columns, or one text."""
        view = self.query_one(DiffView)
        view.side = not view.side
        view.draw()
        self._tell_diff()

    def do_lines(self) -> None:
        """The inserted lines, or the difference again; where both are seen, the keys go there."""
        self.toggle_class("see-lines")
        target = self.query_one("#lines") if self.has_class("see-lines") else self.query_one("#files")
        target.focus()

    def do_search(self) -> None:
        """Filter what is then seen."""
        self.add_class("see-lines")
        super().do_search()

    def search(self, words: str) -> None:
        """Filter the inserted lines."""
        self.words = words
        self._tell_lines()

    def do_tree(self) -> None:
        """Choose an interpreter."""
        current = self.source.python or "" if isinstance(self.source, PatchesSource) else ""
        self.app.push_screen(ChooseTree(self.choices(), current), self._chosen)

    def choices(self) -> list[Choice]:
        """Our own interpreter, and those that the known servers run in."""
        found: dict[str, list[str]] = {}
        servers = self.bench.servers
        for status in servers if isinstance(servers, tuple) else ():
            found.setdefault(status.server.python, []).append(status.server.name)
        found.pop(sys.executable, None)
        return [
            Choice("", f"the one that runs hsbench  {sys.executable}"),
            *(Choice(python, f"of {', '.join(names)}  {python}") for python, names in found.items()),
        ]

    def _chosen(self, python: str | None) -> None:
        if python is not None and isinstance(self.source, PatchesSource):
            self.source.python = python or None
            self.query_one("#tree-text", Plain).show("looking for SGLang")
            self._look_anew()


def _why_no_diff(file: FileView, judged: Judged) -> str:
    if judged.diff_problem:
        return judged.diff_problem
    if file.content == "foreign" or judged.state == "stale":
        return "there is no original of this release to compare with"
    return {
        "original": "nothing of hsbench is in this file",
        "missing": "there is no such file in this release",
    }.get(file.content, "the file is as it was")


def said(output: str, narration: list[str]) -> Text:
    """What a command said."""
    return Text("\n".join(glyphs.plain(line) for line in [*output.splitlines(), *narration]))
