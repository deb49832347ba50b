"""The box that a prompt is written into, its switches, and the tokens of the probe that is shown."""

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain


class Toggle(Plain, can_focus=True):
    """A switch of one word, told by a cross and not by colour."""

    DEFAULT_CSS = """
    Toggle { width: auto; height: 1; margin: 0 2 0 0; color: $text-muted; }
    Toggle.on { color: $text; }
    Toggle:focus { text-style: reverse; }
    """
    BINDINGS: ClassVar = [Binding("enter,space", "flip", "switch", show=False)]

    class Flipped(Message):
        """It was switched by a person."""

        def __init__(self, toggle: "Toggle") -> None:
            super().__init__()
            self.toggle = toggle

    def __init__(self, word: str, id: str) -> None:
        self.word, self.on = word, False
        super().__init__(id=id)
        self.turn(False)

    def turn(self, on: bool) -> None:
        """Switch it without telling."""
        self.on = on
        self.set_class(on, "on")
        self.show(Text(f"[{'x' if on else ' '}] {self.word}"))

    def action_flip(self) -> None:
        """Switch it and tell."""
        self.turn(not self.on)
        self.post_message(self.Flipped(self))

    def on_click(self, event: events.Click) -> None:
        """As a key does."""
        event.stop()
        self.action_flip()


class PromptInput(Input):
    """One line; of several that are pasted none is lost."""

    def _on_paste(self, event: events.Paste) -> None:
        """The library's own way keeps the first line and says nothing."""
        lines = event.text.splitlines()
        if len(lines) > 1:
            self.app.notify(
                f"{len(lines)} lines were joined by blanks; hsbench probe takes line breaks as they are",
                severity="warning",
            )
        self.insert_text_at_cursor(" ".join(lines))
        event.prevent_default()
        event.stop()


class PromptBox(Horizontal):
    """The prompt at the left, the tokens at the right where there is room."""

    DEFAULT_CSS = """
    PromptBox { height: 5; dock: top; }
    PromptBox > #prompt { height: 100%; width: 1fr; }
    PromptBox > #tokens { height: 100%; width: 1fr; overflow-y: auto; }
    PromptBox #text { border: none; padding: 0; height: 1; background: $boost; }
    PromptBox #switches { height: 1; }
    PromptBox #hint { color: $text-muted; height: 1; }
    """

    class Asked(Message):
        """Enter was pressed on a prompt."""

        def __init__(self, text: str, chat: bool, tokens: bool) -> None:
            super().__init__()
            self.text, self.chat, self.tokens = text, chat, tokens

    def compose(self) -> ComposeResult:
        """The box and its switches; the tokens."""
        with Panel(title="Prompt", id="prompt"):
            yield PromptInput(placeholder="p, then a prompt; enter probes it", id="text")
            with Horizontal(id="switches"):
                yield Toggle("chat turn", id="chat")
                yield Toggle("token ids", id="ids")
            yield Plain("enter probes, esc leaves the box", id="hint")
        with Panel(title="Tokens", id="tokens"):
            yield Plain(id="token-words")

    @property
    def written(self) -> str:
        """What stands in the box."""
        found = self.query("#text").results(Input)
        return next((box.value for box in found), "")

    def switched(self, name: str) -> bool:
        """Whether `chat` or `ids` is on."""
        return self.query_one(f"#{name}", Toggle).on

    def write(self) -> None:
        """Give the box the keys."""
        # At once, not at the next turn of the loop: what is typed right after it is meant for the box.
        self.screen.set_focus(self.query_one("#text", Input))

    def say_where(self, words: str) -> None:
        """Which server a probe goes to."""
        self.query_one("#prompt", Panel).name_it("Prompt", words)

    def show_tokens(self, count: int | None, words: Text) -> None:
        """The tokens of the shown probe."""
        self.query_one("#tokens", Panel).name_it("Tokens" if count is None else f"Tokens {count}")
        self.query_one("#token-words", Plain).show(words)

    def on_toggle_flipped(self, event: Toggle.Flipped) -> None:
        """A prompt is a chat turn or token ids, not both."""
        event.stop()
        if event.toggle.on:
            for other in self.query(Toggle):
                if other is not event.toggle:
                    other.turn(False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Nothing follows from a letter."""
        event.stop()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Probe it."""
        event.stop()
        self.post_message(self.Asked(self.written, self.switched("chat"), self.switched("ids")))
