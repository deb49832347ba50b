"""What keeps running when the app is left."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from workbench.tui.widgets.plain import Plain

SHOWN = 10


class Leave(ModalScreen[bool]):
    """Nothing is lost either way, so q or Enter leaves.

    Args:
        lines: What keeps running.
    """

    BINDINGS: ClassVar = [
        Binding("q,enter,y", "answer(True)", "leave"),
        Binding("escape,n", "answer(False)", "stay"),
    ]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(classes="dialog")
        self.lines = list(lines)

    def compose(self) -> ComposeResult:
        """The lines, and the keys."""
        more = len(self.lines) - SHOWN
        shown = [*self.lines[:SHOWN], *([f"and {more} more"] if more > 0 else [])]
        with Vertical(classes="dialog-box") as box:
            box.border_title = "These keep running"
            yield Plain("\n".join(shown), classes="details")
            yield Plain("They will be here when hsbench is opened again.")
            yield Plain("q leave   esc stay", classes="keys")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)
