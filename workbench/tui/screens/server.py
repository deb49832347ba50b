"""The Server mode: what each server is doing, why that is thought, and its log."""

import contextlib
import json
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.widgets import DataTable

from workbench.server.specs import DEFAULT_NAME
from workbench.server.survey import ServerStatus
from workbench.tui.bindings import bindings_of
from workbench.tui.glyphs import is_ascii, plain
from workbench.tui.modals.text import TextScreen
from workbench.tui.screens.base import ModeScreen
from workbench.tui.services import TaskView
from workbench.tui.source import Failed
from workbench.tui.sources.server_facts import ServerView
from workbench.tui.widgets.logpane import LogPane
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.searchbar import SearchBar
from workbench.tui.widgets.server_diagnosis import diagnosis_text
from workbench.tui.widgets.server_facts import (
    PROCESSES,
    SERVERS,
    TASK,
    launch_text,
    machine_text,
    phases_text,
    process_table,
    server_rows,
    summary,
)
from workbench.tui.widgets.server_launch import launch_form
from workbench.tui.widgets.server_log import log_state, log_title
from workbench.tui.widgets.server_text import Block
from workbench.tui.widgets.server_verdict import VerdictPanel, whole_text
from workbench.tui.widgets.table import RowTable

SHORT = 30
"""Lines of a terminal under which processes are not shown."""
NONE = "No server runs.\n\nl  launches one; the model demo is small, and runs on a CPU\n2  how the recorder gets in"


class ServerScreen(ModeScreen):
    """Servers at the left, the selected one at the right."""

    MODE = "server"
    BINDINGS: ClassVar = [
        *bindings_of("server"),
        Binding("n", "hit(1)", "next hit", show=False),
        Binding("N", "hit(-1)", "hit before", show=False),
    ]
    CSS = """
    ServerScreen.-wide .side { width: 50; }
    ServerScreen.-narrow .side { width: 25; }
    ServerScreen #servers-panel { height: auto; min-height: 3; max-height: 30%; }
    ServerScreen #servers { height: auto; max-height: 100%; overflow-x: hidden; scrollbar-size: 1 1; }
    ServerScreen #phases-panel { height: auto; min-height: 4; }
    ServerScreen #machine-panel { min-height: 4; }
    ServerScreen #phases, ServerScreen #machine, ServerScreen #verdict-text {
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    ServerScreen.-plain #phases, ServerScreen.-plain #machine, ServerScreen.-plain #verdict-text {
        text-overflow: clip;
    }
    ServerScreen #log-panel { padding: 0 0 0 1; }
    ServerScreen #processes-panel { height: 9; padding: 0 0 0 1; }
    ServerScreen #processes { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    ServerScreen.-high #processes-panel { height: 15; }
    ServerScreen.-short #processes-panel { display: none; }
    ServerScreen VerdictPanel { height: auto; }
    ServerScreen VerdictPanel.-bad { border: heavy $error; border-title-color: $error; }
    ServerScreen VerdictPanel.-warn { border: round $warning; border-title-color: $warning; }
    ServerScreen VerdictPanel.-plain.-bad { border: ascii $error; }
    ServerScreen VerdictPanel.-plain.-warn { border: ascii $warning; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.chosen: str | None = None
        """A server's name, or a launch that has no server yet."""
        self._wanted = ""
        self._diagnoses: dict[str, str] = {}
        self._view = ServerView()

    def body(self) -> ComposeResult:
        """Panels."""
        with Horizontal(classes="columns"):
            with Vertical(classes="side"):
                with Panel(title="Servers", id="servers-panel"):
                    yield RowTable(SERVERS, id="servers", cell_padding=0, show_header=False)
                with Panel(title="Milestones", id="phases-panel"):
                    yield Block(id="phases")
                with Panel(title="Machine", id="machine-panel"):
                    yield Block(id="machine")
            with Vertical(classes="main"):
                yield VerdictPanel(id="verdict")
                with Panel(title="Log", id="log-panel"):
                    yield LogPane(id="log")
                with Panel(title="Processes", id="processes-panel"):
                    yield RowTable(PROCESSES, id="processes", cell_padding=0)

    def on_mount(self) -> None:
        """Also see launches that have no server yet, and the ends of diagnoses."""
        self.watch(self.app, "tasks", self._on_tasks)

    def on_resize(self, event: events.Resize) -> None:
        """A low terminal leaves the room to verdict and log."""
        self.set_class(event.size.height < SHORT, "-short")
        self.call_after_refresh(self._draw)

    def on_screen_resume(self) -> None:
        """A diagnosis may have ended meanwhile."""
        self._on_tasks(self.bench.tasks)

    # What is selected

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """All that are known."""
        found = self.bench.servers
        return found if isinstance(found, tuple) else ()

    @property
    def status(self) -> ServerStatus | None:
        """The selected server."""
        return next((one for one in self.servers if one.server.name == self.chosen), None)

    @property
    def launch(self) -> TaskView | None:
        """The selected launch, if it has no server yet."""
        return next((one for one in self.bench.tasks if TASK + one.task.id == self.chosen), None)

    def _on_servers(self, servers: Any) -> None:
        super()._on_servers(servers)
        if not isinstance(servers, Failed):
            self._list()

    def _on_tasks(self, tasks: tuple[TaskView, ...]) -> None:
        self._list()
        for view in tasks:
            if self.is_current and view.state != "running" and view.task.id in self._diagnoses:
                name = self._diagnoses.pop(view.task.id)
                self.app.push_screen(TextScreen(f"Diagnosis of {name}", diagnosis_text(view.task)))

    def _list(self) -> None:
        try:
            table = self.query_one("#servers", RowTable)
        except NoMatches:  # the screen is being taken down
            return
        rows = list(server_rows(self.servers, self.bench.tasks))
        table.show(rows)
        if self._wanted in {row.key for row in rows}:
            table.choose(self._wanted)
            self._wanted = ""
        self._choose(table.selected)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor moved."""
        if event.data_table.id == "servers":
            self._choose(self.query_one("#servers", RowTable).selected)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter shows the whole verdict."""
        if event.data_table.id == "servers" and self._view.name:
            self.app.push_screen(TextScreen(self._view.name, whole_text(self._view)))

    def _choose(self, key: str | None) -> None:
        changed, self.chosen = key != self.chosen, key
        self.source.selected = self.status  # type: ignore[attr-defined]
        if changed:
            self._view = ServerView(gpus=self._view.gpus, no_gpu=self._view.no_gpu, machine=self._view.machine)
            self.poller.wake()
            self._draw()
            self.refresh_bindings()

    # Drawing

    def show(self, snapshot: ServerView) -> None:
        """Draw a look; one at a server that is no longer selected shows only the machine."""
        status = self.status
        if snapshot.name == (status.server.name if status else ""):
            self._view = snapshot
        self._draw()

    def _draw(self) -> None:
        with contextlib.suppress(NoMatches), self.app.batch_update():
            self._draw_verdict()
            self._draw_log()
            self._draw_rest()

    def _draw_verdict(self) -> None:
        panel = self.query_one("#verdict", VerdictPanel)
        launch = self.launch
        if launch is not None:
            panel.say("Launch", launch_text(launch, 5), "busy" if launch.state == "running" else "bad")
        elif self.status is None:
            panel.say("Verdict", Text(NONE))
        elif self.status.state == "stopping":
            panel.say("Verdict", Text(f"{plain(self.status.server.name)} is being stopped."), "busy")
        else:
            panel.tell(self._view, self._note())

    def _note(self) -> str:
        running = {view.task.id for view in self.bench.tasks if view.state == "running"}
        names = [name for task, name in self._diagnoses.items() if task in running or not self.bench.tasks]
        return "being diagnosed, about 12 s" if self.chosen in names else ""

    def _draw_log(self) -> None:
        pane, launch = self.query_one("#log", LogPane), self.launch
        if launch is not None:
            pane.open(launch.task.folder / "err")
        elif self._view.log:
            pane.open(Path(self._view.log), self._view.secrets)
        self._name_log()

    def _name_log(self) -> None:
        pane = self.query_one("#log", LogPane)
        stopped = pane.path is not None and self.status is None and self.launch is None
        self.query_one("#log-panel", Panel).name_it(log_title(self._view, pane, stopped), log_state(pane))

    def on_log_pane_moved(self, event: LogPane.Moved) -> None:
        """The title tells where in the log one is."""
        event.stop()
        self._name_log()

    def _draw_rest(self) -> None:
        view, phases = self._view, self.query_one("#phases", Block)
        phases.show(phases_text(view, phases.size.width) if view.phases else Text(""))
        self.query_one("#phases-panel", Panel).name_it("Milestones", summary(view) if view.phases else "")
        machine = self.query_one("#machine", Block)
        machine.show(machine_text(view, machine.size.width))
        if self.has_class("-short"):
            return
        self.query_one("#processes", RowTable).show(list(process_table(view.processes)))
        count = f" {'-' if is_ascii() else '·'} {len(view.processes)}" if view.processes else ""
        self.query_one("#processes-panel", Panel).name_it(f"Processes{count}")

    # Actions

    def unavailable(self, verb: str) -> str:
        """What needs a server, or a log."""
        status = self.status
        if verb in ("stop", "restart", "diagnose") and status is None:
            return "no server is selected"
        if verb == "diagnose" and status is not None and status.state == "dead":
            return "it is dead; its last words are shown"
        return ""

    def question(self, verb: str) -> str:
        """What is lost by a yes."""
        status = self.status
        if status is None or verb not in ("stop", "restart"):
            return ""
        name, url = status.server.name, status.server.url
        if status.state == "dead":
            return (
                f"Remove what is left of {name} ({url}), which is dead?" if verb == "stop" else f"Start {name} again?"
            )
        return f"{'Stop' if verb == 'stop' else 'Restart'} {name} at {url}? It is {status.state}."

    def do_launch(self) -> None:
        """The form, then the command."""

        def go(argv: tuple[str, ...] | None) -> None:
            if argv is not None and self.bench.run_command(argv) is not None:
                self._wanted = argv[argv.index("--name") + 1] if "--name" in argv else DEFAULT_NAME

        self.app.push_screen(launch_form(self.servers), go)

    def do_stop(self) -> None:
        """End it."""
        self._run("stop")

    def do_restart(self) -> None:
        """End it and start it as it was."""
        self._run("restart")

    def _run(self, command: str) -> None:
        if self.status is not None:
            self.bench.run_command((command, self.status.server.name))

    def do_diagnose(self) -> None:
        """Watch it for longer, with stacks and a request."""
        if self.status is None:
            return
        name = self.status.server.name
        task = self.bench.run_command(("doctor", "--name", name, "--json"))
        if task is not None:
            self._diagnoses[task.id] = name
            self._draw()

    def do_follow(self) -> None:
        """Follow the log's end, or hold still."""
        pane = self.query_one("#log", LogPane)
        pane.follow(not pane.following)

    def search(self, words: str) -> None:
        """Search the log."""
        self.query_one("#log", LogPane).look_for(words)

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """After a search the keys go to the log."""
        if isinstance(event.widget, SearchBar) and event.widget.value:
            self.call_after_refresh(self.query_one("#log", LogPane).focus)

    def action_hit(self, by: int) -> None:
        """To the next hit, or the one before."""
        pane = self.query_one("#log", LogPane)
        if not pane.next_hit(by):
            self.app.notify("nothing found" if pane.found else "/ searches the log", severity="warning", timeout=3)

    def copied(self) -> str:
        """A line of the log, when that has the keys."""
        pane = self.query_one("#log", LogPane)
        return json.dumps({"log": str(pane.path), "line": pane.copied()}) if pane.has_focus else super().copied()
