"""A question before something is ended or changed."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from workbench.tui.widgets.plain import Plain

LONGEST = 400
"""Letters of a question; a command may hold a whole prompt, and the keys must stay in sight."""


def shortened(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


class Confirm(ModalScreen[bool]):
    """Answered with y or n; Enter is no answer, since it is pressed by habit.

    Args:
        question: One line.
        details: What follows from a yes, such as the command that is run.
    """

    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str, details: str = "") -> None:
        super().__init__(classes="dialog")
        self.question, self.details = question, details

    def compose(self) -> ComposeResult:
        """The question, and its keys."""
        with Vertical(classes="dialog-box") as box:
            box.border_title = "Sure?"
            yield Plain(shortened(self.question), classes="question")
            if self.details:
                yield Plain(shortened(self.details), classes="details")
            yield Plain("y yes   n no", classes="keys")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)
