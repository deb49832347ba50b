"""A table whose rows have keys: what changed is updated in place, so cursor and scrolling stay where they are."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

from workbench.tui.glyphs import is_ascii, plain


class Column(NamedTuple):
    """A column. `width` is fixed, since measuring every cell of a live table is slow; None fits the label."""

    label: str
    width: int | None = None
    right: bool = False


class Row(NamedTuple):
    """A row by its key. `data` is what copying the row gives, as JSON."""

    key: str
    cells: tuple[str | Text, ...]
    data: Any = None


class RowTable(DataTable[Text]):
    """A table with a row cursor.

    Args:
        columns: From left to right.
    """

    DEFAULT_CSS = "RowTable { height: 1fr; }"
    BINDINGS: ClassVar = [
        Binding("j", "cursor_down", "down", show=False),
        Binding("k", "cursor_up", "up", show=False),
        Binding("g", "scroll_top", "top", show=False),
        Binding("G", "scroll_bottom", "bottom", show=False),
    ]

    def __init__(self, columns: Sequence[Column], **how: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, **how)
        self.plan = tuple(columns)
        self._shown: dict[str, Row] = {}
        for number, column in enumerate(self.plan):
            self.add_column(
                Text(column.label, justify="right" if column.right else "left"), width=column.width, key=str(number)
            )

    @property
    def selected(self) -> str | None:
        """The key under the cursor; None in an empty table."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def keys(self) -> list[str]:
        """The keys from top to bottom."""
        return list(self._shown)

    def show(self, rows: Sequence[Row]) -> None:
        """Make the table show exactly these rows."""
        if [row.key for row in rows] == list(self._shown):
            self._update(rows)
        else:
            self._replace(rows)
        self._shown = {row.key: row for row in rows}

    def choose(self, key: str) -> None:
        """Put the cursor on a row, if it is there."""
        if key in self._shown:
            self.move_cursor(row=list(self._shown).index(key))

    def copied(self) -> str:
        """The selected row as JSON."""
        row = self._shown.get(self.selected or "")
        if row is None:
            return ""
        names = [column.label for column in self.plan]
        words = [cell.plain if isinstance(cell, Text) else cell for cell in row.cells]
        return json.dumps(row.data if row.data is not None else dict(zip(names, words, strict=False)), default=str)

    def _update(self, rows: Sequence[Row]) -> None:
        for row in rows:
            before = self._shown[row.key].cells
            for number, (old, new) in enumerate(zip(before, row.cells, strict=True)):
                if old != new:
                    self.update_cell(row.key, str(number), self._cell(number, new))

    def _replace(self, rows: Sequence[Row]) -> None:
        chosen, scroll = self.selected, self.scroll_y
        self.clear()
        for row in rows:
            self.add_row(*(self._cell(n, cell) for n, cell in enumerate(row.cells)), key=row.key)
        keys = [row.key for row in rows]
        if chosen in keys:
            self.move_cursor(row=keys.index(chosen), scroll=False)
            self.scroll_to(y=scroll, animate=False)

    def _cell(self, number: int, cell: str | Text) -> Text:
        text = cell.copy() if isinstance(cell, Text) else Text(plain(cell))
        text.no_wrap, text.overflow = True, "crop" if is_ascii() else "ellipsis"
        text.justify = "right" if self.plan[number].right else "left"
        return text
