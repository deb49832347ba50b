"""A bordered part of a screen with a title."""

from typing import Any

from rich.text import Text
from textual.containers import Container
from textual.content import Content

from workbench.tui.glyphs import is_ascii, plain


class Panel(Container):
    """A border, a title in it, and what is inside. The title may come from outside; it is never markup."""

    def __init__(self, *children: Any, title: str = "", **how: Any) -> None:
        super().__init__(*children, **how)
        self._names = ("", "")
        self.name_it(title)

    def name_it(self, title: str, below: str = "") -> None:
        """Change the title, and the words in the lower border."""
        if (title, below) == self._names:
            return
        self._names = (title, below)
        room = self.size.width - 6
        if is_ascii() and 0 < room < len(title):
            title = title[:room]  # cut by textual it would end in a sign outside ASCII
        self.border_title = Content(plain(title))
        self.border_subtitle = Content(plain(below))


def dim(text: str) -> Text:
    """Words of less weight."""
    return Text(plain(text), style="dim")
