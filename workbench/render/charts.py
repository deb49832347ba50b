"""Line charts as plain text, through plotext where it is installed."""

import importlib
from collections.abc import Sequence
from typing import Any

NARROWEST = 60
"""Columns below which a chart says nothing."""


def chart(points: Sequence[tuple[float, float]], title: str, width: int, height: int = 12) -> str:
    """One line through `points`, without colours; empty without plotext 6, with no two points, or without room.

    What is not finite is left out: plotext 6.1 aborts the whole process on a NaN. Not for several threads.
    """
    kept = [point for point in points if all(abs(value) < 1e100 for value in point)]  # false for a NaN
    if len(kept) < 2 or width < NARROWEST:
        return ""
    try:
        plotext: Any = importlib.import_module("plotext")
        figure = plotext.figure
        plotext.terminal.limit(False, False)  # the size is cut to the real terminal's otherwise
    except (ImportError, AttributeError):
        return ""
    figure.clear()
    figure.plot_size(width, height)
    figure.title(title)
    figure.draw(figure.signal([x for x, _ in kept], [y for _, y in kept]).lines())
    text: str = figure.build().string(colorless=True)
    return "\n".join(line.rstrip() for line in text.splitlines())
