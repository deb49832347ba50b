"""How the newest probe gets on, and why it came to nothing."""

from rich.text import Text
from textual.app import ComposeResult

from workbench.render.text import duration
from workbench.tui.glyphs import plain, sign
from workbench.tui.sources.probe import Progress
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain

RUNNING_LINES = 2


class ProgressPanel(Panel):
    """Hidden unless a probe runs or has failed; a failure stays until it is dismissed or something is probed."""

    DEFAULT_CSS = """
    ProgressPanel { max-height: 12; display: none; overflow-y: auto; }
    ProgressPanel.open { display: block; }
    ProgressPanel > Plain { height: auto; }
    """

    def __init__(self, **how: object) -> None:
        super().__init__(title="", classes="auto", **how)
        self.shown: Progress | None = None
        self._dismissed = ""

    def compose(self) -> ComposeResult:
        """The lines."""
        yield Plain()

    def show(self, progress: Progress | None) -> None:
        """Follow the task."""
        if progress == self.shown:
            return
        self.shown = progress
        opened = progress is not None and progress.id != self._dismissed
        self.set_class(opened, "open")
        if progress is None or not opened:
            return
        running = progress.state == "running"
        self.name_it("Probing" if running else "The last probe failed", "" if running else "esc closes")
        self.query_one(Plain).show(_words(progress))

    def dismiss(self) -> bool:
        """Close a failure; False when none is shown."""
        if self.shown is None or self.shown.state == "running" or not self.has_class("open"):
            return False
        self._dismissed = self.shown.id
        self.remove_class("open")
        return True


def _words(progress: Progress) -> Text:
    command = plain(f"hsbench {progress.command}")
    if progress.state == "running":
        text = Text().append_text(sign("busy", duration(progress.seconds))).append(f"  {command}")
        for line in progress.lines[-RUNNING_LINES:]:
            text.append(f"\n{plain(line)}", style="dim")
        return text
    text = Text().append_text(sign("bad", progress.state)).append(f"  {command}")
    for line in progress.lines:
        text.append(f"\n{plain(line)}", style="dim" if line.startswith("  | ") else "")
    if not progress.lines:
        text.append("\nit said nothing", style="dim")
    return text
