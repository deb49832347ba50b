"""A previewed row as text: what is trained on in colour on a terminal, in brackets elsewhere."""

import os
import sys

from workbench.extract.dataset import Dataset, Piece, Preview, Tally
from workbench.render.text import speaks_unicode

GREEN, DIM, PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"
UNSEEN = {ord("\x1b"): "\\x1b", ord("\r"): "\\r"}
"""A data set must not steer the terminal that it is shown on."""


def in_colour() -> bool:
    """Whether stdout takes colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def preview_text(row: Preview, colour: bool) -> str:
    """One row under a line of facts."""
    if row.reason:
        return f"row {row.index}: refused, {row.reason}"
    share = row.trained / max(1, row.tokens)
    cut = ", cut to --max-seq-len" if row.truncated else ""
    return f"row {row.index}: {row.tokens} tokens, {row.trained} trained on ({share:.0%}){cut}\n" + "".join(
        _piece(piece, colour) for piece in row.pieces
    )


def _piece(piece: Piece, colour: bool) -> str:
    text = piece.text.translate(UNSEEN)
    if colour:
        return f"{GREEN if piece.trained else DIM}{text}{PLAIN}"
    opening, closing = ("⟦", "⟧") if speaks_unicode() else ("[[", "]]")
    return f"{opening}{text}{closing}" if piece.trained else text


def dataset_text(data: Dataset) -> str:
    """One line about a data set."""
    return f"{data.settings.path}: {data.rows:,} rows of {data.form}; loss mask from {data.mask}"


def tally_text(tally: Tally) -> list[str]:
    """Lines about the rows that were looked at."""
    seen = tally.samples + sum(tally.refused.values())
    lines = [
        f"first {seen} rows: {tally.tokens:,} tokens, {tally.coverage:.1%} trained on, "
        f"{tally.truncated} cut, {sum(tally.refused.values())} refused"
    ]
    for kind, count in tally.refused.most_common():
        example = tally.examples[kind]
        lines.append(f"  {count} refused, such as row {example.index}: {example.reason}")
    return lines
