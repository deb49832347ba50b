"""Probe: one prompt's hidden states, what was probed before, and two probes beside each other."""

import contextlib
import time
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Input

from workbench.errors import HsbenchError, UsageError
from workbench.probe.history import Kept
from workbench.probe.report import ProbeReport
from workbench.server.survey import ServerStatus
from workbench.tui import glyphs
from workbench.tui.bindings import bindings_of
from workbench.tui.glyphs import SIGNS
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.base import ModeScreen
from workbench.tui.sources import probe as source
from workbench.tui.sources.probe import Entry, ProbeSource, Snapshot
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.probe_compare import comparison
from workbench.tui.widgets.probe_pictures import Pictures
from workbench.tui.widgets.probe_progress import ProgressPanel
from workbench.tui.widgets.probe_prompt import PromptBox
from workbench.tui.widgets.probe_tensors import TensorTable
from workbench.tui.widgets.probe_words import level_of, token_words, verdict_words
from workbench.tui.widgets.table import Column, Row, RowTable

HISTORY = (Column("", 3), Column("when", 6), Column("prompt", 60))
ROOMY = 30
"""Lines from which on table, verdict and charts stand below each other."""
NOTHING = "Nothing was probed yet: p writes a prompt, enter probes it."


class ProbeScreen(ModeScreen):
    """The prompt above, the history at the left, the selected probe at the right."""

    MODE = "probe"
    BINDINGS: ClassVar = bindings_of("probe")
    # Not DEFAULT_CSS, over which the rules of the whole app win.
    CSS = """
    ProbeScreen #history-panel { width: 26; padding: 0; }
    ProbeScreen #history { overflow-x: hidden; }
    ProbeScreen.-narrow #history-panel { width: 22; }
    ProbeScreen.-narrow PromptBox > #tokens { display: none; }
    ProbeScreen.-low PromptBox { height: 4; }
    ProbeScreen.-low #hint { display: none; }
    ProbeScreen.-low ProgressPanel { max-height: 7; }
    ProbeScreen.-narrow Pictures > #dumps { display: none; }
    ProbeScreen.-normal Pictures > #dumps { display: none; }
    ProbeScreen #tensors-panel { height: auto; padding: 0; }
    ProbeScreen #tensors { height: auto; max-height: 15; }
    ProbeScreen.-low #tensors { max-height: 9; }
    ProbeScreen #verdict { height: auto; max-height: 10; overflow-y: auto; }
    ProbeScreen.-tight #verdict { height: 1fr; max-height: 100%; }
    ProbeScreen #verdict > Plain { height: auto; }
    ProbeScreen.-tight Pictures { display: none; }
    ProbeScreen.-tight.-pictures Pictures { display: block; }
    ProbeScreen.-tight.-pictures #verdict { display: none; }
    ProbeScreen.-tight.-pictures #tensors { max-height: 7; }
    ProbeScreen.-tight.-narrow.-pictures #history-panel { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = Snapshot()
        self._filter = ""
        self._listed: Any = None
        self._drawn: Kept | None = None
        self._wanted: str | None = None
        self._where = ""

    def body(self) -> ComposeResult:
        """The prompt stands above but comes last, so that the tables are what the keys go to first."""
        with Vertical():
            with Horizontal(classes="columns"):
                with Panel(title="History", id="history-panel"):
                    yield RowTable(HISTORY, id="history", cell_padding=0, show_header=False)
                with Vertical(classes="main"):
                    yield ProgressPanel(id="progress")
                    with Panel(title="Tensors", id="tensors-panel"):
                        yield TensorTable(id="tensors")
                    with Panel(title="Verdict", id="verdict"):
                        yield Plain(NOTHING, id="verdict-words")
                    yield Pictures()
            yield PromptBox()

    def on_mount(self) -> None:
        """What the app knows already. The base's own `on_mount` is called beside this one."""
        self.query_one("#text", Input).disabled = self.bench.readonly
        self._say_where()

    def on_resize(self, event: events.Resize) -> None:
        """A low screen has no room for charts below the verdict."""
        self.set_class(event.size.height < ROOMY, "-tight")
        for panel in self.query("#verdict").results(Panel):  # none before the first drawing
            panel.name_it("Verdict", self._way_to_charts)

    @property
    def _way_to_charts(self) -> str:
        return "v charts" if self.has_class("-tight") else ""

    # What is seen

    def show(self, snapshot: Snapshot) -> None:
        """Draw what has changed."""
        self._last = snapshot
        self.query_one(ProgressPanel).show(snapshot.progress)
        self._list()
        if snapshot.selected is not self._drawn:
            self._drawn = snapshot.selected
            self._draw(snapshot.selected.report if snapshot.selected is not None else None)

    def _list(self) -> None:
        """The history. The cursor stays with the newest probe when it stood there."""
        snapshot, marked = self._last, self._told.marked if self._told else None
        state = (snapshot.entries, self._filter, marked, snapshot.unread)
        if state == self._listed:
            return
        newer = self._listed is None or self._listed[0] != snapshot.entries
        self._listed = state
        shown = [entry for entry in snapshot.entries if _matches(entry, self._filter)]
        table = self.query_one("#history", RowTable)
        table.show([_history_row(entry, entry.name == marked) for entry in shown])
        if newer and shown and self._told is not None and self._told.selected is None:
            table.choose(shown[0].name)
        unread = f"{snapshot.unread} unreadable" if snapshot.unread else ""
        self.query_one("#history-panel", Panel).name_it(f"History {len(snapshot.entries)}", unread)

    def _draw(self, report: ProbeReport | None) -> None:
        box, panel = self.query_one(PromptBox), self.query_one("#tensors-panel", Panel)
        box.show_tokens(*((len(report.tokens), token_words(report.tokens)) if report else (None, Text(""))))
        panel.name_it(_title(report), report.request_id if report else "")
        self.query_one("#verdict", Panel).name_it("Verdict", self._way_to_charts)
        table = self.query_one(TensorTable)
        table.show_report(report)
        self.query_one("#verdict-words", Plain).show(verdict_words(report) if report else NOTHING)
        self.query_one(Pictures).show(report, table.tensor)

    @property
    def _told(self) -> ProbeSource | None:
        """The source, where it can be told what is selected."""
        return self.source if isinstance(self.source, ProbeSource) else None

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Another probe, or another tensor."""
        event.stop()
        if isinstance(event.data_table, TensorTable):
            self.query_one(Pictures).show(event.data_table.report, event.data_table.tensor)
        elif isinstance(event.data_table, RowTable):
            self._select(event.data_table.selected)

    def _select(self, name: str | None) -> None:
        if name is None or self._told is None:
            return
        newest = self._last.entries[0].name if self._last.entries else None
        wanted = None if name == newest else name
        if wanted != self._told.selected:
            self._told.selected = wanted
            self.poller.wake()

    def search(self, words: str) -> None:
        """Filter the history."""
        self._filter = words.lower()
        self._list()

    def key_escape(self) -> None:
        """Out of the box, or a failure is closed, or the search is over."""
        if isinstance(self.focused, Input) and self.focused.id == "text":
            self.focus_table()
        elif not self.query_one(ProgressPanel).dismiss():
            super().key_escape()

    # Where a probe goes

    def _servers(self) -> tuple[ServerStatus, ...]:
        return self.bench.servers if isinstance(self.bench.servers, tuple) else ()

    def _on_servers(self, servers: Any) -> None:
        super()._on_servers(servers)
        self._say_where()

    def _say_where(self) -> None:
        boxes = self.query(PromptBox)
        if boxes and self.is_mounted:
            known = self.bench.servers is not None
            words = source.target(self._servers(), self._wanted)[1] if known else ""
            if words != self._where:
                self._where = words
                boxes.first().say_where(words)
                self.refresh_bindings()

    def _start(self, argv: tuple[str, ...]) -> None:
        """Run it; its report is shown when it comes, since it will be the newest."""
        if self.bench.run_command(argv) is not None and self._told is not None:
            self._told.selected = None
            self._listed = None
            self.poller.wake()

    def on_prompt_box_asked(self, event: PromptBox.Asked) -> None:
        """Probe what stands in the box."""
        event.stop()
        name, _ = source.target(self._servers(), self._wanted)
        try:
            self._start(source.command(event.text, name=name, chat=event.chat, tokens=event.tokens))
        except HsbenchError as error:
            self.bench.complain(error.message, error.next_step)
            return
        self.focus_table()

    def on_workbench_app_task_ended(self) -> None:
        """There may be a new report."""
        self.poller.wake()

    # Actions

    def unavailable(self, verb: str) -> str:
        """Why something cannot be done now."""
        chosen, marked = self._last.selected, self._last.marked
        if verb in ("reference", "self_test") and chosen is None and not self._written().strip():
            return "there is no prompt yet"
        if verb == "mark" and chosen is None:
            return "there is no probe yet"
        if verb == "compare" and (marked is None or marked is chosen):
            return "mark one with m, then select another" if marked is None else "select another than the marked one"
        if verb == "charts" and not self.has_class("-tight"):
            return "the screen has room for them, they are always shown"
        if verb == "server" and len(source.recording(self._servers())) < 2:
            return "there are not two ready servers that record"
        return ""

    def _written(self) -> str:
        boxes = self.query(PromptBox)
        return boxes.first().written if boxes else ""

    def do_prompt(self) -> None:
        """Write a prompt."""
        self.query_one(PromptBox).write()

    def do_reference(self) -> None:
        """Probe again, against transformers."""
        self._start(self._again("--reference"))

    def do_self_test(self) -> None:
        """Probe again, inside a batch too."""
        self._start(self._again("--self-test"))

    def _again(self, check: str) -> tuple[str, ...]:
        """The selected probe's prompt on its own server if that still runs; without one, what stands in the box."""
        name, _ = source.target(self._servers(), self._wanted)
        box = self.query_one(PromptBox)
        if self._last.selected is None:
            ids = box.switched("ids")
            return source.command(box.written, name=name, chat=box.switched("chat"), tokens=ids, check=check)
        report = self._last.selected.report
        its = [one.server.name for one in source.recording(self._servers()) if one.server.url == report.server]
        return source.again(report, its[0] if its else name, check)

    def do_mark(self) -> None:
        """Mark the selected probe, or unmark it."""
        if self._told is None:
            return
        self._told.marked = None if self._told.marked == self._last.chosen else self._last.chosen
        self._list()
        self.poller.wake()

    def do_compare(self) -> None:
        """The marked probe beside the selected one."""
        one, other = self._last.marked, self._last.selected
        if one is None or other is None:
            raise UsageError("one of the two probes is gone", "mark another with m")
        words = comparison(one.report, other.report, self.has_class("-narrow"))
        self.app.push_screen(TextScreen("Marked and selected probe", words))

    def do_charts(self) -> None:
        """On a low screen: charts in the place of the verdict, or back."""
        self.toggle_class("-pictures")

    def do_server(self) -> None:
        """The next of the servers that can be probed."""
        names = [one.server.name for one in source.recording(self._servers())]
        present, _ = source.target(self._servers(), self._wanted)
        self._wanted = names[(names.index(present) + 1) % len(names)] if present in names else names[0]
        self._say_where()


def _matches(entry: Entry, words: str) -> bool:
    return words in f"{entry.prompt} {entry.model} {entry.verdict}".lower()


def _history_row(entry: Entry, marked: bool) -> Row:
    level = SIGNS[level_of(entry.verdict)]
    glyph = Text(f"{level.ascii if glyphs.is_ascii() else level.glyph}{' m' if marked else ''}", style=level.style)
    data = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Row(entry.name, (glyph, when(entry.time), entry.prompt or f"{entry.tokens} tokens"), data)


def when(moment: float, now: float | None = None) -> str:
    """The time of a moment of today; the day of an earlier one."""
    with contextlib.suppress(OverflowError, ValueError, OSError):
        then, today = time.localtime(moment), time.localtime(now)
        return time.strftime("%H:%M" if then[:3] == today[:3] else "%m-%d", then)
    return "?"


def _title(report: ProbeReport | None) -> str:
    if report is None:
        return "Tensors"
    prompt = report.prompt if len(report.prompt) <= 40 else report.prompt[:39] + ("~" if glyphs.is_ascii() else "…")
    return f"{prompt!r}, {len(report.tokens)} tokens"
