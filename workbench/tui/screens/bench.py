"""The Bench mode: runs and sweeps, live while they go on."""

from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.widgets import ContentSwitcher, DataTable

from workbench.errors import HsbenchError
from workbench.tasks import store
from workbench.tasks.store import Task
from workbench.tui.bindings import bindings_of
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.base import ModeScreen
from workbench.tui.sources.bench import (
    BenchSource,
    Comparison,
    Entry,
    RunDetail,
    Snapshot,
    SweepDetail,
    Unreadable,
    comparison_of,
)
from workbench.tui.widgets.bench_forms import run_form, sweep_form
from workbench.tui.widgets.bench_run import RunPane
from workbench.tui.widgets.bench_sweep import SweepPane
from workbench.tui.widgets.bench_words import comparison_text, entry_row, matches
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, RowTable

COLUMNS = (Column("run / sweep", 15), Column("state", 14), Column("done", 8), Column("kind", 7), Column("about", 80))
EMPTY = "No run and no sweep is kept.\n\n  b  put load on a server\n  w  start a server under each variant and decide"


class BenchScreen(ModeScreen):
    """Runs at the left, the selected one at the right; over each other where there is no room."""

    MODE = "bench"
    BINDINGS: ClassVar = bindings_of("bench")
    DEFAULT_CSS = """
    BenchScreen #bench-columns { layout: horizontal; height: 1fr; }
    BenchScreen #entries-panel { width: 31; }
    BenchScreen #entries { scrollbar-size-horizontal: 0; }
    BenchScreen #bench-detail { width: 1fr; height: 1fr; }
    BenchScreen.-narrow #bench-columns { layout: vertical; }
    BenchScreen.-narrow #entries-panel { width: 1fr; max-height: 6; }
    BenchScreen.-wide #entries-panel { width: 48; }
    BenchScreen.-low RunPane #run-head-panel { max-height: 3; }
    BenchScreen.-low RunPane #point-notes { max-height: 2; }
    BenchScreen.-low.-narrow RunPane #run-head-panel { display: none; }
    BenchScreen.-low.-narrow RunPane #point-notes { max-height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    BenchScreen.-low.-narrow.-plain RunPane #point-notes { text-overflow: clip; }
    BenchScreen.-low.-narrow RunPane #plots { height: 8; }
    BenchScreen.-low.-narrow RunPane.live #plots { height: 7; min-height: 7; }
    BenchScreen.-low.-narrow.going #entries-panel { max-height: 5; }
    BenchScreen.-low.-narrow SweepPane #sweep-head-panel { max-height: 3; }
    BenchScreen.-low.-narrow SweepPane #sweep-notes-panel { max-height: 4; }
    """

    class Compared(Message):
        """Two runs were read."""

        def __init__(self, found: Comparison | HsbenchError) -> None:
            super().__init__()
            self.found = found

    def __init__(self) -> None:
        super().__init__()
        self.marked: str | None = None
        self._filter = ""
        self._entries: dict[str, Entry] = {}

    def body(self) -> ComposeResult:
        """The list, and one of three pictures beside it."""
        with Container(id="bench-columns"):
            with Panel(title="runs and sweeps", id="entries-panel"):
                yield RowTable(COLUMNS, id="entries", cell_padding=0)
            with ContentSwitcher(initial="bench-none", id="bench-detail"):
                with Panel(title="bench", id="bench-none"):
                    yield Plain("", id="bench-said")
                yield RunPane(id="bench-run")
                yield SweepPane(id="bench-sweep")

    # Drawing

    def show(self, snapshot: Snapshot) -> None:
        """The list, then the selected one."""
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._show_list(snapshot.left_out)
        self._show_detail(snapshot.detail, bool(snapshot.entries))

    def _show_list(self, left_out: int = 0) -> None:
        shown = [entry for entry in self._entries.values() if matches(entry, self._filter)]
        self.query_one("#entries", RowTable).show([entry_row(entry, self.marked) for entry in shown])
        below = f"{len(shown)} of {len(self._entries)}" if self._filter else f"{len(shown)}"
        below += f", {left_out} older" if left_out else ""
        self.query_one("#entries-panel", Panel).name_it("runs and sweeps", below)

    def _show_detail(self, detail: RunDetail | SweepDetail | Unreadable | None, any_kept: bool) -> None:
        switcher = self.query_one("#bench-detail", ContentSwitcher)
        self.set_class(isinstance(detail, RunDetail) and bool(detail.beats), "going")
        if isinstance(detail, RunDetail):
            switcher.current = "bench-run"
            self.query_one(RunPane).show(detail)
        elif isinstance(detail, SweepDetail):
            switcher.current = "bench-sweep"
            self.query_one(SweepPane).show(detail)
        else:
            switcher.current = "bench-none"
            said = detail.why if detail is not None else ("" if any_kept else EMPTY)
            self.query_one("#bench-said", Plain).show(said)

    @on(DataTable.RowHighlighted, "#entries")
    def _entry_chosen(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        key = self.query_one("#entries", RowTable).selected
        if isinstance(self.source, BenchSource) and key is not None and key != self.source.selected:
            self.source.selected, self.source.point = key, 0
            self.poller.wake()
        self.refresh_bindings()

    def on_run_pane_point_chosen(self, event: RunPane.PointChosen) -> None:
        """Another workload's curves are wanted."""
        event.stop()
        if isinstance(self.source, BenchSource) and event.number != self.source.point:
            self.source.point = event.number
            self.poller.wake()

    def search(self, words: str) -> None:
        """Filter the list."""
        self._filter = words
        self._show_list()

    # Doing

    @property
    def selected(self) -> Entry | None:
        """What the cursor is on."""
        return self._entries.get(self.query_one("#entries", RowTable).selected or "")

    def unavailable(self, verb: str) -> str:
        """Why not now."""
        if verb == "mark":
            return "" if self._is_run(self.selected) else "select a run"
        if verb == "compare":
            return self._incomparable()
        if verb == "stop":
            return "" if self._task_to_stop() is not None else "nothing that was started here goes on"
        return ""

    def _is_run(self, entry: Entry | None) -> bool:
        return entry is not None and entry.kind == "run" and entry.state != "unreadable"

    def _incomparable(self) -> str:
        if self.marked not in self._entries:
            return "mark a run with m first"
        if not self._is_run(self.selected):
            return "select a run; sweeps are decided in their own table"
        same = self.selected is not None and self.selected.key == self.marked
        return "select another run than the marked one" if same else ""

    def question(self, verb: str) -> str:
        """Ending something is asked for."""
        task = self._task_to_stop() if verb == "stop" else None
        return f"End hsbench {' '.join(task.argv)}? Workloads and starts that are over are kept." if task else ""

    def _task_to_stop(self) -> Task | None:
        """The selected one's task; where that has none, the newest that goes on."""
        going = [view.task for view in self.bench.tasks if view.state == "running" and view.task.kind == "bench"]
        chosen = self.selected
        pids = chosen.pids if chosen is not None and chosen.state == "running" else ()
        return next((task for task in going if task.pid in pids), going[0] if going else None)

    def do_run(self) -> None:
        """A form for a run."""
        servers = self.bench.servers if isinstance(self.bench.servers, tuple) else ()
        names = [status.server.name for status in servers if status.state != "dead"]
        self.app.push_screen(run_form(names), self._start)

    def do_sweep(self) -> None:
        """A form for a sweep."""
        self.app.push_screen(sweep_form(), self._start)

    def _start(self, argv: tuple[str, ...] | None) -> None:
        if argv:
            self.bench.run_command(argv)
            self.poller.wake()

    def do_stop(self) -> None:
        """As Ctrl-C does."""
        task = self._task_to_stop()
        if task is None or not store.interrupt(task):
            self.app.notify("it has ended already", severity="warning")
        self.bench.look_again()
        self.poller.wake()

    def do_mark(self) -> None:
        """Mark the selected run, or unmark it."""
        chosen = self.selected
        if chosen is not None:
            self.marked = None if self.marked == chosen.key else chosen.key
            self._show_list()
            self.refresh_bindings()

    def do_compare(self) -> None:
        """Read both in a thread."""
        chosen = self.selected
        if chosen is not None and self.marked is not None:
            self._compare(self.marked, chosen.key)

    @work(thread=True, exclusive=True, group="compare", exit_on_error=False)
    def _compare(self, first: str, second: str) -> None:
        try:
            self.post_message(self.Compared(comparison_of(first, second)))
        except HsbenchError as error:
            self.post_message(self.Compared(error))

    def on_bench_screen_compared(self, event: Compared) -> None:
        """Show it."""
        event.stop()
        if isinstance(event.found, HsbenchError):
            self.bench.complain(event.found.message, event.found.next_step)
            return
        text: Text = comparison_text(event.found)
        self.app.push_screen(TextScreen("B against A", text))

    def on_workbench_app_task_ended(self, event: Any) -> None:
        """A run may be over."""
        self.poller.wake()
