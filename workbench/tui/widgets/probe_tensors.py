"""The tensors of a probe as a table that shows as many columns as it has room for."""

from collections.abc import Sequence

from rich.text import Text
from textual import events

from workbench.probe.report import ProbeReport, TensorRow
from workbench.tui.widgets.probe_cells import columns_for, rows_of
from workbench.tui.widgets.table import Column, RowTable


class TensorTable(RowTable):
    """One row a tensor; the columns change with the width and with what was checked."""

    def __init__(self, **how: object) -> None:
        super().__init__(columns_for(0, False), **how)
        self.report: ProbeReport | None = None

    def show_report(self, report: ProbeReport | None) -> None:
        """Show another probe."""
        self.report = report
        self._draw()

    @property
    def tensor(self) -> TensorRow | None:
        """The one under the cursor."""
        if self.report is None or self.selected is None:
            return None
        return self.report.tensors[int(self.selected)]

    def on_resize(self, event: events.Resize) -> None:
        """More or fewer columns."""
        self._draw()

    def _draw(self) -> None:
        checked = self.report is not None and bool(self.report.reference)
        columns = columns_for(self.scrollable_content_region.width, checked)
        if columns != self.plan:
            self._replan(columns)
        self.show(rows_of(self.report, columns) if self.report is not None else [])

    def _replan(self, columns: Sequence[Column]) -> None:
        at = self.cursor_row
        self.clear(columns=True)
        self._shown = {}
        self.plan = tuple(columns)
        for number, column in enumerate(self.plan):
            label = Text(column.label, justify="right" if column.right else "left")
            self.add_column(label, width=column.width, key=str(number))
        self.call_after_refresh(lambda: self.move_cursor(row=at))
