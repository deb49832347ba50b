"""What every mode has: the top line, a poller for its source, and one way in which actions are done."""

from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from workbench.errors import HsbenchError
from workbench.tui.actions import BY_ID, Action, of_mode
from workbench.tui.glyphs import is_ascii
from workbench.tui.modals.confirm import Confirm
from workbench.tui.source import Failed, Poller, Source
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.searchbar import SearchBar
from workbench.tui.widgets.table import RowTable
from workbench.tui.widgets.topline import TopLine

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp


class ModeScreen(Screen[None]):
    """A mode. A subclass names its mode, composes its body, and shows each snapshot that its source collects."""

    MODE: ClassVar[str] = ""
    AUTO_FOCUS = "RowTable"
    DEFAULT_CSS = """
    ModeScreen > #failure { dock: top; height: auto; padding: 0 1; color: $error; display: none; }
    ModeScreen > #failure.open { display: block; }
    """
    # A look draws the widgets that change; the rest of the screen is not painted anew.
    snapshot: reactive[Any] = reactive(None, init=False, always_update=True, repaint=False)

    class Looked(Message):
        """A snapshot came from the poller's thread."""

        def __init__(self, snapshot: Any) -> None:
            super().__init__()
            self.snapshot = snapshot

        def can_replace(self, message: Message) -> bool:
            """Only the newest is worth drawing."""
            return isinstance(message, ModeScreen.Looked)

    def __init__(self) -> None:
        super().__init__()
        self.source: Source = self.bench.services.source(self.MODE)
        self.poller = Poller(self.source, lambda told: self.post_message(self.Looked(told)))
        self.holding = False
        self._held: Any = None
        self._impossible: tuple[bool, ...] = ()

    @property
    def bench(self) -> "WorkbenchApp":
        """The app, by its own type."""
        return cast("WorkbenchApp", self.app)

    def compose(self) -> ComposeResult:
        """The top line, a line for what went wrong, the mode's own body, the footer."""
        yield TopLine(self.MODE)
        yield Plain(id="failure")
        yield from self.body()
        yield SearchBar(id="search")
        yield Footer(compact=True, show_command_palette=False)

    def body(self) -> ComposeResult:
        """The mode's own widgets."""
        raise NotImplementedError

    def show(self, snapshot: Any) -> None:
        """Draw a snapshot. Called only with what the source's `collect` gives."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Begin to look."""
        self.set_class(is_ascii(), "-plain")  # for rules that cannot see the app's own class
        self.watch(self.app, "servers", self._on_servers)
        self.poller.start()

    def on_unmount(self) -> None:
        """Look no more."""
        self.poller.stop()

    def on_screen_suspend(self) -> None:
        """A hidden mode costs nothing; one that lies under a question is still seen."""
        if self.bench.current_mode != self.MODE:
            self.poller.pause()

    def on_screen_resume(self) -> None:
        """Seen again."""
        self.poller.resume()

    def on_mode_screen_looked(self, event: Looked) -> None:
        """Draw, unless the picture is held still."""
        event.stop()
        if self.holding:
            self._held = event.snapshot
        else:
            self.snapshot = event.snapshot

    def watch_snapshot(self, snapshot: Any) -> None:
        """Draw it in one go; a failed look leaves the last picture and says why."""
        if snapshot is None or not self.is_mounted:
            return
        failure = self.query_one("#failure", Plain)
        failed = isinstance(snapshot, Failed)
        failure.set_class(failed, "open")
        if failed:
            step = f"  next: {snapshot.next_step}" if snapshot.next_step else ""
            failure.show(f"{snapshot.message}{step}")
            return
        with self.app.batch_update():
            self.show(snapshot)
        self.refresh_actions()

    def _on_servers(self, servers: Any) -> None:
        try:
            self.query_one(TopLine).show(servers)
        except NoMatches:  # the screen is being taken down
            return

    # Actions

    def refresh_actions(self) -> None:
        """Draw the footer anew, but only if another action can or cannot be done: it is composed as a whole."""
        possible = tuple(bool(self.why_not(action)) for action in of_mode(self.MODE))
        if possible != self._impossible:
            self._impossible = possible
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey what cannot be done now."""
        if action == "do" and parameters and (found := BY_ID.get(str(parameters[0]))) is not None:
            return None if self.why_not(found) else True
        return True

    def why_not(self, action: Action) -> str:
        """Why an action cannot be done now; empty when it can."""
        if action.changes and self.bench.readonly:
            return "the app is read-only"
        return self.unavailable(action.verb)

    def unavailable(self, verb: str) -> str:
        """The mode's own reasons, such as that nothing is selected."""
        return ""

    def question(self, verb: str) -> str:
        """What is asked before it is done; empty asks nothing."""
        return ""

    def on_key(self, event: events.Key) -> None:
        """A key whose action cannot be done now says why; the footer shows it by brightness alone."""
        keymap = self.bench.config.keys
        for action in of_mode(self.MODE):
            if event.key == keymap.get(action.id, action.key) and (why := self.why_not(action)):
                event.stop()
                self.app.notify(f"{action.label}: {why}", severity="warning", timeout=3)

    def action_do(self, name: str) -> None:
        """Do an action of this mode."""
        action = BY_ID[name]
        if why := self.why_not(action):
            self.app.notify(f"{action.label}: {why}", severity="warning")
            return
        if question := self.question(action.verb):
            self.app.push_screen(Confirm(question), lambda yes: self._act(action) if yes else None)
        else:
            self._act(action)

    def _act(self, action: Action) -> None:
        try:
            getattr(self, f"do_{action.verb}")()
        except HsbenchError as error:
            self.bench.complain(error.message, error.next_step)

    def do_search(self) -> None:
        """Open the line to type into."""
        self.query_one("#search", SearchBar).open()

    def on_search_bar_typed(self, event: SearchBar.Typed) -> None:
        """Filter or search at each letter."""
        event.stop()
        self.search(event.words)

    def search(self, words: str) -> None:
        """Use the words; empty ones end the search."""

    def key_escape(self) -> None:
        """One level back: out of a search."""
        self.query_one("#search", SearchBar).leave()

    def hold(self) -> None:
        """Hold the picture still, or let it go on with the newest snapshot."""
        self.holding = not self.holding
        self.query_one(TopLine).mark("HELD" if self.holding else "")
        if not self.holding and self._held is not None:
            self.snapshot, self._held = self._held, None

    def copied(self) -> str:
        """The selected row of the focused table, or of the first one, as JSON."""
        focused = self.focused
        if isinstance(focused, RowTable):
            return focused.copied()
        tables = self.query(RowTable)
        return tables.first().copied() if tables else ""

    def focus_table(self) -> None:
        """Give the first table the keys."""
        tables = self.query(DataTable)
        if tables:
            tables.first().focus()
