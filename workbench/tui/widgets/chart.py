"""A chart that is drawn again whenever its size changes."""

from collections.abc import Callable

from rich.text import Text
from textual import events
from textual.widgets import Static

from workbench.render.charts import Points

NO_ROOM = "no room for the chart"
Draw = Callable[[int, int], str]
"""Columns and lines → the picture, such as a function of `workbench.render.charts` with its data bound."""


class Chart(Static):
    """Text of exactly the widget's size, never markup. Drawn in the app's thread, as plotext needs."""

    DEFAULT_CSS = "Chart { height: 1fr; color: $secondary; }"

    def __init__(self, draw: Draw | None = None, empty: str = "", **how: object) -> None:
        super().__init__("", markup=False, **how)  # type: ignore[arg-type]
        self._draw, self.empty = draw, empty
        """`empty` is shown while there is nothing to draw."""

    def draw(self, draw: Draw | None) -> None:
        """Show another picture; None shows none."""
        self._draw = draw
        self._paint()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        self._paint()

    def _paint(self) -> None:
        size = self.content_size
        if self._draw is None:
            self.update(Text(self.empty))
        else:
            picture = self._draw(size.width, size.height) if size.area else ""
            self.update(Text(picture or NO_ROOM, no_wrap=True, overflow="crop"))


def drawable(points: Points) -> bool:
    """Whether there is a point with both coordinates finite."""
    return any(x is not None and y is not None and x - x == 0 and y - y == 0 for x, y in points)
