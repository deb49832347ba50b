"""Two probes beside each other, tensor by tensor, as far as they can be compared."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.probe.report import ProbeReport, TensorRow, Token
from workbench.render.text import number
from workbench.tui import glyphs
from workbench.tui.glyphs import plain
from workbench.tui.widgets.probe_cells import shape
from workbench.tui.widgets.probe_words import level_of, piece

COLUMNS = ("tensor", "block", "shape", "min", "max", "mean", "std", "nan+inf", "norms, mean", "most")
FEW = ("tensor", "block", "shape", "mean", "std", "norms, mean", "most")
"""What a narrow screen has room for."""


class Norms(NamedTuple):
    """How much the tokens' L2 norms differ, relative to the first probe's; None without a token to compare."""

    tokens: int
    mean: float | None
    most: float | None


def shared(one: Sequence[Token], other: Sequence[Token]) -> int:
    """Tokens that both begin with. Attention looks back only, so up to there both had the same input."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine.id != theirs.id:
            break
        count += 1
    return count


def norms(one: TensorRow, other: TensorRow, tokens: int) -> Norms:
    """Compare the norms of the first tokens; what is not finite, or zero in the first, is left out."""
    found = [
        abs(theirs - mine) / mine
        for mine, theirs in zip(one.token_norms[:tokens], other.token_norms[:tokens], strict=False)
        if mine is not None and theirs is not None and 0 < mine < math.inf and theirs < math.inf
    ]
    return Norms(len(found), sum(found) / len(found) if found else None, max(found, default=None))


def comparison(one: ProbeReport, other: ProbeReport, narrow: bool = False) -> RenderableType:
    """The marked probe and the selected one."""
    count = shared(one.tokens, other.tokens)
    return Group(
        _about("marked  ", one),
        _about("selected", other),
        Text(),
        _tokens(one, other, count),
        _table(one, other, narrow),
    )


def _about(label: str, report: ProbeReport) -> Text:
    text = Text().append(f"{label} ", style="dim").append_text(glyphs.sign(level_of(report.verdict), report.verdict))
    text.append(f"  {plain(report.prompt[:60])}  ")
    return text.append(plain(f"{report.model}, {len(report.tokens)} tokens"), style="dim")


def _tokens(one: ProbeReport, other: ProbeReport, count: int) -> Text:
    if one.model != other.model:
        return Text("The models differ, so values need not agree; shapes and statistics are set side by side.\n")
    if count == len(one.tokens) == len(other.tokens):
        return Text(f"Both have the same {count} tokens.\n")
    mine, theirs = (piece(r.tokens[count]) if count < len(r.tokens) else "no token" for r in (one, other))
    words = f"The tokens differ from place {count} on: {plain(mine)} and {plain(theirs)}. "
    rest = "Norms are compared up to there; " if count else "Norms cannot be compared; "
    return Text(f"{words}{rest}statistics are over different tokens.\n")


def _table(one: ProbeReport, other: ProbeReport, narrow: bool) -> Table:
    table = Table(box=box.ASCII2 if glyphs.is_ascii() else box.SIMPLE_HEAD, pad_edge=False)
    labels = FEW if narrow else COLUMNS
    for label in labels:
        table.add_column(
            Text(label),
            justify="left" if label in ("tensor", "shape") else "right",
            no_wrap=label == "shape",
            overflow="fold",
            min_width=0 if label in ("tensor", "block", "shape") else 9,
        )
    mine, theirs = _by_name(one.tensors), _by_name(other.tensors)
    count = shared(one.tokens, other.tokens)
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        cells = _cells(name, mine.get(name), theirs.get(name), count)
        table.add_row(*(Text(cells.get(label, "")) for label in labels))
    return table


def _by_name(rows: Sequence[TensorRow]) -> dict[str, TensorRow]:
    return {row.name: row for row in rows}


def _cells(name: str, one: TensorRow | None, other: TensorRow | None, tokens: int) -> dict[str, str]:
    """By the column's name; statistics are the selected one's less the marked one's."""
    if one is None or other is None:
        there = one or other
        assert there is not None
        where = "marked only" if one is not None else "selected only"
        return {"tensor": plain(name), "block": str(there.after_block), "shape": where}
    differences = {key: _difference(getattr(one, key), getattr(other, key)) for key in ("min", "max", "mean", "std")}
    found = norms(one, other, tokens)
    return {
        "tensor": plain(name),
        "block": _both(str(one.after_block), str(other.after_block)),
        "shape": _both(shape(one), shape(other)),
        **differences,
        "nan+inf": _both(str(one.nan + one.inf), str(other.nan + other.inf)),
        "norms, mean": _percent(found.mean),
        "most": _percent(found.most),
    }


def _both(one: str, other: str) -> str:
    arrow = "->" if glyphs.is_ascii() else "→"
    return one if one == other else f"{one} {arrow} {other}"


def _difference(one: float | None, other: float | None) -> str:
    if not _finite(one) or not _finite(other):
        return "-"
    assert one is not None
    assert other is not None
    return "0" if one == other else f"{other - one:+.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{number(100 * value, 3)} %"


def _finite(value: float | None) -> bool:
    return value is not None and value - value == 0
