"""A chart that is drawn again whenever its size changes."""

from collections.abc import Callable

from rich.text import Text
from textual import events
from textual.widgets import Static

Draw = Callable[[int, int], str]
"""Columns and lines → the picture, such as a function of `workbench.render.charts` with its data bound."""


class Chart(Static):
    """Text of exactly the widget's size, never markup. Drawn in the app's thread, as plotext needs."""

    DEFAULT_CSS = "Chart { height: 1fr; color: $secondary; }"

    def __init__(self, draw: Draw | None = None, empty: str = "", **how: object) -> None:
        super().__init__("", markup=False, **how)  # type: ignore[arg-type]
        self._draw, self.empty = draw, empty
        """`empty` is shown where the picture has nothing to say."""

    def draw(self, draw: Draw | None) -> None:
        """Show another picture; None shows none."""
        self._draw = draw
        self._paint()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        self._paint()

    def _paint(self) -> None:
        size = self.content_size
        picture = self._draw(size.width, size.height) if self._draw is not None and size.area else ""
        self.update(Text(picture or self.empty, no_wrap=True, overflow="crop"))
