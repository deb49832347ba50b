"""The numeric gate: what passes as rounding, and what is another computation."""

import math

import pytest

from bench.sweep.gate import GateRecord, Greedy, ProbeTensor, ReduceCheck, gate, row_errors

WANTED = Greedy(prompt="p", tokens=(10, 11, 12, 13), second=(20, 21, 22, 23), margins=(4.0, 0.1, 2.0, 0.25))


def greedy(*tokens: int) -> GateRecord:
    return GateRecord(greedy=(Greedy(prompt="p", tokens=tokens),))


BASE = GateRecord(greedy=(WANTED,))


def test_equal_outputs_pass() -> None:
    assert gate(BASE, greedy(10, 11, 12, 13)).passed


def test_the_second_choice_at_a_near_tie_passes_and_the_rest_is_another_text() -> None:
    gated = gate(BASE, greedy(10, 21, 99, 98))
    assert gated.passed
    assert gated.notes == ("p: token 1 is 21 instead of 11, a near tie (0.10 nats)",)
    assert gate(BASE, greedy(10, 11, 12, 23)).passed, "the limit itself passes"


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ((10, 77, 12, 13), "not the baseline's second choice"),
        ((20, 11, 12, 13), "sure by 4.00 nats"),
        ((10, 11, 22, 13), "sure by 2.00 nats"),
        ((10, 11, 12), "3 tokens instead of 4"),
    ],
)
def test_other_outputs_fail(tokens: tuple[int, ...], said: str) -> None:
    gated = gate(BASE, greedy(*tokens))
    assert not gated.passed
    assert said in gated.failures[0]


def test_what_cannot_be_judged_fails() -> None:
    blind = GateRecord(greedy=(Greedy(prompt="p", tokens=(1, 2)),))
    assert "is not known" in gate(blind, greedy(1, 3)).failures[0]
    assert gate(BASE, GateRecord()).failures == ("no output for p",)
    assert gate(GateRecord(), GateRecord()).failures == ("the baseline has no outputs to compare with",)
    unsure = GateRecord(greedy=(Greedy(prompt="p", tokens=(1,), second=(3,), margins=(math.nan,)),))
    assert not gate(unsure, greedy(3)).passed


def tensor(*rows: tuple[float, ...], name: str = "block 3") -> GateRecord:
    return GateRecord(tensors=(ProbeTensor(name, rows),))


def test_states_agree_within_the_tolerance_row_by_row() -> None:
    base = tensor((3.0, 4.0), (0.0, 10.0))
    assert row_errors(base.tensors[0], tensor((3.0, 4.5), (0.0, 10.0)).tensors[0]) == [0.1, 0.0]
    assert gate(base, tensor((3.0, 4.2), (0.0, 10.1))).passed
    assert "off by 0.05" in gate(base, tensor((3.0, 4.5), (0.0, 10.0))).failures[0]


@pytest.mark.parametrize(
    "got",
    [
        tensor((3.0, math.nan), (0.0, 10.0)),
        tensor((math.inf, 4.0), (0.0, 10.0)),
        tensor((3.0, 4.0)),
        tensor((3.0, 4.0), (0.0,)),
        tensor((3.0, 4.0), (0.0, 10.0), name="block 4"),
        GateRecord(),
    ],
)
def test_states_that_are_not_finite_or_not_there_fail(got: GateRecord) -> None:
    assert not gate(tensor((3.0, 4.0), (0.0, 10.0)), got).passed


def test_a_baseline_that_is_not_finite_fails_against_itself() -> None:
    broken = tensor((math.nan, 1.0))
    assert not gate(broken, broken).passed


def test_all_reduce_must_add_up_in_every_size() -> None:
    same = greedy(10, 11, 12, 13)
    assert gate(BASE, same, ReduceCheck(sizes=(4096, 1 << 24))).passed
    wrong = gate(BASE, same, ReduceCheck(wrong=((4096, 7),), sizes=(4096,)))
    assert wrong.failures == ("all-reduce of 4096 bytes has 7 wrong elements",)
    assert gate(BASE, same, ReduceCheck()).failures == ("the all-reduce check ran no size",)
