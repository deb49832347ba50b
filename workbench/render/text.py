"""Small pieces of text shared by all tables: numbers, sizes, bars, and rich tables as plain strings."""

import io
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
WIDE = 160
"""Columns assumed when stdout is no terminal, so that nothing is cut in a pipe or a file."""


def columns() -> int:
    """Width to draw for: the terminal's, or `WIDE` when stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE


def speaks_unicode() -> bool:
    """Whether stdout can carry block characters; decided by its encoding, not by its name."""
    try:
        (BARS + "✓✗").encode(_encoding())
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _encoding() -> str:
    """Of stdout; inside the app something stands in for it that has none, and the app asks its own settings."""
    return getattr(sys.stdout, "encoding", "utf-8") or "ascii"


def bars(counts: tuple[int, ...]) -> str:
    """A histogram in one line: logarithmic height, blank for an empty bin."""
    glyphs = BARS if speaks_unicode() else ASCII_BARS
    top = max((count.bit_length() for count in counts), default=0)
    return "".join(" " if not c else glyphs[(c.bit_length() * len(glyphs) - 1) // (top + 1)] for c in counts)


def number(value: float | None, digits: int = 6) -> str:
    """A number with so many significant digits; a dash for what does not exist."""
    return "-" if value is None else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short(count: float, gap: str = "") -> str:
    """A count with three digits or so and a decimal unit, such as 38.1k."""
    for unit in ("", "k", "M", "G"):
        if abs(count) < 999.5 and not unit:
            return number(count, 3)
        if abs(count) < 999.95:
            return f"{count:.1f}{gap}{unit}"
        count /= 1000
    return f"{count:.1f}{gap}T"


def room(count: float, of: float | None = None) -> str:
    """Bytes of memory or disk with a binary unit, `of` so many if given: 3.1/64 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    largest = max(count, of or 0)
    power = next((n for n in range(len(units) - 1) if largest < 1024 ** (n + 1)), len(units) - 1)
    shown = [_few_digits(value / 1024**power) for value in (count, of) if value is not None]
    return f"{'/'.join(shown)} {units[power]}"


def _few_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0")


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def harmless(text: str) -> str:
    """Text from outside that cannot steer the terminal, break a line or fail to be encoded: what could is escaped."""
    seen = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    encoding = _encoding()
    return seen.encode(encoding, "backslashreplace").decode(encoding)


def verdict_mark(ok: bool) -> str:
    """Word and glyph, so that colour is never needed."""
    if speaks_unicode():
        return "✓" if ok else "✗"
    return "ok" if ok else "WRONG"


def table_text(table: "Table", width: int) -> str:
    """A rich table as plain text without colour codes, trailing blanks removed."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, no_color=True, color_system=None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def plain_table(title: str, header: list[str], rows: list[list[str]], width: int = WIDE, left: int = 1) -> str:
    """A titled table whose first `left` columns are text and the others right-aligned; cells are never markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    edge = box.SIMPLE_HEAD if speaks_unicode() else box.ASCII2
    table = Table(box=edge, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(Text(name), justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return (f"{title}\n" if title else "") + table_text(table, width)
