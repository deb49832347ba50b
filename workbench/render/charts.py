"""Charts as plain text without colours: lines through plotext, bars, histograms and intervals by hand.

The only module that touches plotext. plotext 6.1 aborts the whole process on a NaN and refuses infinities, so that
what is not finite never gets there; its figure is one object for the process, so all of this is for one thread. Every
function takes any numbers and any size, keeps within the size, and gives an empty text where nothing can be said.
"""

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.render.text import ASCII_BARS, BARS, number

NARROWEST = 60
"""Columns below which `chart` says nothing."""
LEAST_COLUMNS, LEAST_LINES = 16, 4
"""Room below which a line plot is axes only."""
LARGEST = 1e100
MARKERS = (("braille", "⠒"), ("x", "x"), ("o", "o"), ("+", "+"), ("#", "#"), ("@", "@"), ("%", "%"), ("=", "="))
"""What a series is drawn with, and how the legend shows it."""
ASCII_MARKERS = "*xo+#@%="
BOX = str.maketrans({"─": "-", "│": "|", **dict.fromkeys("┌┐└┘├┤┬┴┼", "+")})
BLOCKS = " ▏▎▍▌▋▊▉█"

Number = float | int | None
Points = Sequence[tuple[Number, Number]]


def chart(points: Points, title: str, width: int, height: int = 12) -> str:
    """One line through `points`; empty without plotext 6, with no two points, or without room. Gaps are bridged."""
    kept = [point for run in _runs(points) for point in run]
    if len(kept) < 2 or width < NARROWEST:
        return ""
    return "\n".join(_plot([(kept, "hd")], width, height, title=title))


def lines(
    series: Sequence[tuple[str, Points]],
    width: int,
    height: int,
    title: str = "",
    *,
    ascii: bool = False,
    y_from_zero: bool = False,
) -> str:
    """Several named series in one plot, each with a marker of its own, broken where a value is not finite.

    Args:
        series: Name and points (x, y); None and what is not finite are gaps.
        width: Columns, which no line exceeds.
        height: Lines, with the one that holds title and names.
        title: What is plotted; may come from outside.
        ascii: Draw with ASCII only.
        y_from_zero: Let the vertical axis include zero.
    """
    runs, names = [], []
    for at, (name, points) in enumerate(series):
        marker, shown = (ASCII_MARKERS[at % 8], ASCII_MARKERS[at % 8]) if ascii else MARKERS[at % 8]
        found = _runs(_thinned(points, 4 * max(width, 1)))
        runs += [(run, marker) for run in found]
        names += [f"{shown} {name}"] if name and found and len(series) > 1 else []
    head = [fit("  ".join(part for part in (title, *names) if part), width, ascii)] if title or names else []
    if not runs or width < LEAST_COLUMNS or height - len(head) < LEAST_LINES:
        return ""
    drawn = _plot(runs, width, height - len(head), floor=0.0 if y_from_zero else None)
    return _ended([*head, *drawn], ascii) if drawn else ""


def bars(rows: Sequence[tuple[str, Number]], width: int, height: int, title: str = "", *, ascii: bool = False) -> str:
    """One horizontal bar a row, from zero, with its label and its number; rows without room are counted."""
    head = [fit(title, width, ascii)] if title else []
    room = height - len(head)
    if not rows or width < LEAST_COLUMNS or room < 1:
        return ""
    shown = rows if len(rows) <= room else rows[: room - 1]
    numbers = [number(_number(value), 4) for _, value in shown]
    for_label, room, for_numbers = _shares([name for name, _ in shown], numbers, width, ascii)
    top = max((abs(v) for _, value in shown if (v := _finite(value)) is not None), default=0.0)
    drawn = [
        f"{fit(name, for_label, ascii)} {_bar(value, top, room, ascii)} {text:>{for_numbers}}"
        for (name, value), text in zip(shown, numbers, strict=True)
    ]
    more = [fit(f"and {len(rows) - len(shown)} more", width, ascii)] if len(shown) < len(rows) else []
    return _ended([*head, *drawn, *more], ascii)


def histogram(
    counts: Sequence[Number],
    width: int,
    height: int,
    title: str = "",
    *,
    ascii: bool = False,
    largest: Number = None,
) -> str:
    """Counts as columns of logarithmic height over a symmetric logarithmic axis, as `probes.stats` counts them.

    Args:
        counts: Values a bin, as many for each sign, zeros in the first bin of the right half.
        width: Columns.
        height: Lines, with the one below that labels the axis.
        title: A line above.
        ascii: Draw with ASCII only.
        largest: Greatest magnitude of all values; its power of two is the outer edge. Not labelled without it.
    """
    head = [fit(title, width, ascii)] if title else []
    room, each = height - len(head) - 1, width // max(1, len(counts))
    heights = [math.log2(1 + max(0.0, _finite(count) or 0.0)) for count in counts]
    top = max(heights, default=0.0)
    if not top or each < 1 or room < 1:
        return ""
    drawn = ["".join(_column(value / top * room, level, ascii) * each for value in heights) for level in range(room)]
    return _ended([*head, *reversed(drawn), _sides(each * len(counts), largest)], ascii)


def interval_cells(
    rows: Iterable[tuple[Number, Number, Number]], width: int, *, centre: float = 0.0, ascii: bool = False
) -> list[str]:
    """An interval a row on one common scale, such as ``├─●─┤  │``; the upright line is at `centre`.

    A row is (low, mid, high); without a finite `mid` only the line is drawn, and an end that is not finite is drawn
    up to the edge of the scale.
    """
    known = [tuple(_finite(value) for value in row) for row in rows]
    scale = [abs(value - centre) for row in known for value in row if value is not None and row[1] is not None]
    reach = max(scale, default=0.0) or 1.0
    return [_interval(row, width, centre, reach, ascii) for row in known]


def intervals(
    rows: Sequence[tuple[str, Number, Number, Number]],
    width: int,
    height: int,
    title: str = "",
    *,
    ascii: bool = False,
    centre: float = 0.0,
) -> str:
    """`interval_cells` with labels before them and numbers after them; rows without room are counted."""
    head = [fit(title, width, ascii)] if title else []
    room = height - len(head)
    if not rows or room < 1 or width < LEAST_COLUMNS:
        return ""
    shown = rows if len(rows) <= room else rows[: room - 1]
    numbers = [number(_number(mid), 4) for _, _, mid, _ in shown]
    for_label, middle, for_numbers = _shares([row[0] for row in shown], numbers, width, ascii)
    drawn = interval_cells([row[1:] for row in shown], middle, centre=centre, ascii=ascii)
    found = [
        f"{fit(row[0], for_label, ascii)} {cell} {text:>{for_numbers}}"
        for row, cell, text in zip(shown, drawn, numbers, strict=True)
    ]
    more = [fit(f"and {len(rows) - len(shown)} more", width, ascii)] if len(shown) < len(rows) else []
    return _ended([*head, *found, *more], ascii)


def plain(text: str, ascii: bool = False) -> str:
    """Words from outside on one line, harmless to a terminal."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown.encode("ascii", "backslashreplace").decode() if ascii else shown


def cells(text: str) -> int:
    """Columns that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, width: int, ascii: bool = False) -> str:
    """Words from outside in exactly so many columns: cut, or filled with blanks."""
    from rich.cells import set_cell_size

    shown = plain(text, ascii)
    if cells(shown) > width > 1:
        shown = set_cell_size(shown, width - 1) + ("~" if ascii else "…")
    return set_cell_size(shown, max(0, width))


def _finite(value: Any) -> float | None:
    """A number that can be drawn; None for what is none, not finite, or beyond all scales."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        return None
    return 0.0 if abs(value) < 1 / LARGEST else float(value)


def _number(value: Any) -> float | None:
    """A number that can be written, if not drawn."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """The points between gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        across, up = _finite(x), _finite(y)
        if across is not None and up is not None:
            found[-1].append((across, up))
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


def _thinned(points: Points, most: int) -> Points:
    """So many points or few more: of each stretch the lowest and the highest, and a gap where it is all gap."""
    if len(points) <= most:
        return points
    step = math.ceil(2 * len(points) / most)
    kept: list[tuple[Number, Number]] = []
    for start in range(0, len(points), step):
        stretch = points[start : start + step]
        known = [at for at, (x, y) in enumerate(stretch) if _finite(x) is not None and _finite(y) is not None]
        if not known:
            kept.append(stretch[0])
            continue
        heights = [(_finite(stretch[at][1]) or 0.0, at) for at in known]
        kept += [stretch[at] for at in sorted({min(heights)[1], max(heights)[1]})]
    return kept


def _plot(
    runs: Sequence[tuple[list[tuple[float, float]], str]],
    width: int,
    height: int,
    title: str = "",
    floor: float | None = None,
) -> list[str]:
    """Finite points through plotext; no line where it is not installed, or too old."""
    try:
        plotext: Any = importlib.import_module("plotext")
        figure = plotext.figure
        plotext.terminal.limit(False, False)  # the size is cut to the real terminal's otherwise
    except (ImportError, AttributeError):
        return []
    figure.clear()
    figure.plot_size(width, height)
    if title:
        figure.title(title)
    _axes(figure, [point for run, _ in runs for point in run], width, height, floor)
    for run, marker in runs:
        figure.draw(figure.signal([x for x, _ in run], [y for _, y in run], marker=marker).lines())
    text: str = figure.build().string(colorless=True)
    return [line.rstrip() for line in text.splitlines()]


def _axes(figure: Any, points: Sequence[tuple[float, float]], width: int, height: int, floor: float | None) -> None:
    """Limits, and ticks at round numbers."""
    for axis, side, values, count in (
        ("x", "lower", [x for x, _ in points], min(8, width // 12)),
        ("y", "left", [y for _, y in points] + ([] if floor is None else [floor]), min(6, (height - 1) // 2)),
    ):
        low, high = min(values), max(values)
        ruler = figure.ruler(axis, side)
        spread = 0.0 if high > low else max(0.5, abs(low) / 2**20)  # plotext complains of a huge number alone
        ruler.lim(low - spread, high + spread)
        places = _ticks(low, high, max(1, count))
        ruler.ticks(places, _tick_labels(places))


def _ticks(low: float, high: float, count: int) -> list[float]:
    """About so many multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    if raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step)
    found = [(first + at) * step for at in range(count + 2)]
    return [place for place in found if low <= place <= high] or [low, high]


def _tick_labels(places: Sequence[float]) -> list[str]:
    """All in one unit, so that they can be compared."""
    most = max(map(abs, places))
    unit, name = next((pair for pair in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if pair[0] <= most < 1e15), (1.0, ""))
    unit = 1e3 if name == "k" else unit
    digits = 6 if 1e-3 <= most < 1e15 else 3
    return [number(place / unit, digits) + (name if place else "") for place in places]


def _shares(names: Sequence[str], numbers: Sequence[str], width: int, ascii: bool) -> tuple[int, int, int]:
    """Columns for labels, drawing and numbers, with one between them."""
    for_numbers = max(map(len, numbers), default=0)
    for_label = min(max((cells(plain(name, ascii)) for name in names), default=0), width // 3)
    for_label = max(0, min(for_label, width - for_numbers - 3))
    return for_label, max(1, width - for_label - for_numbers - 2), for_numbers


def _bar(value: Any, top: float, room: int, ascii: bool) -> str:
    known = _finite(value)
    if known is None:
        return ("!" if _number(value) is not None else "").ljust(room)
    eighths = round(abs(known) / (top or 1.0) * room * 8)
    if ascii:
        return ("#" * round(eighths / 8)).ljust(room)
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8].strip()).ljust(room)


def _column(height: float, level: int, ascii: bool) -> str:
    """What a column of so many lines shows at one of them, counted from below; a low one is still seen."""
    share = height - level
    if level == 0 and height > 0:
        share = max(share, 1 / 8)
    if share <= 0:
        return " "
    glyphs = ASCII_BARS if ascii else BARS
    return glyphs[min(len(glyphs), max(1, round(share * len(glyphs)))) - 1]


def _sides(width: int, largest: Any) -> str:
    """The axis below a histogram: its outer edges and zero."""
    known = _finite(largest)
    edge = number(2.0 ** math.frexp(known)[1], 4) if known else ""
    left, right = (f"-{edge}", f"{edge}") if edge else ("-", "+")
    half = width // 2
    line = f"{left:<{half}}"[:half] + f"0{right:>{width - half - 1}}"
    return line[:width]


def _interval(row: tuple[Number, ...], width: int, centre: float, reach: float, ascii: bool) -> str:
    if width < 1:
        return ""
    line = [" "] * width

    def at(value: float) -> int:
        return max(0, min(width - 1, round((value - centre) / reach * (width - 1) / 2 + (width - 1) / 2)))

    line[at(centre)] = "|" if ascii else "│"
    low, mid, high = row
    if mid is None:
        return "".join(line)
    start, end = (at(low) if low is not None else 0), (at(high) if high is not None else width - 1)
    for place in range(min(start, end), max(start, end) + 1):
        line[place] = "-" if ascii else "─"
    left, right = "||" if ascii else "├┤"
    line[start], line[end] = left if low is not None else "<", right if high is not None else ">"
    line[at(mid)] = "o" if ascii else "●"
    return "".join(line)


def _ended(found: Sequence[str], ascii: bool) -> str:
    """The lines as one text; box characters of plotext become ASCII where only that may be drawn."""
    text = "\n".join(line.rstrip() for line in found)
    return text.translate(BOX) if ascii else text
