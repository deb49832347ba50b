"""The app: six modes over the same core as the commands, fed by snapshots, acting through commands of their own."""

import asyncio
import contextlib
import gc
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding
from textual.command import CommandPalette, Provider
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.reactive import reactive
from textual.theme import Theme
from textual.widgets import Input

from workbench.errors import HsbenchError
from workbench.paths import state_dir
from workbench.server.survey import ServerStatus
from workbench.tasks.store import Task
from workbench.tui import actions, asciilook, glyphs
from workbench.tui.actions import BY_ID
from workbench.tui.bindings import bindings_of
from workbench.tui.config import Config
from workbench.tui.helptext import help_of
from workbench.tui.modals.text import TextScreen
from workbench.tui.palette import Actions
from workbench.tui.screens.base import ModeScreen
from workbench.tui.screens.registry import SCREENS
from workbench.tui.services import Services, Surroundings, TaskView
from workbench.tui.source import Failed, Poller
from workbench.tui.widgets.topline import ModeName

OURS = Theme(
    name="hsbench",
    primary="#4fa3a5",
    secondary="#8f9fc9",
    accent="#e0a458",
    success="#7fb685",
    warning="#e0b354",
    error="#e06c75",
    background="#14191f",
    surface="#1a2129",
    panel="#232c36",
    foreground="#d5dde5",
)

PROVIDERS: set[type[Provider] | Callable[[], type[Provider]]] = {Actions}

LONGEST_COMMAND = 110
SETTLED_S = 3.0
"""After so long the first mode is drawn."""
STYLES = Path(__file__).with_name("app.tcss")
WIDTHS: list[tuple[int, str]] = [(0, "-narrow"), (100, "-normal"), (150, "-wide")]
HEIGHTS: list[tuple[int, str]] = [(0, "-low"), (36, "-high")]
"""Columns and lines from which on a class stands at every screen; see `app.tcss`."""


class WorkbenchApp(App[int]):
    """The terminal app.

    Args:
        config: Settings and keys.
        services: Where facts come from and how commands are started.
    """

    TITLE = "hsbench"
    CSS_PATH = STYLES
    CSS = asciilook.STYLES
    MODES = SCREENS
    DEFAULT_MODE = "server"
    COMMANDS = PROVIDERS
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar = [
        *bindings_of(""),
        # Done before the next key is handed on, so that what is typed ahead reaches the mode that is gone to.
        *(Binding(mode.key, f"go('{mode.name}')", mode.title, show=False, priority=True) for mode in actions.MODES),
        Binding("ctrl+q", "do('leave')", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    servers: reactive[tuple[ServerStatus, ...] | Failed | None] = reactive(None, init=False)
    tasks: reactive[tuple[TaskView, ...]] = reactive((), init=False)

    class Surveyed(Message):
        """Servers and tasks were looked at."""

        def __init__(self, found: Surroundings | Failed) -> None:
            super().__init__()
            self.found = found

    class TaskEnded(Message):
        """A command that the app started is over."""

        def __init__(self, view: TaskView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, config: Config | None = None, services: Services | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.services = services or Services()
        self.readonly = self.config.app.readonly
        glyphs.set_ascii(self.config.app.ascii)
        asciilook.scroll_bars(self.config.app.ascii)
        self._poller = Poller(self.services.surroundings(), lambda told: self.post_message(self.Surveyed(told)))
        self._awaited: set[str] = set()

    def on_mount(self) -> None:
        """Theme, keys, signals, and the first look."""
        self.register_theme(OURS)
        known = self.config.app.theme in self.available_themes
        self.theme = self.config.app.theme if known else OURS.name
        if not known:
            self.complain(f"there is no theme {self.config.app.theme!r}", f"one of {', '.join(self.available_themes)}")
        self.set_class(self.config.app.ascii, "-ascii")
        self.set_keymap(dict(self.config.keys))
        self._restore_terminal_on_signals()
        self._poller.start()
        if not self.is_headless:
            self.set_timer(SETTLED_S, calm_collector)

    def on_unmount(self) -> None:
        """Look no more."""
        self._poller.stop()

    def _restore_terminal_on_signals(self) -> None:
        """Without this SIGTERM and SIGHUP end the process in the alternate screen, with the mouse still reporting."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self._leave_with, 128 + number)

    def _leave_with(self, code: int) -> None:
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """A defect: `open_app` raises it once the terminal is restored, as one line like every other error.

        Textual's own way prints every frame's variables, in which there may be secrets.
        """
        self._close_messages_no_wait()

    # What happens around

    def on_workbench_app_surveyed(self, event: Surveyed) -> None:
        """Tell whoever watches; say which of our commands have ended."""
        if isinstance(event.found, Failed):
            self.servers = event.found
            return
        self.servers, self.tasks = event.found.servers, event.found.tasks
        for view in event.found.tasks:
            if view.task.id in self._awaited and view.state != "running":
                self._awaited.discard(view.task.id)
                self._tell_end(view)
                self.screen_stack[0].post_message(self.TaskEnded(view))

    def _tell_end(self, view: TaskView) -> None:
        command = _typed(view.task.argv)
        if view.state == "done":
            self.notify(f"done: {command}")
            return
        why = next((line for line in view.task.narration(8) if line.startswith("hsbench: ")), view.state)
        self.complain(f"{command}\n{why.removeprefix('hsbench: ')}", "", seconds=12)

    def run_command(self, argv: Sequence[str], *, reads: bool = False) -> Task | None:
        """Start `hsbench` with these arguments as a task of its own; None when that is refused.

        Args:
            argv: What follows the word `hsbench`.
            reads: It changes nothing but its own folder, and is not refused under --readonly.
        """
        if self.readonly and not reads:
            self.complain("the app is read-only", "start it without --readonly")
            return None
        try:
            task = self.services.start(argv)
        except HsbenchError as error:
            self.complain(error.message, error.next_step)
            return None
        self._awaited.add(task.id)
        self.notify(f"$ {_typed(task.argv)}", timeout=4)
        self._poller.wake()
        return task

    def look_again(self) -> None:
        """Servers and tasks may have changed."""
        self._poller.wake()

    # Words

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message, whose words are never markup."""
        shown = "\n".join(glyphs.plain(line) for line in message.split("\n"))
        super().notify(shown, title=title, severity=severity, timeout=timeout, markup=False)

    def complain(self, message: str, next_step: str = "", seconds: float = 8) -> None:
        """Say what went wrong, and what to do."""
        step = f"\nnext: {next_step}" if next_step else ""
        self.notify(f"{message}{step}", severity="error", timeout=seconds)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A digit that is typed into a field, or meant for what lies over a mode, is a digit."""
        if action == "go":
            return len(self.screen_stack) == 1 and not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    async def action_go(self, mode: str) -> None:
        """Go to a mode."""
        await self.go(mode)

    async def go(self, mode: str) -> None:
        """Go to a mode; what lies over the present one is closed first."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        if mode != self.current_mode:
            await self.switch_mode(mode)

    async def on_mode_name_chosen(self, event: ModeName.Chosen) -> None:
        """A mode's name was clicked."""
        await self.go(event.mode)

    async def perform(self, name: str) -> None:
        """Do any action, in the mode that it belongs to."""
        action = BY_ID[name]
        if action.mode:
            await self.go(action.mode)
            screen = self.screen
            assert isinstance(screen, ModeScreen)
            screen.action_do(name)
        else:
            self.action_do(name)

    def action_do(self, name: str) -> None:
        """Do an action of the app itself."""
        getattr(self, f"do_{BY_ID[name].verb}")()

    @property
    def mode_screen(self) -> ModeScreen | None:
        """The mode that is seen, or lies under what is."""
        bottom = self.screen_stack[0]
        return bottom if isinstance(bottom, ModeScreen) else None

    def do_help(self) -> None:
        """The keys of this view."""
        mode = self.mode_screen
        if mode is not None:
            self.push_screen(TextScreen("Keys", help_of(mode.MODE, self.config.keys)))

    def action_help_quit(self) -> None:
        """Ctrl+C with nothing to copy."""
        self.notify("q leaves; ctrl+c copies what the mouse selected", timeout=3)

    def do_palette(self) -> None:
        """Every action by name."""
        self.action_command_palette()

    def action_command_palette(self) -> None:
        """The palette, for `ctrl+p` too."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="what to do", id="--command-palette"))

    def do_still(self) -> None:
        """Hold the picture still."""
        if self.mode_screen is not None:
            self.mode_screen.hold()

    def do_copy_row(self) -> None:
        """The selected row to the clipboard, also over ssh."""
        text = self.mode_screen.copied() if self.mode_screen is not None else ""
        if text:
            self.copy_to_clipboard(text)
            self.notify(f"copied {len(text)} characters")
        else:
            self.notify("no row is selected", severity="warning")

    def do_picture(self) -> None:
        """An SVG of the screen, in the state folder."""
        folder = state_dir() / "pictures"
        name = f"{self.current_mode}-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = Path(folder / name)
            path.write_text(self.export_screenshot(), encoding="utf-8")
        except OSError as error:
            self.complain(f"cannot write {folder / name}: {error.strerror}")
            return
        self.notify(f"saved {path}")

    def do_leave(self) -> None:
        """Close, after saying what keeps running."""
        from workbench.extract.job.roster import known_jobs
        from workbench.tui.leaving import staying
        from workbench.tui.modals.leave import Leave

        servers = self.servers if isinstance(self.servers, tuple) else ()
        lines = staying(servers, self.tasks, list(known_jobs()))
        if not lines:
            self.exit(return_code=0)
            return
        self.push_screen(Leave(lines), lambda yes: self.exit(return_code=0) if yes else None)


def _typed(argv: Sequence[str]) -> str:
    """A command as it would be typed, cut to what a message has room for."""
    text = f"hsbench {shlex.join(argv)}"
    return text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]} ..."


def calm_collector() -> None:
    """Leave what the app is made of out of garbage collection: a full one of it stops the picture for 50 to 110 ms."""
    gc.collect()
    gc.freeze()


def open_app(config: Config) -> int:
    """Run the app in this terminal; its exit code. A defect in it is raised when the terminal is restored."""
    app = WorkbenchApp(config)
    app.run(mouse=config.app.mouse)
    if app._exception is not None:
        raise app._exception
    return app.return_code or 0
