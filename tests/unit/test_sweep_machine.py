"""What the sweep's real machine makes of a server's answers, and how a sweep is shown."""

import json

import pytest

from bench.sweep.design import Start
from bench.sweep.machine import greedy_of, read_check
from bench.sweep.records import BudgetSpent, Confirming, Finished, Measured, Row, StartRecord, Table
from bench.sweep.stats import Decision
from workbench.errors import ServerError
from workbench.render.sweep import event_text, interval_chart


def test_runner_up_and_margin_come_from_the_top_two() -> None:
    about = {
        "output_token_logprobs": [[-0.1, 7, "a"], [-0.7, 9, "b"]],
        "output_top_logprobs": [[[-0.1, 7, "a"], [-2.5, 3, "c"]], [[-0.7, 9, "b"]]],
    }
    greedy = greedy_of("p", about)
    assert (greedy.tokens, greedy.second) == ((7, 9), (3, None))
    assert greedy.margins[0] == pytest.approx(2.4)
    assert greedy.margins[1] is None
    assert greedy_of("p", {"output_token_logprobs": [[-0.1, 7, "a"]]}).second == (None,)


def test_the_all_reduce_check_is_read_from_its_last_line() -> None:
    said = "a library's word\n" + json.dumps({"sizes": [1024], "wrong": [[1024, 3]]}) + "\n"
    assert read_check(0, said, "").wrong == ((1024, 3),)
    with pytest.raises(ServerError, match=r"exit code 1\): boom"):
        read_check(1, "", "trace\nboom\n")


def row(name: str, low: float, ratio: float, high: float) -> Row:
    decision = Decision(word="faster" if low > 1 else "same", blocks=5, ratio=ratio, low=low, high=high)
    return Row(variant=name, settings="--x", verdict=decision.word, decisions={"decode_tok_s": decision})


def table(*rows: Row) -> Table:
    return Table(
        rows=rows,
        margin=0.02,
        baseline={"decode_tok_s": 63.6},
        drift=-0.01,
        invalid=("screen-1/x: heat",),
        complete=False,
    )


def test_intervals_are_drawn_to_scale_without_colour() -> None:
    chart = interval_chart(table(row("fast", 1.04, 1.06, 1.08), row("same", 0.99, 1.0, 1.01))).splitlines()
    assert "\x1b" not in "".join(chart)
    fast, same = chart[0], chart[1]
    assert fast.index("●") > same.index("●")
    assert same.index("●") == fast.index("│"), "a ratio of 1 lies on the baseline's bar"
    assert fast.count("─") + 1 == round(0.04 / 0.12 * 40) + 1


def test_the_table_says_what_was_decided_and_what_was_not_counted() -> None:
    text = event_text(table(row("fast", 1.04, 1.06, 1.08)))
    for said in ("63.6 tok/s", "-1.0%", "1.060 (1.040 to 1.080)", "faster", "screen-1/x: heat", "not complete"):
        assert said in text
    assert interval_chart(table(Row(variant="x", settings="", verdict="hung", reason="r"))) == ""


def test_starts_are_told_in_a_line() -> None:
    start = Start(stage="screen", block=2, position=1, variant="ll")
    good = StartRecord(
        start=start, outcome="measured", measured=Measured(decode_tok_s=90.0, prefill_tok_s=4e4), seconds=75
    )
    assert event_text(Finished(good)) == "screen-2/ll: decode 90 tok/s, prefill 40.0k tok/s (1 min 15 s)"
    bad = StartRecord(start=start, outcome="hung", reason="[/x] stands still", seconds=5)
    assert event_text(Finished(bad)) == "screen-2/ll: hung: [/x] stands still (5 s)"
    assert "same command goes on" in event_text(BudgetSpent(3))
    assert event_text(Confirming(())) == "nothing looked faster"
