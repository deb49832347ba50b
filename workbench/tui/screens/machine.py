"""Machine: every job in one table with what it says, beside the machine and the doctor's report."""

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.widgets import DataTable

from workbench.tasks import store
from workbench.tui.bindings import bindings_of
from workbench.tui.screens.base import ModeScreen
from workbench.tui.sources.machine import Detail, JobView, MachineSource, Report, Snapshot
from workbench.tui.widgets.machine_words import (
    COLUMNS,
    detail_text,
    job_row,
    machine_text,
    matches,
    report_text,
    report_title,
    since,
    summary,
)
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import RowTable

VIEWS = ("detail", "doctor", "machine")
STYLES = """
MachineScreen #summary { height: 1; padding: 0 1; }
MachineScreen #work { layout: vertical; height: 1fr; }
MachineScreen #left { layout: vertical; height: 1fr; }
MachineScreen #right { layout: vertical; height: 1fr; display: none; }
MachineScreen .box { height: 1fr; }
MachineScreen #detail-box, MachineScreen #doctor-box, MachineScreen #machine-box { display: none; }
MachineScreen.see-detail #detail-box { display: block; }
MachineScreen.see-doctor #right, MachineScreen.see-machine #right { display: block; }
MachineScreen.see-doctor #doctor-box, MachineScreen.see-machine #machine-box { display: block; }
MachineScreen.-wide #summary { display: none; }
MachineScreen.-wide #work { layout: horizontal; }
MachineScreen.-wide #detail-box, MachineScreen.-wide #doctor-box, MachineScreen.-wide #machine-box { display: block; }
MachineScreen.-wide #right { display: block; width: 62; }
MachineScreen.-wide #doctor-box { height: 1.4fr; }
MachineScreen VerticalScroll { scrollbar-size-vertical: 1; }
MachineScreen RowTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
"""


def _box(name: str, title: str) -> ComposeResult:
    """A part whose text scrolls."""
    with (
        Container(id=f"{name}-box", classes="box"),
        Panel(title=title, id=f"{name}-panel"),
        VerticalScroll(id=f"{name}-scroll"),
    ):
        yield Plain(id=name)


class MachineScreen(ModeScreen):
    """Jobs at the left, the machine at the right; on a narrow screen one part at a time under the jobs."""

    MODE = "machine"
    BINDINGS: ClassVar = bindings_of("machine")
    DEFAULT_CSS = STYLES

    def __init__(self) -> None:
        super().__init__()
        self.seen: Snapshot | None = None
        self.words = ""
        self._said: Detail | None = None
        self._reported: Report | None = None
        self._listed: object = None
        self.see("detail")

    def body(self) -> ComposeResult:
        """The jobs, what the selected one says, the machine, the doctor."""
        yield Plain(id="summary")
        with Container(id="work"):
            with Container(id="left"):
                with Container(id="jobs-box", classes="box"), Panel(title="Jobs", id="jobs-panel"):
                    yield RowTable(COLUMNS, id="jobs", cell_padding=0)
                yield from _box("detail", "What it says")
            with Container(id="right"):
                yield from _box("machine", "This machine")
                yield from _box("doctor", "Doctor")

    def _on_servers(self, servers: Any) -> None:
        super()._on_servers(servers)
        if isinstance(self.source, MachineSource) and isinstance(servers, tuple):
            self.source.servers = servers

    def on_workbench_app_task_ended(self) -> None:
        """A job is over."""
        self.poller.wake()

    # Drawing

    def on_resize(self) -> None:
        """There is more room for last words, or less."""
        self.call_after_refresh(self._tell_jobs_again)

    def _tell_jobs_again(self) -> None:
        if self.seen is not None and self.is_mounted:
            self._tell_jobs(self.seen)

    def show(self, snapshot: Snapshot) -> None:
        """Draw all of it."""
        self.seen = snapshot
        self._tell_jobs(snapshot)
        self._tell_detail(snapshot)
        self._tell_machine(snapshot)

    def _tell_jobs(self, seen: Snapshot) -> None:
        table = self.query_one("#jobs", RowTable)
        room = table.scrollable_content_region.width
        if self._listed == (seen.jobs, self.words, room):
            self._select(table.selected)
            return
        self._listed = (seen.jobs, self.words, room)
        kept = [job for job in seen.jobs if matches(job, self.words)]
        table.show([job_row(job, room) for job in kept])
        running = sum(job.running for job in seen.jobs)
        servers = [job.what.partition(" ")[0] for job in seen.jobs if job.kind == "server"]
        title = f"Jobs: {running} of {len(seen.jobs)} run"
        filtered = f"{len(kept)} match {self.words}" if self.words else ""
        named = f"{len(servers)} server{'s' if len(servers) != 1 else ''}: {', '.join(servers)}" if servers else ""
        self.query_one("#jobs-panel", Panel).name_it(title, filtered or named)
        self._select(table.selected)

    def _tell_detail(self, seen: Snapshot) -> None:
        detail = seen.detail if seen.detail and seen.detail.key == self.query_one("#jobs", RowTable).selected else None
        if detail == self._said and self._said is not None:
            return
        scroll = self.query_one("#detail-scroll", VerticalScroll)
        another = detail is None or self._said is None or self._said.key != detail.key
        follow = another or scroll.scroll_offset.y >= scroll.max_scroll_y
        self._said = detail
        self.query_one("#detail", Plain).show(detail_text(detail))
        self.query_one("#detail-panel", Panel).name_it(detail.title if detail else "What it says")
        if follow:
            self.call_after_refresh(scroll.scroll_end, animate=False)

    def _tell_machine(self, seen: Snapshot) -> None:
        self.query_one("#summary", Plain).show(summary(seen))
        width = self.query_one("#machine-panel").size.width
        self.query_one("#machine", Plain).show(machine_text(seen, width))
        if seen.report == self._reported:
            return
        self._reported = seen.report
        self.query_one("#doctor", Plain).show(report_text(seen.report))
        when = f"examined {since(seen.report.ended)}" if seen.report.ended is not None else ""
        below = "examining" if seen.report.examining else when
        self.query_one("#doctor-panel", Panel).name_it(report_title(seen.report), below)

    def _select(self, key: str | None) -> None:
        if isinstance(self.source, MachineSource) and self.source.selected != key:
            self.source.selected = key
            self.poller.wake()

    def _job(self) -> JobView | None:
        if self.seen is None:
            return None
        chosen = self.query_one("#jobs", RowTable).selected
        return next((job for job in self.seen.jobs if job.key == chosen), None)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """What it says follows the cursor."""
        event.stop()
        self._select(self.query_one("#jobs", RowTable).selected)
        self.refresh_bindings()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: read on in what it says."""
        event.stop()
        self.see("detail")
        self.query_one("#detail-scroll").focus()

    # Actions

    def see(self, view: str) -> None:
        """Which part is seen under the jobs where there is room for one."""
        for name in VIEWS:
            self.set_class(name == view, f"see-{name}")

    def do_view(self) -> None:
        """The next part."""
        now = next((number for number, name in enumerate(VIEWS) if self.has_class(f"see-{name}")), 0)
        self.see(VIEWS[(now + 1) % len(VIEWS)])

    def unavailable(self, verb: str) -> str:
        """Only what runs can be ended, and servers are stopped where servers are."""
        if verb == "interrupt":
            job = self._job()
            if job is None:
                return "no job is selected"
            if not job.running:
                return f"it is {job.state} already"
            if job.kind == "server":
                return "a server is stopped in the mode Server (1)"
        if verb == "doctor" and self.seen is not None and self.seen.report.examining:
            return "an examination is under way"
        return ""

    def question(self, verb: str) -> str:
        """Before a job is ended."""
        job = self._job()
        if verb != "interrupt" or job is None:
            return ""
        if job.key.startswith("extraction:"):
            return f"Stop the extraction into {job.what}?\nIt ends in order, and can be resumed."
        return f"Interrupt hsbench {job.kind} {job.what}, as Ctrl-C does?"

    def do_interrupt(self) -> None:
        """End the selected job."""
        job = self._job()
        if job is None:
            return
        kind, _, name = job.key.partition(":")
        if kind == "extraction":
            self.bench.run_command(("job", "stop", name))
        elif (task := store.load(name)) is None or not store.interrupt(task):
            self.app.notify("it had ended already", severity="warning")
        self.poller.wake()

    def do_doctor(self) -> None:
        """Examine again, and show it."""
        if isinstance(self.source, MachineSource):
            self.source.examination.begin()
        self.see("doctor")
        self.poller.wake()

    def search(self, words: str) -> None:
        """Filter the jobs."""
        self.words = words
        if self.seen is not None:
            self._tell_jobs(self.seen)
