"""One sweep: the table of decisions, and what is to be said of the selected variant."""

from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.widgets import DataTable

from workbench.tui.sources.bench import SweepDetail
from workbench.tui.widgets.bench_sweep_words import INTERVAL, sweep_head, sweep_notes, sweep_rows
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, RowTable

COLUMNS = (
    Column("variant", 15),
    Column("  tok/s", 7, right=True),
    Column(" against baseline", INTERVAL + 1, right=True),
    Column(" change (90 %)", 14, right=True),
    Column(" verdict", 13),
    Column("served by", 19),
    Column("settings", 60),
)


class SweepPane(Container):
    """The details of a sweep."""

    DEFAULT_CSS = """
    SweepPane { height: 1fr; layout: vertical; }
    SweepPane #decisions-panel { min-height: 5; }
    SweepPane #decisions { scrollbar-size-horizontal: 0; }
    SweepPane #sweep-notes-panel { min-height: 4; max-height: 12; }
    """

    def __init__(self, **how: str) -> None:
        super().__init__(id=how.get("id"))
        self._found: SweepDetail | None = None

    def compose(self) -> ComposeResult:
        """The sweep, its decisions, a variant."""
        with Panel(title="sweep", id="sweep-head-panel", classes="auto"):
            yield Plain(id="sweep-head")
        with Panel(title="decisions", id="decisions-panel"):
            yield RowTable(COLUMNS, id="decisions", cell_padding=0)
        with Panel(title="variant", id="sweep-notes-panel"), VerticalScroll():
            yield Plain(id="sweep-notes")

    def show(self, found: SweepDetail) -> None:
        """Draw it, unless it is drawn already."""
        if found == self._found:
            return
        self._found = found
        self.query_one("#sweep-head-panel", Panel).name_it(f"sweep {found.key.rpartition('/')[2]}")
        self.query_one("#sweep-head", Plain).show(sweep_head(found))
        self.query_one("#decisions", RowTable).show(sweep_rows(found))
        self._show_notes()

    def _show_notes(self) -> None:
        key = self.query_one("#decisions", RowTable).selected
        if self._found is not None:
            self.query_one("#sweep-notes-panel", Panel).name_it((key or "variant").removeprefix("-"))
            self.query_one("#sweep-notes", Plain).show(sweep_notes(self._found, key))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell of the other variant."""
        event.stop()
        self._show_notes()
