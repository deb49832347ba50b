"""Text on the screen that is never read as markup."""

from rich.console import RenderableType
from rich.text import Text
from textual.widgets import Static

from workbench.tui.glyphs import plain


class Plain(Static):
    """A static text. Strings are shown as they are, control characters escaped."""

    def __init__(self, text: RenderableType = "", **how: object) -> None:
        super().__init__("", markup=False, **how)  # type: ignore[arg-type]
        self._words: RenderableType = ""
        self.show(text)

    def show(self, text: RenderableType) -> None:
        """Replace what is shown."""
        if isinstance(text, str):
            text = Text("\n".join(plain(line) for line in text.split("\n")))
        if text != self._words or not isinstance(text, Text):
            self._words = text
            self.update(text)


def pairs(rows: list[tuple[str, str | Text]], width: int | None = None) -> Text:
    """Label and value, one row a line, the values under each other."""
    label = width or max((len(name) for name, _ in rows), default=0)
    text = Text()
    for number, (name, value) in enumerate(rows):
        text.append("\n" if number else "")
        text.append(f"{name:<{label}}  ", style="dim")
        text.append_text(value if isinstance(value, Text) else Text(plain(value)))
    return text
