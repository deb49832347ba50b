"""The figures, against arithmetic done by hand, and numpy for the percentiles."""

import random
from itertools import pairwise

import numpy as np
import pytest

from bench.load.curves import rate_over_time, share_within
from bench.load.load import cost_of
from bench.load.metrics import (
    DEFINITIONS,
    full_window,
    itl_values,
    metrics,
    percentile,
    shortest_latency,
    spread,
    tokens_between,
)
from bench.load.spec import GoodputLimits
from tests.unit.bench_support import request


def test_one_request() -> None:
    found = metrics([request(10.0, [0.5, 0.6, 0.8, 1.5])], 1)
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.itl is not None
    assert found.e2e is not None
    assert (found.ttft.p50, found.e2e.p50) == (0.5, 1.5)
    assert found.tpot.p50 == pytest.approx(1.0 / 3)
    assert (found.itl.count, found.itl.largest) == (3, pytest.approx(0.7))
    assert found.itl.mean == pytest.approx(1.0 / 3)
    assert found.decode_tok_s == pytest.approx(3.0)
    assert found.batch_tok_s == pytest.approx(3.0)  # 3 tokens in the second after the first
    assert found.whole_tok_s == pytest.approx(4 / 1.5)
    assert found.requests_s == pytest.approx(1 / 1.5)
    assert (found.tokens, found.failed, found.short, found.finishes) == (4, 0, 0, {"length": 1})


def test_several_tokens_in_a_chunk() -> None:
    found = metrics([request(0.0, [1.0, 1.4, 1.5], [3, 4, 1])], 1)
    assert itl_values(request(0.0, [1.0, 1.4, 1.5], [3, 4, 1])) == pytest.approx([0.1] * 5)
    assert found.tpot is not None
    assert found.tpot.p50 == pytest.approx(0.5 / 5)
    assert found.itl_spread == pytest.approx(4 / 5)


def test_requests_without_anything() -> None:
    empty = request(0.0, [], finish="stop", asked_tokens=4)
    found = metrics([empty], 1)
    assert (found.ttft, found.itl, found.batch_tok_s, found.window_s, found.tokens) == (None, None, None, None, 0)
    assert found.short == 1
    one = metrics([request(0.0, [0.25])], 1)
    assert one.ttft is not None
    assert (one.ttft.p50, one.tpot, one.itl, one.decode_tok_s, one.batch_tok_s) == (0.25, None, None, None, None)
    assert one.whole_tok_s == pytest.approx(4.0)
    nothing = metrics([], 8)
    assert (nothing.requests, nothing.whole_tok_s, nothing.requests_s, nothing.first_error) == (0, None, None, None)


def test_failed_requests_are_in_the_rate_and_not_in_the_latencies() -> None:
    failed = request(0.0, [9.0, 9.5], end=10.0, error="broke", finish=None)
    found = metrics([request(0.0, [1.0, 2.0]), failed], 2)
    assert found.ttft is not None
    assert found.e2e is not None
    assert (found.failed, found.first_error, found.ttft.largest, found.e2e.largest) == (1, "broke", 1.0, 2.0)
    assert (found.tokens, found.seconds) == (4, 10.0)
    assert found.whole_tok_s == pytest.approx(0.4)
    assert found.requests_s == pytest.approx(0.1)


def test_the_full_batch_window() -> None:
    """Two in flight: A from 0 to 4, B from 1 to 5, C after A. From B's first token at 2 until C is alone at 5."""
    a = request(0.0, [1.0, 2.0, 3.0, 4.0])
    b = request(1.0, [1.0, 2.0, 3.0, 4.0])
    c = request(4.0, [0.5, 2.0, 4.0])
    assert full_window([a, b, c], 2) == (2.0, 5.0)
    # After 2 and up to 5: A at 3 and 4; B at 3, 4 and 5; C at 4.5, and 0.5/1.5 of its next one
    assert tokens_between([a, b, c], 2.0, 5.0) == pytest.approx(2 + 3 + 1 + 1 / 3)
    assert metrics([a, b, c], 2).batch_tok_s == pytest.approx((6 + 1 / 3) / 3)
    assert full_window([a, b], 2) == (2.0, 4.0)  # one each: from the last first token to the first end
    assert full_window([a, b], 3) is None
    assert full_window([a, b], None) is None
    assert full_window([request(0.0, [1.0, 2.0]), request(5.0, [1.0, 2.0])], 2) is None
    failed = request(0.0, [1.0, 2.0], end=3.5, error="broke")  # in flight until it failed
    assert full_window([a, failed], 2) == (1.0, 3.5)


def test_every_token_is_in_one_stretch() -> None:
    rng = random.Random(1)
    gaps = [[rng.random() for _ in range(20)] for _ in range(9)]
    records = [request(rng.random(), np.cumsum(one).tolist(), [rng.randrange(1, 4) for _ in one]) for one in gaps]
    cuts = [-1.0, 0.3, 1.7, 4.4, 4.5, 99.0]
    parts = [tokens_between(records, first, last) for first, last in pairwise(cuts)]
    assert sum(parts) == pytest.approx(sum(record.tokens for record in records))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 1000])
def test_percentiles_are_numpys(count: int) -> None:
    rng = random.Random(count)
    values = sorted(rng.expovariate(1) for _ in range(count))
    for percent in (0, 50, 90, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-12)
    found = spread(values)
    assert found is not None
    assert (found.p99, found.mean) == pytest.approx((np.percentile(values, 99), np.mean(values)))


def test_goodput() -> None:
    quick, slow = request(0.0, [0.1, 0.2, 0.3]), request(0.0, [0.4, 0.5, 2.0])
    failed = request(0.0, [0.1], error="broke")
    records = [quick, slow, failed]
    for limits, share in (
        (GoodputLimits(ttft=0.2), 1 / 3),
        (GoodputLimits(ttft=0.5), 2 / 3),
        (GoodputLimits(ttft=0.5, itl=0.11), 1 / 3),
        (GoodputLimits(tpot=0.81), 2 / 3),
        (GoodputLimits(e2e=0.1), 0),
    ):
        found = metrics(records, 3, limits)
        assert found.good_share == pytest.approx(share)
        assert found.good_s == pytest.approx(share * 3 / 2.0)
    assert metrics(records, 3).good_s is None
    assert metrics([request(0.0, [0.1])], 1, GoodputLimits(itl=1e-9)).good_share == 1


def test_short_answers_and_the_worst_count() -> None:
    records = [
        request(0.0, [1.0, 2.0]),
        request(0.0, [1.0], finish="stop", counted="total", prompt_tokens=3),
        request(0.0, [1.0], asked_tokens=2, counted="assumed", prompt_tokens=4),
    ]
    found = metrics(records, 3)
    assert (found.short, found.counted, found.finishes) == (2, "assumed", {"length": 2, "stop": 1})
    assert found.prompt_tokens is None
    assert metrics(records[1:], 2).prompt_tokens == 7


def test_when_a_run_is_limited_by_its_client() -> None:
    calm = cost_of(0.5, 1.0, 1000, [0.001] * 100)
    assert (calm.limited, calm.cpu_share) == ((), 0.5)
    assert calm.cpu_us_per_token == pytest.approx(500)
    assert "loop lag" in cost_of(0.5, 1.0, 1000, [0.001] * 90 + [0.003] * 10).limited[0]
    assert "CPU" in cost_of(0.71, 1.0, 1000, []).limited[0]
    assert "self-test" in cost_of(0.1, 1.0, 1000, [], ceiling=1999).limited[0]
    assert cost_of(0.1, 1.0, 1000, [], ceiling=2001).limited == ()
    slow = [0.001] * 90 + [0.003] * 10
    assert cost_of(0.5, 1.0, 1000, slow, lag_bound=0.004).limited == ()
    assert shortest_latency([request(0.0, [0.5, 0.7, 0.9]), request(0.0, [9.0])]) == pytest.approx(0.2)
    assert (shortest_latency([request(0.0, [9.0])]), shortest_latency([request(0.0, [])])) == (9.0, 0.0)
    assert cost_of(0.0, 0.0, 0, []).cpu_us_per_token is None


def test_curves() -> None:
    steady = request(0.0, [0.1 * n for n in range(1, 101)])
    rates = [rate for _, rate in rate_over_time([steady], 10)]
    assert rates[1:] == pytest.approx([10.0] * 9)
    assert rate_over_time([], 10) == []
    assert share_within([3.0, 1.0, 2.0, 4.0]) == [(1.0, 25.0), (2.0, 50.0), (3.0, 75.0), (4.0, 100.0)]
    assert len(share_within([float(n) for n in range(10_000)])) <= 200
    assert share_within([]) == []


def test_every_figure_is_defined_once() -> None:
    names = [name for name, _ in DEFINITIONS]
    assert len(set(names)) == len(names)
    assert {"TTFT", "TPOT", "ITL", "E2E", "batch tok/s", "whole tok/s", "goodput", "percentile"} <= set(names)
