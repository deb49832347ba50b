"""A unified difference as rows with line numbers, one under the other or in two columns."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

from workbench.tui import glyphs

Sign = Literal[" ", "+", "-", "@"]
STYLES: dict[Sign, str] = {" ": "", "+": "green", "-": "red", "@": "cyan dim"}
NUMBER = 5
"""Columns of a line number."""
_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class DiffRow(NamedTuple):
    """A line of either side, or of both for a blank sign; `@` begins a part of the file."""

    sign: Sign
    old: int | None
    new: int | None
    text: str


Pair = tuple[DiffRow | None, DiffRow | None]


def parse(diff: str) -> list[DiffRow]:
    """The rows of one file's unified difference, as `difflib` writes it. The header's counts say where a part ends."""
    rows: list[DiffRow] = []
    old = new = old_end = new_end = 0
    for line in diff.split("\n"):
        header = _HEADER.match(line) if (old, new) == (old_end, new_end) else None
        if header:
            old, new = int(header[1]), int(header[3])
            old_end, new_end = old + int(header[2] or 1), new + int(header[4] or 1)
            rows.append(DiffRow("@", old, new, line))
        elif (old, new) != (old_end, new_end) and (row := _row(line, old, new)) is not None:
            rows.append(row)
            old, new = old + (row.old is not None), new + (row.new is not None)
    return rows


def _row(line: str, old: int, new: int) -> DiffRow | None:
    text = line[1:].expandtabs(4)
    if line.startswith("+"):
        return DiffRow("+", None, new, text)
    if line.startswith("-"):
        return DiffRow("-", old, None, text)
    return DiffRow(" ", old, new, text) if line.startswith(" ") else None


def paired(rows: Sequence[DiffRow]) -> Iterator[Pair]:
    """Left and right beside each other; what was replaced stands beside what replaces it."""
    gone: list[DiffRow] = []
    come: list[DiffRow] = []
    for row in rows:
        if row.sign == "-":
            if come:
                yield from _flush(gone, come)
            gone.append(row)
        elif row.sign == "+":
            come.append(row)
        else:
            yield from _flush(gone, come)
            yield row, row
    yield from _flush(gone, come)


def _flush(gone: list[DiffRow], come: list[DiffRow]) -> Iterator[Pair]:
    for number in range(max(len(gone), len(come))):
        yield (gone[number] if number < len(gone) else None, come[number] if number < len(come) else None)
    gone.clear()
    come.clear()


def unified(rows: Sequence[DiffRow]) -> Text:
    """Both numbers, the sign, the line."""
    text = Text(no_wrap=True)
    for number, row in enumerate(rows):
        text.append("\n" if number else "")
        if row.sign == "@":
            text.append(glyphs.plain(row.text), style=STYLES["@"])
            continue
        text.append(f"{_number(row.old)} {_number(row.new)} ", style="dim")
        text.append(f"{row.sign} {glyphs.plain(row.text)}", style=STYLES[row.sign])
    return text


def side_by_side(rows: Sequence[DiffRow], width: int) -> tuple[Text, list[Pair]]:
    """The original at the left, the edited file at the right, each cut to half the width; and the pairs drawn."""
    half = (width - 3) // 2
    pairs = list(paired(rows))
    bar = " | " if glyphs.is_ascii() else " │ "
    text = Text(no_wrap=True)
    for number, (left, right) in enumerate(pairs):
        text.append("\n" if number else "")
        if left is not None and left.sign == "@":
            text.append(set_cell_size(glyphs.plain(left.text), width), style=STYLES["@"])
            continue
        _half(text, left, left.old if left else None, half)
        text.append(bar, style="dim")
        _half(text, right, right.new if right else None, half)
    return text, pairs


def _half(text: Text, row: DiffRow | None, number: int | None, width: int) -> None:
    if row is None:
        text.append(" " * width)
        return
    text.append(f"{_number(number)} ", style="dim")
    shown = set_cell_size(f"{row.sign} {glyphs.plain(row.text)}", max(0, width - NUMBER - 1))
    text.append(shown, style=STYLES[row.sign])


def _number(value: int | None) -> str:
    return f"{'' if value is None else value:>{NUMBER}}"
