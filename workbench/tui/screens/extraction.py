"""The extraction mode: the runs at the left, the selected one at the right."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import DataTable

from workbench.errors import HsbenchError
from workbench.extract.audit.report import VerifyReport
from workbench.extract.record import FORMATS
from workbench.render import charts
from workbench.tui import glyphs
from workbench.tui.app import WorkbenchApp
from workbench.tui.bindings import bindings_of
from workbench.tui.modals.form import CommandForm, Field
from workbench.tui.modals.text import TextScreen
from workbench.tui.sampleview import Samples
from workbench.tui.screens.base import ModeScreen
from workbench.tui.services import TaskView
from workbench.tui.sources.extraction import Detail, ExtractionSource, RunRow, Snapshot
from workbench.tui.widgets.chart import Chart, drawable
from workbench.tui.widgets.extraction_audit import audit_report, report_in, verdict_line
from workbench.tui.widgets.extraction_facts import facts, lines_of, messages, plot, run_sign, slowest
from workbench.tui.widgets.extraction_sample import SampleScreen
from workbench.tui.widgets.extraction_troubles import troubles, troubles_text
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, Row, RowTable

NOBODY = "no run is known here\nn  make a data set\no  watch a run by its folder, ours or another tool's"
COLUMNS = (Column("state", 11), Column("run", 60))
"""The name comes last, since a narrow list cuts it off."""

FIELDS = (
    Field("data", required=True, hint="a JSONL, Parquet or Arrow file, or a folder of them"),
    Field("out", "--out", required=True, hint="where the data set goes"),
    Field("format", "--format", choices=FORMATS),
    Field("model", "--model", hint="a folder, or demo; needed if no server runs", suggestions=("demo",)),
    Field("name", "--name", hint="the server to use, if it runs: default"),
    Field("layers", "--layers", hint="blocks, such as 2,15,27; the server's own"),
    Field("concurrency", "--concurrency", hint="requests in flight: 32"),
    Field("shard", "--shard", hint="I/N: only this share of the rows"),
    Field("max-seq-len", "--max-seq-len", hint="cut longer rows to so many tokens"),
    Field("high-water", "--high-water", hint="GiB that may wait in the dump folder"),
    Field("min-free", "--min-free", hint="GiB; pause below this: 1"),
    Field("baseline", "--baseline", hint="seconds of plain prefill measured first: 10"),
    Field("keep the server", "--keep", switch=True),
    Field("SGLang's flags", rest=True, hint="such as --tp-size 2; come after --"),
)
ATTACH = (
    Field("folder", required=True, hint="of the data set, or of req_N"),
    Field("dump folder", "--dump-dir", hint="only for another tool's run; searched"),
)


class ExtractionScreen(ModeScreen):
    """See the module."""

    MODE = "extraction"
    BINDINGS: ClassVar = bindings_of("extraction")
    CSS = """
    ExtractionScreen.-narrow #runs { width: 28; }
    ExtractionScreen #runs RowTable { overflow-x: hidden; }
    ExtractionScreen #run { height: auto; max-height: 75%; }
    ExtractionScreen #told, ExtractionScreen #slow { width: 1fr; }
    ExtractionScreen #rate { width: 1fr; }
    ExtractionScreen.-wide #rate { width: 2fr; }
    ExtractionScreen #words { width: 1fr; }
    ExtractionScreen #slow { height: 6; }
    """

    class TroublesRead(Message):
        """The errors of a run were read."""

        def __init__(self, title: str, text: Text) -> None:
            super().__init__()
            self.title, self.text = title, text

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.verdicts: dict[str, VerifyReport] = {}
        """Folder → what its last audit said, while the app is open."""
        self._audits: dict[str, str] = {}
        """Id of a running audit's task → folder."""
        self._drawn: dict[str, Any] = {}
        """What is on the screen, by the name of its place."""
        self._answered = 0

    @property
    def runs(self) -> ExtractionSource:
        """The source, by its own type."""
        return cast(ExtractionSource, self.source)

    def body(self) -> ComposeResult:
        """The list, the facts, the plot, what was told."""
        with Horizontal(classes="columns"):
            with Panel(id="runs", title="Runs", classes="side"):
                yield RowTable(COLUMNS, show_header=False, cell_padding=0)
            with Vertical(classes="rows main"):
                with Panel(id="run"):
                    yield Plain(NOBODY, id="facts")
                with Horizontal(classes="columns"):
                    with Panel(id="rate", title="tok/s"):
                        yield Chart(empty="no rate yet")
                    with Vertical(id="words", classes="rows"):
                        with Panel(id="told", title="warnings and errors"):
                            yield Plain(id="messages")
                        with Panel(id="slow", title="slowest samples", classes="high-only"):
                            yield Plain(id="slowest")

    def on_mount(self) -> None:
        """Audits end while another mode is looked at too."""
        self.watch(self.app, "tasks", self._on_tasks, init=False)

    # Drawing

    def show(self, snapshot: Snapshot) -> None:
        """Draw the list and the selected run."""
        self._answer(snapshot)
        table = self.query_one(RowTable)
        shown = [row for row in snapshot.runs if self.words.lower() in row.folder.lower()]
        table.show([self._row(row) for row in shown])
        if self.runs.chosen and self.runs.chosen != table.selected:
            table.choose(self.runs.chosen)
        self._show_detail(snapshot.detail)

    def _answer(self, snapshot: Snapshot) -> None:
        said = snapshot.said
        if said is not None and said.number > self._answered:
            self._answered = said.number
            if said.folder:
                self.app.notify(said.message)
            else:
                self.bench.complain(said.message, said.next_step)

    def _row(self, row: RunRow) -> Row:
        name = Path(row.folder).name or row.folder
        if name.startswith("shard_"):
            name = f"{Path(row.folder).parent.name}/{name.removeprefix('shard_')}"
        report = self.verdicts.get(row.folder)
        sign = run_sign(row, report.verdict if report is not None else "")
        return Row(row.folder, (sign, name), {n: getattr(row, n) for n in row.__struct_fields__})

    def _show_detail(self, detail: Detail | None) -> None:
        if detail is None:
            self._once("title", ("run", ""), lambda: self.query_one("#run", Panel).name_it("no run"))
            self._put("facts", Text(NOBODY))
            return
        view = detail.view
        title = (self._title(detail), detail.folder)
        self._once("title", title, lambda: self.query_one("#run", Panel).name_it(*title))
        report = self.verdicts.get(detail.folder)
        verdict = verdict_line(report) if report is not None else None
        self._put("facts", facts(detail, max(20, self.query_one("#run").content_size.width), verdict))
        self._put("messages", messages(view) if view is not None else Text())
        self._put("slowest", slowest(view) if view is not None else Text())
        unit = view.history_unit if view is not None else "tok/s"
        self._once("unit", unit, lambda: self.query_one("#rate", Panel).name_it(unit, "minutes ago"))
        points = plot(view) if view is not None else []
        self._once("points", (detail.folder, points), lambda: self.query_one(Chart).draw(_drawer(points)))

    def _title(self, detail: Detail) -> str:
        name = Path(detail.folder).name
        if detail.job is not None:
            return f"{name} - {detail.job.settings.format}"
        return f"{name} - no job of hsbench" if detail.view is not None else name

    def _put(self, name: str, text: Text) -> None:
        before = self._drawn.get(name)
        place = self.query_one(f"#{name}", Plain)
        width = place.content_size.width
        same_room = isinstance(before, Text) and width and lines_of(before, width) == lines_of(text, width)
        self._once(name, text, lambda: place.update(text, layout=not same_room))

    def _once(self, name: str, value: Any, draw: Any) -> None:
        """Draw what is not on the screen already."""
        if name not in self._drawn or self._drawn[name] != value:
            self._drawn[name] = value
            draw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Another run is selected."""
        event.stop()
        chosen = self.query_one(RowTable).selected
        if chosen and chosen != self.runs.chosen:
            self.runs.chosen = chosen
            self.poller.wake()

    def search(self, words: str) -> None:
        """Only runs whose folder has these letters."""
        self.words = words
        if isinstance(self.snapshot, Snapshot):
            self.show(self.snapshot)

    # What can be done

    @property
    def detail(self) -> Detail | None:
        """The run under the cursor, once it was looked at."""
        snapshot = self.snapshot
        if not isinstance(snapshot, Snapshot) or snapshot.detail is None:
            return None
        return snapshot.detail if snapshot.detail.folder == self.query_one(RowTable).selected else None

    def unavailable(self, verb: str) -> str:
        """By what the selected run is."""
        if verb in ("new", "attach", "search") or not self.is_mounted:
            return ""
        detail = self.detail
        if detail is None:
            return "no run is selected"
        if verb == "forget":
            return self._not_forgotten(detail)
        if verb == "verdict":
            return "" if detail.folder in self.verdicts else "it was not audited since the app was opened"
        return _not_now(detail, verb)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What a run cannot be asked for by what it is takes no room in the footer."""
        can = super().check_action(action, parameters)
        hidden = can is None and str(parameters[0]).rpartition(".")[2] in ("pause", "stop", "resume")
        return False if hidden else can

    def _not_forgotten(self, detail: Detail) -> str:
        row = next((one for one in self.snapshot.runs if one.folder == detail.folder), None)
        return "" if row is not None and (row.attached or row.kind == "lost") else "it was neither attached nor lost"

    def question(self, verb: str) -> str:
        """Before a job is ended."""
        if verb == "stop" and self.detail is not None:
            return f"Stop {self.detail.folder}? What is under way is finished first; r resumes it later."
        return ""

    def _folder(self) -> str:
        detail = self.detail
        assert detail is not None
        return detail.folder

    def do_new(self) -> None:
        """Ask for the command."""
        self.app.push_screen(CommandForm("Make a data set", ("extract",), FIELDS), self._begun)

    def _begun(self, argv: tuple[str, ...] | None) -> None:
        if argv is not None and self.bench.run_command(argv) is not None:
            self.runs.chosen = str(Path(argv[argv.index("--out") + 1]).absolute())

    def do_attach(self) -> None:
        """Ask for the folder."""
        self.app.push_screen(CommandForm("Watch a run", ("watch",), ATTACH), self._attached)

    def _attached(self, argv: tuple[str, ...] | None) -> None:
        if argv is not None:
            folder, dump_dir = argv[1], argv[3] if len(argv) > 3 else ""
            self.runs.attach(folder, dump_dir)
            self.poller.wake()

    def do_forget(self) -> None:
        """Off the list."""
        self.runs.forget(self._folder())
        self.runs.chosen = ""
        self.poller.wake()

    def do_pause(self) -> None:
        """Pause, or go on if a pause was asked for."""
        detail = self.detail
        assert detail is not None
        self.bench.run_command(("job", "continue" if detail.pausing else "pause", detail.folder))

    def do_stop(self) -> None:
        """End it in order."""
        self.bench.run_command(("job", "stop", self._folder()))

    def do_resume(self) -> None:
        """Go on."""
        self.bench.run_command(("extract", "--resume", self._folder()))

    def do_verify(self) -> None:
        """Audit it; of a run that is not done, missing rows are no fault."""
        detail = self.detail
        assert detail is not None
        assert detail.view is not None
        partial_run = () if detail.view.state == "done" else ("--partial",)
        task = self.bench.run_command(("verify", detail.folder, *partial_run, "--json"), reads=True)
        if task is not None:
            self._audits[task.id] = detail.folder

    def do_verdict(self) -> None:
        """The last audit's report again."""
        folder = self._folder()
        self.app.push_screen(TextScreen(f"Audit of {folder}", audit_report(self.verdicts[folder])))

    def do_inspect(self) -> None:
        """One sample, over the mode."""
        folder = self._folder()
        self.app.push_screen(SampleScreen(self.samples_of(folder), Path(folder).name))

    def samples_of(self, folder: str) -> Samples:
        """How samples are looked at."""
        return Samples(Path(folder))

    def do_errors(self) -> None:
        """Read them in a thread, since it may take a moment."""
        folder = self._folder()
        self.run_worker(
            partial(self._read_troubles, folder), thread=True, group="troubles", exclusive=True, exit_on_error=False
        )

    def _read_troubles(self, folder: str) -> None:
        try:
            text = troubles_text(troubles(Path(folder)))
        except (HsbenchError, OSError) as error:
            text = Text(glyphs.plain(str(error)))
        self.post_message(self.TroublesRead(f"What went wrong in {folder}", text))

    def on_extraction_screen_troubles_read(self, event: TroublesRead) -> None:
        """Show them, unless something else is shown by now."""
        event.stop()
        if self.is_current:
            self.app.push_screen(TextScreen(event.title, event.text))

    # What came of it

    def on_workbench_app_task_ended(self, event: WorkbenchApp.TaskEnded) -> None:
        """A job began, paused or ended: look again."""
        if event.view.task.kind in ("extract", "job"):
            self.runs.relist()
            self.poller.wake()

    def _on_tasks(self, tasks: tuple[TaskView, ...]) -> None:
        for view in tasks:
            if view.state != "running" and view.task.id in self._audits:
                self._audited(self._audits.pop(view.task.id), view)

    def _audited(self, folder: str, view: TaskView) -> None:
        report = report_in(view.task.output())
        if report is None:  # the app has said why
            return
        self.verdicts[folder] = report
        if isinstance(self.snapshot, Snapshot):
            self.show(self.snapshot)
        if self.is_current:
            self.app.push_screen(TextScreen(f"Audit of {folder}", audit_report(report)))


def _not_now(detail: Detail, verb: str) -> str:
    if detail.view is None:
        return "nothing can be seen of this run"
    if verb not in ("pause", "stop", "resume"):
        return ""
    if detail.job is None:
        return "it is no job of hsbench"
    if verb == "resume":
        return "it runs" if detail.running else ""
    return "" if detail.running else "its process does not run here"


def _drawer(points: list[tuple[float, float]]) -> Any:
    if not drawable(points):
        return None
    return lambda width, height: charts.lines([("", points)], width, height, ascii=glyphs.is_ascii(), y_from_zero=True)
