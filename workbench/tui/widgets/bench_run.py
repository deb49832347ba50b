"""One run: what it is, how it goes, its workloads, and two plots of the selected one."""

import time
from collections.abc import Sequence
from functools import partial

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widgets import DataTable

from workbench.render import charts
from workbench.tui import glyphs
from workbench.tui.sources.bench import LIVE, RunDetail
from workbench.tui.widgets import bench_words as words
from workbench.tui.widgets.chart import Chart, drawable
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, Row, RowTable

COLUMNS = (
    Column("workload", 14),
    Column("  tok/s", 7, right=True),
    Column("  TTFT", 6, right=True),
    Column("   p99", 6, right=True),
    Column("  TPOT", 6, right=True),
    Column(" ITLp99", 7, right=True),
    Column("   e2e", 6, right=True),
    Column(" fail", 5, right=True),
    Column(" notes", 40),
)
Series = Sequence[tuple[str, charts.Points]]
NO_POINT = "no workload is over"


class RunPane(Container):
    """The details of a run."""

    DEFAULT_CSS = """
    RunPane { height: 1fr; layout: vertical; }
    RunPane #run-head-panel { max-height: 6; }
    RunPane #live-panel { display: none; }
    RunPane.live #live-panel { display: block; }
    RunPane #points-panel { min-height: 4; }
    RunPane #points { scrollbar-size-horizontal: 0; }
    RunPane #point-notes { height: auto; max-height: 5; padding: 0 2; }
    RunPane #plots { height: 2fr; min-height: 8; }
    RunPane #plots > Panel { width: 1fr; }
    """

    class PointChosen(Message):
        """Another workload is selected, or `LIVE`."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, **how: str) -> None:
        super().__init__(id=how.get("id"))
        self._found: RunDetail | None = None
        self._said: dict[str, Text] = {}
        self._drawn: dict[str, object] = {}

    def compose(self) -> ComposeResult:
        """From what it is to how it is distributed."""
        with Panel(title="run", id="run-head-panel", classes="auto"):
            yield Plain(id="run-head")
        with Panel(title="now", id="live-panel", classes="auto"):
            yield Plain(id="live")
        with Panel(title="workloads, times in ms", id="points-panel"):
            yield RowTable(COLUMNS, id="points", cell_padding=0)
        yield Plain(id="point-notes")
        with Horizontal(id="plots"):
            with Panel(title="latency", id="latency-panel"):
                yield Chart(empty=NO_POINT, id="latency")
            with Panel(title="rate", id="rate-panel"):
                yield Chart(empty=NO_POINT, id="rate")

    @property
    def selected_point(self) -> int:
        """The number of the selected workload."""
        key = self.query_one("#points", RowTable).selected
        return int(key) if key is not None and key.isdecimal() else LIVE

    def show(self, found: RunDetail) -> None:
        """Draw it; what is as it was and has no clock is left alone."""
        if found == self._found and found.state != "running":
            return
        self._found = found
        for panel in ("run-head", "points"):
            named = f"run {found.run.name}" + (": medians in ms" if panel == "points" else "")
            self.query_one(f"#{panel}-panel", Panel).name_it(named)
        self._say("run-head", words.run_head(found))
        self._show_live(found)
        self.query_one("#points", RowTable).show(self._rows(found))
        self._show_point(found)

    def _show_live(self, found: RunDetail) -> None:
        self.set_class(bool(found.beats), "live")
        if found.beats:
            running = found.state == "running"
            width = self.size.width
            self._say("live", words.live_text(found.beats[-1], time.time(), running, width))

    def _say(self, name: str, text: Text) -> None:
        """A text that is not new costs no layout."""
        if self._said.get(name) != text:
            self._said[name] = text
            self.query_one(f"#{name}", Plain).show(text)

    def _rows(self, found: RunDetail) -> list[Row]:
        live = [words.live_row(found.beats[-1])] if found.beats and found.state == "running" else []
        return [*live, *(words.point_row(number, point) for number, point in enumerate(found.points))]

    def _show_point(self, found: RunDetail) -> None:
        point = found.points[found.shown] if 0 <= found.shown < len(found.points) else None
        self._say("point-notes", words.notes_text(point))
        self.query_one("#point-notes").display = point is not None
        if point is None:
            empty = "nothing told yet"
            self._plot("latency", "TTFT and TPOT, ms", self._over_time("ttft", "tpot"), empty, from_zero=True)
            self._plot("rate", "tok/s", self._over_time("tok_s"), empty, from_zero=True)
            return
        curves, label = found.curves, point.workload.label
        part = f", every {curves.stride}th request" if curves is not None and curves.stride > 1 else ""
        empty = "no times are kept" if curves is not None else "reading the requests"
        spread: Series = [("TTFT", curves.ttft), ("ITL", curves.itl)] if curves is not None else []
        self._plot("latency", f"{label}: % within x ms{part}", spread, empty)
        self._plot("rate", f"{label}: tok/s over seconds{part}", [("", curves.rate)] if curves else [], empty)

    def _over_time(self, *figures: str) -> Series:
        """Figures of the run that goes on, over the seconds up to now."""
        beats = self._found.beats if self._found is not None else ()
        names = {"ttft": "TTFT", "tpot": "TPOT", "tok_s": "tok/s"}
        return [(names[one], words.series(beats, one)) for one in figures]

    def _plot(self, name: str, title: str, series: Series, empty: str, from_zero: bool = False) -> None:
        """Draw it, unless it is drawn already."""
        wanted = (title, series, empty)
        if self._drawn.get(name) == wanted:
            return
        self._drawn[name] = wanted
        self.query_one(f"#{name}-panel", Panel).name_it(title)
        chart = self.query_one(f"#{name}", Chart)
        chart.empty = empty
        chart.draw(partial(_lines, series, from_zero) if any(drawable(points) for _, points in series) else None)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Draw the other workload."""
        event.stop()
        if self._found is not None:
            self.post_message(self.PointChosen(self.selected_point))


def _lines(series: Series, from_zero: bool, width: int, height: int) -> str:
    return charts.lines(series, width, height, ascii=glyphs.is_ascii(), y_from_zero=from_zero)
