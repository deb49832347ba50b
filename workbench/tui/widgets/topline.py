"""The first line of every mode: the modes, and the truth about the servers."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message

from workbench.server.survey import ServerStatus
from workbench.tui import glyphs
from workbench.tui.actions import MODES
from workbench.tui.glyphs import Level
from workbench.tui.source import Failed
from workbench.tui.widgets.plain import Plain

LEVELS: dict[str, Level] = {
    "ready": "good",
    "starting": "busy",
    "stopping": "busy",
    "silent": "warn",
    "broken": "bad",
    "dead": "bad",
}
NARROW = 100


class ModeName(Plain):
    """A mode to go to."""

    class Chosen(Message):
        """It was clicked."""

        def __init__(self, mode: str) -> None:
            super().__init__()
            self.mode = mode

    def __init__(self, mode: str, text: str, current: bool) -> None:
        super().__init__(text, classes="mode-name" + (" current" if current else ""))
        self.mode = mode

    def on_click(self, event: events.Click) -> None:
        """Go there."""
        event.stop()
        self.post_message(self.Chosen(self.mode))


class TopLine(Horizontal):
    """Modes at the left, servers at the right.

    Args:
        current: Name of the mode that is shown.
    """

    DEFAULT_CSS: ClassVar[str] = """
    TopLine { height: 1; dock: top; background: $panel; }
    TopLine > .mode-name { width: auto; padding: 0 1 0 0; color: $text-muted; }
    TopLine > .mode-name.current { color: $text; text-style: bold reverse; padding: 0; margin: 0 1 0 0; }
    TopLine > #brand { width: auto; padding: 0 1; text-style: bold; color: $accent; }
    TopLine > #mark { width: auto; color: $warning; text-style: bold; }
    TopLine > #truth { width: 1fr; text-align: right; padding: 0 1; }
    """

    def __init__(self, current: str) -> None:
        super().__init__()
        self.current = current
        self._servers: tuple[ServerStatus, ...] | Failed | None = None

    def compose(self) -> ComposeResult:
        """The names, then the servers' line."""
        yield Plain("hsbench", id="brand")
        for mode in MODES:
            yield ModeName(mode.name, f"{mode.key} {mode.title}", mode.name == self.current)
        yield Plain(id="mark")
        yield Plain(id="truth")

    def show(self, servers: tuple[ServerStatus, ...] | Failed | None) -> None:
        """Tell how the servers are."""
        self._servers = servers
        self.query_one("#truth", Plain).show(self._truth())

    def on_mount(self) -> None:
        """What holds for as long as the app is open."""
        self.mark("")

    def mark(self, word: str) -> None:
        """Say in a word how the view is held; read-only stands there for as long as the app is open."""
        readonly = "READ-ONLY" if getattr(self.app, "readonly", False) else ""
        self.query_one("#mark", Plain).show(Text(" ".join(part for part in (readonly, word) if part)))

    def on_resize(self) -> None:
        """A narrow line says less."""
        self.show(self._servers)

    def _truth(self) -> Text:
        if self._servers is None:
            return Text("")
        if isinstance(self._servers, Failed):
            return glyphs.sign("bad", "state folder unreadable")
        if not self._servers:
            return glyphs.sign("off", "no server")
        shown = [self._one(status) for status in self._servers]
        room = self.query_one("#truth").size.width - 2
        line = Text("  ").join(shown)
        if line.cell_len > room and len(shown) > 1:
            worst = next((s for s in self._servers if LEVELS.get(s.state) != "good"), self._servers[0])
            line = Text(f"{len(shown)} servers  ").append_text(self._one(worst))
            if line.cell_len > room:
                line = Text(f"{len(shown)} servers ").append_text(_sign(worst))
        return line

    def _one(self, status: ServerStatus) -> Text:
        port = "" if self.app.size.width < NARROW else f" :{status.server.port}"
        name = Text(f"{glyphs.plain(status.server.name)}{port} ")
        return name.append_text(_sign(status, (status.phase or "") if port else ""))


def _sign(status: ServerStatus, phase: str = "") -> Text:
    word = f"{status.state}: {phase}" if phase else status.state
    return glyphs.sign(LEVELS.get(status.state, "warn"), word)
