"""The line that a person types a search or a filter into."""

from textual import events
from textual.message import Message
from textual.widgets import Input


class SearchBar(Input):
    """Hidden until asked for. Enter gives the focus back and keeps the words; Esc clears them."""

    DEFAULT_CSS = """
    SearchBar { dock: bottom; height: 1; border: none; padding: 0 1; background: $boost; display: none; }
    SearchBar.open { display: block; }
    SearchBar:focus { border: none; }
    """

    class Typed(Message):
        """The words changed; empty when the search is over."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def on_mount(self) -> None:
        """A hidden line must not take the keys."""
        self.disabled = True

    def open(self) -> None:
        """Show it and type into it."""
        self.disabled = False
        self.add_class("open")
        self.screen.set_focus(self)

    def leave(self) -> bool:
        """Close it and forget the words; False when it was closed already."""
        if not self.has_class("open"):
            return False
        self.remove_class("open")
        self.value = ""
        self.disabled = True
        self.post_message(self.Typed(""))
        self.screen.set_focus(None)
        self.screen.focus_next()
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell at each letter."""
        event.stop()
        self.post_message(self.Typed(self.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go back to what is searched."""
        event.stop()
        self.screen.set_focus(None)
        self.screen.focus_next()

    def key_escape(self, event: events.Key) -> None:
        """The search is over."""
        event.stop()
        self.leave()
