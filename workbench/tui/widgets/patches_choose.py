"""Which interpreter's SGLang to look at."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from workbench.tui.glyphs import plain
from workbench.tui.widgets.plain import Plain


class Choice(NamedTuple):
    """An interpreter; empty is the one that runs the app."""

    python: str
    label: str


class ChooseTree(ModalScreen[str | None]):
    """Answers with an interpreter's path, empty for our own, or None.

    Args:
        choices: What is known.
        current: The one that is shown now.
    """

    BINDINGS: ClassVar = [Binding("escape", "cancel", "cancel")]
    DEFAULT_CSS = """
    ChooseTree OptionList { height: auto; max-height: 10; border: none; background: $surface; padding: 0; }
    ChooseTree OptionList:focus { border: none; }
    ChooseTree Input { margin: 1 0 0 0; }
    """

    def __init__(self, choices: Sequence[Choice], current: str) -> None:
        super().__init__(classes="dialog")
        self.choices, self.current = list(choices), current

    def compose(self) -> ComposeResult:
        """A list, and a line for any other path."""
        with Vertical(classes="dialog-box") as box:
            box.border_title = "Whose SGLang?"
            yield OptionList(*(Option(Text(plain(choice.label))) for choice in self.choices), compact=True)
            yield Input(placeholder="another interpreter, such as /opt/venv/bin/python", compact=True)
            yield Plain("enter choose   tab to the line below   esc back", classes="keys")

    def on_mount(self) -> None:
        """Begin at the one that is shown."""
        options = self.query_one(OptionList)
        options.highlighted = next((n for n, c in enumerate(self.choices) if c.python == self.current), 0)
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One of the list."""
        self.dismiss(self.choices[event.option_index].python)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A path of one's own."""
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """As it was."""
        self.dismiss(None)
