"""The sample inspector: one sample of a data set over the mode, another by its number or by ``[`` and ``]``."""

from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer

from workbench.render import charts
from workbench.render.text import number, size
from workbench.tui import glyphs
from workbench.tui.glyphs import Level
from workbench.tui.sampleview import TOKENS_SHOWN, Samples, SampleView, TensorView
from workbench.tui.source import Failed, Poller
from workbench.tui.widgets.chart import Chart
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain
from workbench.tui.widgets.table import Column, Row, RowTable

COLUMNS = (
    Column("state", 7),
    Column("block", 6, right=True),
    Column("shape", 13, right=True),
    Column("dtype", 10, right=True),
    *(Column(name, 10, right=True) for name in ("min", "max", "mean", "std", "row norm")),
    Column("NaN Inf", 8, right=True),
    Column("zeros", 8, right=True),
)
STATUS: dict[str, Level] = {"written": "good", "refused": "off", "quarantined": "bad"}


class SampleScreen(ModalScreen[None]):
    """Looks in a thread of its own; a number that is typed meanwhile is looked at next.

    Args:
        samples: Of the data set; given back when the screen closes.
        name: Of the run.
    """

    CSS = """
    SampleScreen { background: $background; }
    SampleScreen #sample { height: auto; max-height: 9; }
    SampleScreen #tensors { height: 8; }
    SampleScreen.-high #tensors { height: 10; }
    SampleScreen #below { height: 1fr; }
    SampleScreen #below Panel { width: 1fr; }
    SampleScreen VerticalScroll { scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar = [
        Binding("escape,q,i", "close", "close"),
        Binding("left_square_bracket", "step(-1)", "previous", key_display="["),
        Binding("right_square_bracket", "step(1)", "next", key_display="]"),
        Binding("enter", "go", "0-9 enter: go to", priority=True),
    ]

    class Looked(Message):
        """A sample was looked at."""

        def __init__(self, view: SampleView | Failed) -> None:
            super().__init__()
            self.view = view

    def __init__(self, samples: Samples, name: str) -> None:
        super().__init__()
        self.samples, self.name_of_run = samples, name
        self.poller = Poller(samples, lambda told: self.post_message(self.Looked(told)))
        self.asked = samples.index
        """The sample that is shown, or will be."""
        self.typed = ""
        self.view: SampleView | None = None

    def compose(self) -> ComposeResult:
        """What it is, its states, its tokens and one state's histogram."""
        with Panel(id="sample"):
            yield Plain(id="sample-facts")
        with Panel(id="tensors", title="states"):
            yield RowTable(COLUMNS, cell_padding=0)
        with Horizontal(id="below"):
            with Panel(id="tokens", title="tokens"), VerticalScroll():
                yield Plain(id="sample-tokens")
            with Panel(id="values", title="values"):
                yield Chart(empty="no histogram")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Look at the first one."""
        self.query_one(RowTable).focus()
        self._wait()
        self.poller.start()

    def on_unmount(self) -> None:
        """The worker ends in its thread."""
        self.poller.stop()

    def _wait(self) -> None:
        of = f" of {self.samples.rows:,}" if self.samples.rows is not None else ""
        self.query_one("#sample", Panel).name_it(f"{self.name_of_run}: sample {self.asked}{of}", self._typed_words())
        if self.view is None or self.view.index != self.asked:
            self.query_one("#sample-facts", Plain).show(Text("reading", style="dim"))

    def _typed_words(self) -> str:
        return f"go to {self.typed}" if self.typed else "[ previous   ] next   a number and enter"

    # Keys

    def on_key(self, event: events.Key) -> None:
        """Digits make a number."""
        if event.character is not None and event.character in "0123456789" and len(self.typed) < 12:
            self.typed += event.character
        elif event.key == "backspace":
            self.typed = self.typed[:-1]
        else:
            return
        event.stop()
        self._wait()

    def action_go(self) -> None:
        """To the number that was typed."""
        if self.typed:
            wanted, self.typed = int(self.typed), ""
            self.go(wanted)

    def action_step(self, by: int) -> None:
        """To a sample beside this one, in this folder's share."""
        self.go(self.asked + by * self.samples.step)

    def go(self, index: int) -> None:
        """Look at a sample; a number outside the data set is the nearest inside."""
        last = self.samples.rows - 1 if self.samples.rows else index
        self.asked = max(self.samples.first, min(index, last))
        self.samples.index = self.asked
        self._wait()
        self.poller.wake()

    def action_close(self) -> None:
        """A number that was begun is forgotten first."""
        if self.typed:
            self.typed = ""
            self._wait()
        else:
            self.dismiss(None)

    # Drawing

    def on_sample_screen_looked(self, event: Looked) -> None:
        """Draw it, unless another was asked for meanwhile."""
        event.stop()
        if not self.is_mounted:
            return
        view = event.view
        if isinstance(view, Failed):
            step = f"\nnext: {view.next_step}" if view.next_step else ""
            self.query_one("#sample-facts", Plain).show(f"{view.message}{step}")
        elif view.index == self.asked:
            self.show(view)

    def show(self, view: SampleView) -> None:
        """Draw a sample."""
        self.view = view
        self._wait()
        self.query_one("#sample-facts", Plain).show(sample_facts(view))
        self.query_one(RowTable).show([_row(tensor) for tensor in view.tensors])
        self.query_one("#sample-tokens", Plain).show(tokens_text(view))
        shown = f"the first {TOKENS_SHOWN} of " if len(view.ids) > TOKENS_SHOWN else ""
        self.query_one("#tokens", Panel).name_it(f"tokens: {shown}{len(view.ids):,}", _mask_words(view))
        self._histogram()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The histogram is of the selected state."""
        event.stop()
        self._histogram()

    def _histogram(self) -> None:
        tensors = {one.name: one for one in self.view.tensors} if self.view is not None else {}
        chosen = tensors.get(self.query_one(RowTable).selected or "")
        self.query_one("#values", Panel).name_it(f"values of {chosen.name}" if chosen else "values")
        draw = partial(_draw, chosen) if chosen is not None and any(chosen.histogram) else None
        self.query_one(Chart).draw(draw)


def _draw(tensor: TensorView, width: int, height: int) -> str:
    known = [abs(edge) for edge in (tensor.low, tensor.high) if edge is not None]
    return charts.histogram(
        tensor.histogram, width, height, ascii=glyphs.is_ascii(), largest=max(known) if known else None
    )


def sample_facts(view: SampleView) -> Text:
    """What it is, by the index and by its file."""
    line = view.line
    text = Text()
    if line is not None:
        text.append_text(glyphs.sign(STATUS.get(line.status, "warn"), line.status))
        words = f"  {line.tokens:,} tokens, {line.trained:,} trained on" if line.tokens else ""
        words += f" ({line.trained / line.tokens:.1%})" if line.tokens else ""
        words += ", cut to the longest allowed" if line.truncated else ""
        words += f"  {size(line.nbytes)}  crc32 {line.crc32}" if line.nbytes else ""
        words += f"  {line.reason}" if line.reason else ""
        text.append(glyphs.plain(words), style="")
        text.append(f"\n{glyphs.plain(f'request {line.request_id}')}" if line.request_id else "", style="dim")
    if view.line_note:
        level: Level = "bad" if line is not None else "off"
        text.append("\n" if text.plain else "").append_text(glyphs.sign(level, view.line_note))
    if view.path:
        text.append(f"\n{glyphs.plain(view.path)}", style="dim")
    for fault in view.faults:
        text.append("\n").append_text(glyphs.sign("bad", fault))
    for note in view.notes:
        text.append("\n").append_text(glyphs.sign("off", note))
    return text


def tokens_text(view: SampleView) -> Text:
    """The tokens as text, or their ids; what is trained on is bold and in brackets."""
    opening, closing = ("[[", "]]") if glyphs.is_ascii() else ("⟦", "⟧")
    text, inside = Text(), False
    for place, one in enumerate(view.ids[:TOKENS_SHOWN]):
        trained = view.mask is not None and place < len(view.mask) and bool(view.mask[place])
        if trained != inside:
            text.append(opening if trained else closing, style="bold green")
            inside = trained
        piece = glyphs.plain(view.pieces[place].replace("\n", "\\n")) if place < len(view.pieces) else f"{one} "
        text.append(piece, style="bold" if trained else "dim" if view.mask is not None else "")
    return text.append(closing if inside else "", style="bold green")


def _mask_words(view: SampleView) -> str:
    if not view.ids:
        return ""
    if view.mask is None:
        return "the mask is not shown"
    return f"{sum(map(bool, view.mask)):,} trained on, in brackets"


def _row(tensor: TensorView) -> Row:
    block = "" if tensor.block is None or tensor.block < 0 else str(tensor.block)
    numbers = [number(value, 4) for value in (tensor.low, tensor.high, tensor.mean, tensor.std, tensor.row_norm)]
    bad = _bad(tensor.bad, by_row=not tensor.histogram)
    shape = f"[{', '.join(map(str, tensor.shape))}]"
    zeros = _count(tensor.zeros, by_row=not tensor.histogram)
    data: dict[str, Any] = {name: getattr(tensor, name) for name in tensor.__struct_fields__}
    return Row(tensor.name, (tensor.name, block, shape, tensor.dtype, *numbers, bad, zeros), data)


def _count(value: int | None, by_row: bool) -> str:
    if value is None:
        return "-"
    return f"{value:,} rows" if by_row and value else f"{value:,}"


def _bad(value: int | None, by_row: bool) -> Text:
    return Text(_count(value, by_row), style="bold red" if value else "")
