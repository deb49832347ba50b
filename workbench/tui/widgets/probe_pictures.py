"""The selected tensor's values and norms as charts, and the other dumps of its folder."""

from textual.app import ComposeResult
from textual.containers import Horizontal

from workbench.probe.report import ProbeReport, TensorRow
from workbench.render import charts
from workbench.tui import glyphs
from workbench.tui.widgets.chart import Chart
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.probe_words import dump_words, piece

NO_TENSOR = "no tensor is selected"


class Pictures(Horizontal):
    """Three panels beside each other."""

    DEFAULT_CSS = """
    Pictures { height: 1fr; }
    Pictures > Panel { width: 1fr; }
    Pictures > #dumps { overflow-y: auto; }
    """

    def compose(self) -> ComposeResult:
        """Values, norms, other dumps."""
        with Panel(title="values", id="values"):
            yield Chart(empty=NO_TENSOR)
        with Panel(title="norms", id="norms"):
            yield Chart(empty=NO_TENSOR)
        with Panel(title="other dumps", id="dumps"):
            yield Plain(id="dump-words")

    def show(self, report: ProbeReport | None, row: TensorRow | None) -> None:
        """Another tensor, or none."""
        self.query_one("#dump-words", Plain).show(dump_words(report.other_dumps) if report is not None else "")
        values, norms = self.query_one("#values", Panel), self.query_one("#norms", Panel)
        name = f"{row.name}: " if row is not None else ""
        values.name_it(f"{name}values", "counts, both axes logarithmic" if row is not None else "")
        norms.name_it(f"{name}L2 norm by token")
        values.query_one(Chart).draw(None if row is None else lambda w, h: value_picture(row, w, h))
        norms.query_one(Chart).draw(
            None if row is None or report is None else lambda w, h: norm_picture(report, row, w, h)
        )


def value_picture(row: TensorRow, width: int, height: int) -> str:
    """The histogram. Without a finite value there is none."""
    if not any(row.histogram):
        return "no finite value"
    known = [abs(value) for value in (row.min, row.max) if value is not None and value - value == 0]
    return charts.histogram(row.histogram, width, height, ascii=glyphs.is_ascii(), largest=max(known, default=None))


def norm_picture(report: ProbeReport, row: TensorRow, width: int, height: int) -> str:
    """A bar a token where they all have room, else a line over the tokens' places."""
    norms = row.token_norms
    if not norms:
        return "no norms"
    if len(norms) <= height:
        labels = [f"{at} {piece(token)}" for at, token in enumerate(report.tokens)]
        labels += [str(at) for at in range(len(labels), len(norms))]
        return charts.bars(list(zip(labels, norms, strict=False)), width, height, ascii=glyphs.is_ascii())
    points = [(float(at), norm) for at, norm in enumerate(norms)]
    return charts.lines([("", points)], width, height, ascii=glyphs.is_ascii(), y_from_zero=True)
