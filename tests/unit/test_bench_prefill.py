"""Rates and intervals of the measuring scripts, against arithmetic."""

import math

import pytest

from bench.prefill_load import THROUGHPUT, interval, rate


def test_answers_in_batches_have_the_rate_of_the_batches() -> None:
    ends = [0.4 * batch for batch in range(20) for _ in range(8)]
    assert rate(ends, 2048, 16) == pytest.approx(8 / 0.4 * 2048)


def test_ramp_and_drain_are_left_out() -> None:
    steady = [1.0 + 0.1 * number for number in range(100)]
    assert rate([0.2, 0.9, *steady, 13.0, 19.0], 10, 2) == pytest.approx(100.0)


@pytest.mark.parametrize("ends", [[], [1.0], [1.0, 1.0]])
def test_too_few_answers_have_no_rate(ends: list[float]) -> None:
    assert rate(ends, 10, 4) == 0.0


def test_the_interval_is_students() -> None:
    mean, half = interval([0.98, 1.0, 1.02])
    assert mean == pytest.approx(1.0)
    assert half == pytest.approx(4.30265273 * 0.02 / math.sqrt(3), rel=1e-6)


def test_the_servers_own_rate_is_read_from_its_log() -> None:
    line = (
        b"[2026-11-29 22:27:44] Prefill batch, #new-seq: 7, cuda graph: False, input throughput (token/s): 39053.27\n"
    )
    assert THROUGHPUT.findall(line) == [b"39053.27"]
