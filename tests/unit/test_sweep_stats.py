"""The words of a sweep on simulated machines: how often they are wrong, and how often they find what is there.

A simulated start has a speed of exp(noise + drift), with noise of 2 % a start. The true answer is known by making.
"""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from bench.sweep import stats
from bench.sweep.design import blocks
from bench.sweep.stats import decide, drift, holm, pair, winners
from bench.sweep.student import quantile, upper_tail

SWEEPS = 2000
NOISE = 0.02
DRIFTS: dict[str, Callable[[int], float]] = {
    "none": lambda start: 0.0,
    "warming": lambda start: -0.10 * math.exp(-start / 4),
    "slowing": lambda start: -0.003 * start,
    "step": lambda start: -0.06 if start >= 7 else 0.0,
}


def simulate(
    rng: random.Random, names: Sequence[str], count: int, moving: Callable[[int], float], *, gain: float, seed: int
) -> dict[str, list[float]]:
    """The ratios of one stage of `count` blocks; the variant `a` is faster by `gain`, the others are not."""
    speeds: dict[str, dict[int, float]] = {name: {} for name in ("baseline", *names)}
    for number, start in enumerate(blocks("screen", names, count, seed)):
        true = 60.0 * (1 + gain if start.variant == "a" else 1)
        speeds[start.variant][start.block] = true * math.exp(rng.gauss(0, NOISE) + moving(number))
    return {name: pair(speeds[name], speeds["baseline"]) for name in names}


def rate(
    names: Sequence[str], count: int, moving: Callable[[int], float], gain: float = 0.0, *, fresh: bool = False
) -> float:
    """The share of sweeps in which some variant (with a gain: the variant `a`) is called faster."""
    rng = random.Random(20240607)
    called = 0
    for seed in range(SWEEPS):
        ratios = simulate(rng, names, count, moving, gain=gain, seed=seed)
        if fresh:
            ratios = simulate(rng, winners(ratios), count, moving, gain=gain, seed=seed + SWEEPS)
        words = {name: decision.word for name, decision in decide(ratios).items()}
        called += words.get("a") == "faster" if gain else "faster" in words.values()
    return called / SWEEPS


@pytest.mark.parametrize("moving", DRIFTS)
@pytest.mark.parametrize("names", ["a", "abcd"], ids=["one-variant", "four-variants"])
def test_nothing_is_called_faster_in_more_than_one_sweep_of_twenty(names: str, moving: str) -> None:
    assert rate(list(names), 5, DRIFTS[moving]) <= 0.05
    assert rate(list(names), 3, DRIFTS[moving], fresh=True) <= 0.05


@pytest.mark.parametrize("moving", ["none", "slowing"])
def test_a_gain_of_five_percent_is_found_with_five_blocks(moving: str) -> None:
    """It is found in 93 % of the sweeps of one variant, and in 88 % of those of four, decided by fresh starts."""
    assert rate(["a"], 5, DRIFTS[moving], 0.05) >= 0.9
    assert rate(["a", "b", "c", "d"], 5, DRIFTS[moving], 0.05, fresh=True) >= 0.85


def test_the_simulation_would_notice_a_missing_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "holm", dict)
    assert rate(["a", "b", "c", "d"], 5, DRIFTS["none"]) > 0.05


@pytest.mark.parametrize(
    ("df", "t95", "t975", "t995"),
    [
        (1, 6.314, 12.706, 63.657),
        (2, 2.920, 4.303, 9.925),
        (3, 2.353, 3.182, 5.841),
        (4, 2.132, 2.776, 4.604),
        (9, 1.833, 2.262, 3.250),
        (30, 1.697, 2.042, 2.750),
        (120, 1.658, 1.980, 2.617),
    ],
)
def test_quantiles_of_t_are_those_of_the_printed_tables(df: int, t95: float, t975: float, t995: float) -> None:
    assert quantile(0.95, df) == pytest.approx(t95, abs=6e-4)
    assert quantile(0.975, df) == pytest.approx(t975, abs=6e-4)
    assert quantile(0.995, df) == pytest.approx(t995, abs=6e-4)


def test_tails_of_t_are_those_of_the_closed_forms() -> None:
    for t in (-3.0, -0.5, 0.0, 0.1, 1.0, 7.0, 300.0):
        assert upper_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)
        assert upper_tail(t, 2) == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t * t)), abs=1e-12)


def test_holm_as_worked_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert holm({}) == {}


def test_a_decision_as_worked_by_hand() -> None:
    """Ratios of e^0.04, e^0.05, e^0.06: mean 0.05, deviation 0.01, t(0.95, 2) = 2.920."""
    made = decide({"a": [math.exp(0.04), math.exp(0.05), math.exp(0.06)]})["a"]
    half = 2.920 * 0.01 / math.sqrt(3)
    assert made.word == "faster"
    assert made.ratio == pytest.approx(math.exp(0.05))
    assert made.low == pytest.approx(math.exp(0.05 - half), abs=1e-4)
    assert made.high == pytest.approx(math.exp(0.05 + half), abs=1e-4)


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.05, 1.06, 1.055], "faster"),
        ([0.95, 0.94, 0.945], "slower"),
        ([1.001, 0.999, 1.002, 1.0], "same"),
        ([1.010, 1.011, 1.010, 1.011], "same"),
        ([1.10, 0.98, 1.05], "undecided"),
        ([1.10], "undecided"),
        ([], "undecided"),
        ([1.05, 1.05, 1.05], "faster"),
        ([1.0, 1.0], "same"),
    ],
)
def test_the_words(ratios: list[float], word: str) -> None:
    assert decide({"a": ratios})["a"].word == word


def test_the_blocks_that_it_says_would_decide_do() -> None:
    """More blocks of the same mean and scatter: the number is enough, and one less is not."""
    made = decide({"a": [1.10, 0.99, 1.06]})["a"]
    assert made.word == "undecided"
    assert made.more_blocks is not None
    mean = sum(map(math.log, (1.10, 0.99, 1.06))) / 3
    deviation = math.sqrt(sum((math.log(r) - mean) ** 2 for r in (1.10, 0.99, 1.06)) / 2)

    def like(count: int) -> list[float]:
        """So many ratios of just this mean and deviation."""
        raw = [(-1) ** index * 1.0 for index in range(count)]
        middle = sum(raw) / count
        size = math.sqrt(sum((x - middle) ** 2 for x in raw) / (count - 1))
        return [math.exp(mean + (x - middle) * deviation / size) for x in raw]

    assert decide({"a": like(3 + made.more_blocks)})["a"].word == "faster"
    assert decide({"a": like(3 + made.more_blocks - 1)})["a"].word == "undecided"


def test_what_can_never_be_decided_says_none() -> None:
    assert decide({"a": [1.0199, 1.0201, 3.0, 0.34]})["a"].more_blocks is None


def test_blocks_without_a_baseline_or_a_variant_make_no_pair() -> None:
    assert pair({1: 10.0, 2: 30.0, 4: 9.0}, {1: 5.0, 3: 7.0, 4: 3.0}) == [2.0, 3.0]


def test_winners_are_the_fastest_that_reach_the_margin() -> None:
    ratios = {"a": [1.03, 1.04], "b": [1.2, 1.1], "c": [1.01, 1.02], "d": [1.5], "e": [1.06, 1.05], "f": [1.07, 1.05]}
    assert winners(ratios) == ("b", "f", "e")


def test_drift_is_the_last_baseline_over_the_first() -> None:
    assert drift([100.0, 103.0, 98.0]) == pytest.approx(-0.02)
    assert drift([100.0]) is None
