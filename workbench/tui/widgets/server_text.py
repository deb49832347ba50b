"""A text that is drawn again only when it changes, and laid out again only when it has another number of lines."""

from rich.console import RenderableType
from rich.text import Text

from workbench.tui.glyphs import plain
from workbench.tui.widgets.plain import Plain


class Block(Plain):
    """For texts that are told again at each look: a layout of the whole screen costs more than all else in it."""

    _shown: Text | None = None

    def show(self, text: RenderableType) -> None:
        """Replace what is shown."""
        new = text if isinstance(text, Text) else Text("\n".join(plain(line) for line in str(text).split("\n")))
        before, self._shown = self._shown, new
        if before is None or before != new:
            same = before is not None and before.plain.count("\n") == new.plain.count("\n")
            self.update(new, layout=not same)
