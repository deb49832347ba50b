"""A text to read: help, an error, a comparison."""

from typing import ClassVar

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from workbench.tui.glyphs import plain
from workbench.tui.widgets.plain import Plain


class TextScreen(ModalScreen[None]):
    """Scrolls; closes with Esc, q, or the key that opened it."""

    BINDINGS: ClassVar = [
        Binding("escape,q,question_mark,enter", "close", "close"),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, title: str, text: RenderableType) -> None:
        super().__init__(classes="dialog")
        self.name_of_text, self.text = title, text

    def compose(self) -> ComposeResult:
        """The text in a box."""
        with VerticalScroll(classes="dialog-box tall") as box:
            box.border_title = Content(plain(self.name_of_text))
            yield Plain(self.text)

    def on_mount(self) -> None:
        """Arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        """Back to what lies under it."""
        self.dismiss(None)

    def action_down(self) -> None:
        """A line down."""
        self.query_one(VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        """A line up."""
        self.query_one(VerticalScroll).scroll_up(animate=False)
