"""The tensor table's columns: which fit, and what stands in their cells."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from workbench.probe.report import ProbeReport, TensorRow
from workbench.render.text import number
from workbench.tui import glyphs
from workbench.tui.widgets.table import Column, Row

SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
GAP = 2
"""Blanks that a table puts around a cell."""


class Fact(NamedTuple):
    """A column of the tensor table; the least `rank` is the last to go when there is no room."""

    column: Column
    rank: int


FACTS = (
    Fact(Column("tensor", 7), 0),
    Fact(Column("block", 5, right=True), 1),
    Fact(Column("taken", 11), 8),
    Fact(Column("shape", 12), 7),
    Fact(Column("dtype", 5), 10),
    Fact(Column("min", 8, right=True), 5),
    Fact(Column("max", 8, right=True), 6),
    Fact(Column("mean", 8, right=True), 4),
    Fact(Column("std", 8, right=True), 2),
    Fact(Column("zeros", 6, right=True), 9),
    Fact(Column("nan", 3, right=True), 3),
    Fact(Column("inf", 3, right=True), 3),
    Fact(Column("reference", 22), 1),
)


def columns_for(room: int, reference: bool) -> tuple[Column, ...]:
    """As many columns as fit, the most telling ones."""
    facts = [fact for fact in FACTS if reference or fact.column.label != "reference"]
    kept: list[Fact] = []
    for fact in sorted(facts, key=lambda one: one.rank):
        if kept and sum((one.column.width or 0) + GAP for one in (*kept, fact)) > room:
            break
        kept.append(fact)
    return tuple(fact.column for fact in facts if fact in kept)


def rows_of(report: ProbeReport, columns: Sequence[Column]) -> list[Row]:
    """A row a tensor. Its key is its place, since names come from outside and may be alike."""
    checked = {row.get("name"): row for row in (report.reference or {}).get("tensors", ())}
    return [
        Row(
            str(at),
            tuple(_cell(row, column.label, checked.get(row.name)) for column in columns),
            _data(row, checked.get(row.name)),
        )
        for at, row in enumerate(report.tensors)
    ]


def _data(row: TensorRow, check: dict[str, Any] | None) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in row.__struct_fields__ if name not in ("histogram", "token_norms")}
    return {name: _json(value) for name, value in fields.items()} | ({"reference": check} if check else {})


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and value - value != 0 else value


def _cell(row: TensorRow, label: str, check: dict[str, Any] | None) -> str | Text:
    if label == "reference":
        return checked_words(check) if check else Text("-", style="dim")
    if label in ("nan", "inf"):
        count = getattr(row, label)
        return Text(str(count), style="bold red") if count else "0"
    if label in ("min", "max", "mean", "std"):
        return few(getattr(row, label))
    return {
        "tensor": row.name,
        "block": str(row.after_block) if row.after_block >= 0 else "-",
        "taken": taken(row),
        "shape": shape(row),
        "dtype": SHORT.get(row.dtype, row.dtype),
        "zeros": zeros(row),
    }[label]


def few(value: float | None) -> str:
    """A value in eight columns."""
    if value is not None and 1e4 <= abs(value) < 1e6:
        return f"{value:.0f}"
    written = [number(value, digits) for digits in (4, 3, 2, 1)]
    return next((text for text in written if len(text) <= 8), written[-1])


def shape(row: TensorRow) -> str:
    """As torch writes it."""
    return f"[{', '.join(map(str, row.shape))}]"


def taken(row: TensorRow) -> str:
    """Where in the model it was taken."""
    if row.captured_entering is not None:
        return f"entering {row.captured_entering}"
    return f"{row.norm}-norm" if row.norm else "-"


def zeros(row: TensorRow) -> str:
    """The share of zeros, in six columns."""
    total = 1
    for length in row.shape:
        total *= length
    share = 100 * row.zeros / max(1, total)
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.2g} %" if share < 1 else f"{share:.3g} %"


def checked_words(check: dict[str, Any]) -> Text:
    """Verdict of the reference, the block that fits best, and the errors against its neighbours."""
    ok = check.get("verdict") == "ok"
    best, claimed = str(check.get("best", "-")).removeprefix("block "), check.get("claimed")
    mark = Text().append_text(glyphs.sign("good" if ok else "bad", best if ok else f"{check.get('verdict')}: {best}"))
    near = []
    for key, step in (("error_before", -1), ("error_after", 1)):
        if isinstance(claimed, int) and (error := _finite(check.get(key))) is not None:
            near.append(f"{claimed + step}: {number(error, 2).removeprefix('0')}")
    return mark.append(f" ({' '.join(near)})" if ok and near else "", style="dim")


def _finite(value: Any) -> float | None:
    return value if isinstance(value, int | float) and value - value == 0 else None
