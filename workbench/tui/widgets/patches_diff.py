"""The difference of one file: as one text, or the original beside the edited file where there is room."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import ScrollableContainer

from workbench.tui.widgets.patches_hunks import DiffRow, parse, side_by_side, unified
from workbench.tui.widgets.plain import Plain

SIDE_WIDTH = 100
"""Columns from which on two columns are readable."""
ROWS_SHOWN = 4000


class DiffView(ScrollableContainer):
    """Scrolls in both directions."""

    DEFAULT_CSS = """
    DiffView { height: 1fr; scrollbar-gutter: stable; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    DiffView.two-columns { overflow-x: hidden; }
    DiffView > #diff { width: auto; min-width: 100%; }
    """
    BINDINGS: ClassVar = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
        Binding("g", "scroll_home", "top", show=False),
        Binding("G", "scroll_end", "bottom", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.side = False
        """Two columns are wanted; they are drawn where they fit."""
        self._diff = self._instead = ""
        self._rows: list[DiffRow] = []
        self._places: list[int | None] = []

    def compose(self) -> ComposeResult:
        """The text."""
        yield Plain(id="diff")

    @property
    def fits(self) -> bool:
        """Whether there is room for two columns."""
        return self.size.width >= SIDE_WIDTH

    def show(self, diff: str, instead: str = "") -> None:
        """Show a file's difference; other words where there is none."""
        if (diff, instead) == (self._diff, self._instead):
            return
        self._diff, self._instead = diff, instead
        self._rows = parse(diff)[:ROWS_SHOWN]
        self.scroll_home(animate=False)
        self.draw()

    def draw(self) -> None:
        """Draw it for the present width."""
        text = self.query_one("#diff", Plain)
        self.set_class(self.side and self.fits, "two-columns")
        if not self._rows:
            self._places = []
            text.show(self._instead)
        elif self.side and self.fits:
            shown, pairs = side_by_side(self._rows, self.size.width)
            self._places = [right.new if right else None for _, right in pairs]
            text.show(shown)
        else:
            self._places = [row.new for row in self._rows]
            text.show(unified(self._rows))

    def on_resize(self) -> None:
        """Two columns depend on the width."""
        self.draw()

    def go_to(self, number: int) -> None:
        """Bring a line of the edited file into the middle."""
        place = _nearest(self._places, number)
        if place is not None:
            self.scroll_to(y=max(0, place - self.size.height // 2), animate=False)


def _nearest(places: Sequence[int | None], number: int) -> int | None:
    return next((index for index, new in enumerate(places) if new is not None and new >= number), None)
