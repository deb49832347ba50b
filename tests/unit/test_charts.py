"""Charts as text: whatever the numbers and the size, nothing breaks, and they are told apart without colour."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from workbench.render import charts

ROOT = Path(__file__).parents[2]
NAN, INF = math.nan, math.inf
NASTY = (NAN, INF, -INF, None, 1e308, -1e308, 1e-320, -0.0, 10**400, 5, True)
WIDE = [(float(x), 100 + 10 * math.sin(x / 5)) for x in range(60)]
OTHER = [(float(x), 95 + x / 3) for x in range(60)]

FUZZ = """
import random
import sys
from workbench.render import charts
nasty = [float("nan"), float("inf"), -float("inf"), None, 1e308, -1e308, 1e-320, 1e90, -1e-90, 0.0, -0.0, 10**400]
random.seed(7)

def value(kind):
    if kind == 0:
        return random.choice(nasty)
    if kind == 1:
        return random.gauss(0, 1) * 10 ** random.randint(-90, 90)
    return 4.0 if kind == 2 else random.choice([random.random(), random.choice(nasty)])

def points():
    kind = random.randint(0, 3)
    return [(random.choice([at, value(kind)]), value(kind)) for at in range(random.choice([0, 1, 2, 3, 40, 700]))]

for _ in range(300):
    width, height = random.choice([0, 1, 2, 7, 16, 17, 40, 90, 160]), random.choice([0, 1, 2, 3, 4, 5, 9, 30])
    ascii, title = random.random() < 0.5, random.choice(["", "t", "\\x1b[31m[/red]\\u202e漢"])
    drawn = [
        charts.lines([("a", points()), ("b", points()), ("", points())], width, height, title, ascii=ascii,
                     y_from_zero=random.random() < 0.5),
        charts.bars([(title, y) for _, y in points()], width, height, title, ascii=ascii),
        charts.histogram([y for _, y in points()], width, height, title, ascii=ascii, largest=value(0)),
        charts.intervals([(title, x, y, value(1)) for x, y in points()], width, height, title, ascii=ascii),
    ]
    charts.chart(points(), "t", width, height)
    for text in drawn:
        found = text.split("\\n") if text else []
        assert len(found) <= height, (width, height, found)
        assert all(charts.cells(line) <= width for line in found), (width, height, found)
        assert not ascii or text.isascii(), text
        assert "\\x1b" not in text
print("whole")
"""


def test_nothing_breaks_a_chart() -> None:
    # In a process of its own: a number that plotext does not like would abort this one.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FUZZ], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


@pytest.mark.parametrize("alone", [0.0, 3.0, 1e16, -3e17, 1e90])
def test_a_number_alone_is_drawn_without_a_word(alone: float, capfd: pytest.CaptureFixture[str]) -> None:
    assert charts.lines([("a", [(alone, alone)])], 60, 12, "t").count("\n") > 5
    assert capfd.readouterr() == ("", "")


def test_plotext_gets_no_number_that_it_aborts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    class Anything:
        def __getattr__(self, name: str) -> object:
            return self

        def __call__(self, *args: object, **how: object) -> "Anything":
            for arg in args:
                seen.extend(arg if isinstance(arg, list) else [])
            return self

        def splitlines(self) -> list[str]:
            return ["drawn"]

    monkeypatch.setitem(sys.modules, "plotext", Anything())
    points = [(1.0, 1.0), *((2.0, bad) for bad in NASTY), *((bad, 3.0) for bad in NASTY), (4.0, 2.0)]
    assert "drawn" in charts.lines([("a", points)], 80, 10)
    assert charts.chart(points, "t", 80)
    assert 1.0 in seen
    numbers = [value for value in seen if not isinstance(value, str)]
    assert all(isinstance(value, float) and abs(value) <= 1e100 for value in numbers)


def test_series_are_told_apart_without_colour() -> None:
    drawn = charts.lines([("tok/s", WIDE), ("latency", OTHER)], 80, 12, "speed", ascii=True)
    head, *rest = drawn.splitlines()
    assert head == "speed  * tok/s  x latency"
    assert drawn.isascii()
    assert len(rest) == 11
    assert "*" in "".join(rest)
    assert "x" in "".join(rest)
    rich = charts.lines([("tok/s", WIDE), ("latency", OTHER)], 80, 12, "speed")
    assert rich.splitlines()[0] == "speed  ⠒ tok/s  x latency"


def test_a_line_is_broken_at_a_gap() -> None:
    whole = [(float(x), 5.0) for x in range(40)]
    gap = [(x, NAN if 10 < x < 30 else y) for x, y in whole]
    drawn = {name: charts.lines([("", points)], 60, 8, ascii=True) for name, points in (("w", whole), ("g", gap))}
    row = {name: next(line for line in text.splitlines() if "*" in line) for name, text in drawn.items()}
    assert "   " not in row["w"].strip()
    assert "*          " in row["g"]


def test_ten_thousand_points_keep_their_peak() -> None:
    points = [(float(x), 1000.0 if x == 5003 else 1.0) for x in range(10_000)]
    drawn = charts.lines([("", points)], 80, 10, ascii=True)
    assert drawn.splitlines()[1].count("*") == 1
    assert drawn.splitlines()[-3].count("*") > 70


def test_an_axis_from_zero() -> None:
    points = [(0.0, 500.0), (1.0, 510.0)]
    ticks = {
        zero: [
            line.split("+")[0].strip()
            for line in charts.lines([("", points)], 60, 12, ascii=True, y_from_zero=zero).splitlines()
        ]
        for zero in (False, True)
    }
    assert "0" in ticks[True]
    assert "0" not in ticks[False]
    assert "504" in ticks[False]


def test_ticks_are_round_and_share_a_unit() -> None:
    drawn = charts.lines([("", [(0.0, 1_000.0), (3600.0, 38_900.0)])], 60, 12, ascii=True)
    labels = [line.split("+")[0].strip() for line in drawn.splitlines()]
    assert [label for label in labels if label.endswith("k")] == ["30k", "20k", "10k"]
    assert drawn.splitlines()[-1].split() == ["0", "1000", "2000", "3000"]


def test_bars_are_to_scale() -> None:
    drawn = charts.bars([("half", 50.0), ("all", 100.0), ("none", None), ("bad", NAN)], 40, 5, "title", ascii=True)
    title, half, all_, none, bad = drawn.splitlines()
    assert title == "title"
    assert abs(all_.count("#") - 2 * half.count("#")) <= 1
    assert all_.count("#") > 20
    assert half.endswith(" 50")
    assert none.split() == ["none", "-"]
    assert bad.split() == ["bad", "!", "nan"]


def test_more_bars_than_lines_are_counted() -> None:
    drawn = charts.bars([(str(n), float(n)) for n in range(10)], 40, 4)
    assert drawn.splitlines()[-1] == "and 7 more"


def test_a_histogram_shows_one_value_beside_a_million() -> None:
    counts = [0] * 24
    counts[2], counts[12] = 1, 1_000_000
    drawn = charts.histogram(counts, 48, 8, largest=760.0, ascii=True).splitlines()
    assert len(drawn) == 8
    assert drawn[-1].split() == ["-1024", "0", "1024"]  # 760 lies below 2^10
    assert [line[4:6].strip() != "" for line in drawn[:-1]] == [False] * 6 + [True]
    assert all(line[24:26] == "@@" for line in drawn[:-1])
    assert charts.histogram([0] * 24, 48, 8) == ""


def test_intervals_stand_where_they_belong() -> None:
    rows = [(-10.0, -8.0, -6.0), (None, None, None), (1.0, 5.0, INF)]
    left, none, right = charts.interval_cells(rows, 41)
    assert left.index("├") == 0
    assert left.index("●") == 4
    assert left.index("┤") == 8
    assert left.index("│") == none.index("│") == 20
    assert none.strip() == "│"
    assert right.rstrip().endswith(">")
    assert all(len(cell) == 41 for cell in (left, none, right))
    table = charts.intervals([("no custom AR", -13.0, -12.3, -11.6)], 60, 3, "t", ascii=True)
    assert table.splitlines()[1].startswith("no custom AR |")
    assert table.endswith("-12.3")


@pytest.mark.parametrize("ascii", [True, False])
def test_words_fill_exactly_their_columns(ascii: bool) -> None:
    for text in ("", "short", "漢字漢字漢字", "\x1b[31m" * 9, "🚀" * 9):
        assert cell_len(charts.fit(text, 7, ascii)) == 7


def test_without_plotext(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert charts.lines([("a", WIDE)], 80, 10) == ""
    assert charts.bars([("a", 1.0)], 40, 2) != ""
