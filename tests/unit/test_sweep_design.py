"""The plan of a sweep: complete, random, and the same for the same seed."""

from collections import Counter

import pytest

from bench.sweep.design import blocks, closing, confirming, debugging, opening, screening
from bench.sweep.variants import BASELINE
from workbench.errors import UsageError

NAMES = ["a", "b", "c"]


def test_each_block_has_the_baseline_and_every_variant_once() -> None:
    plan = blocks("screen", NAMES, 4, seed=1)
    for number in range(1, 5):
        block = [start for start in plan if start.block == number]
        assert sorted(start.variant for start in block) == sorted([*NAMES, BASELINE])
        assert [start.position for start in block] == [1, 2, 3, 4]
    assert [start.block for start in plan] == sorted(start.block for start in plan)


def test_the_baseline_opens_and_closes() -> None:
    assert screening(NAMES, 3, 0)[0] == opening()
    assert confirming(["a"], 3, 0)[-1] == closing()
    assert confirming([], 3, 0) == (closing(),)
    assert {opening().variant, closing().variant} == {BASELINE}


def test_a_plan_depends_on_variants_blocks_and_seed_alone() -> None:
    assert screening(NAMES, 5, 7) == screening(list(reversed(NAMES)), 5, 7)
    assert screening(NAMES, 5, 7) != screening(NAMES, 5, 8)
    assert [s.variant for s in blocks("screen", NAMES, 9, 7)] != [s.variant for s in blocks("confirm", NAMES, 9, 7)]


def test_every_variant_comes_in_every_place_equally_often() -> None:
    """Of 3000 blocks each place should have 750 of each; 4.5 standard deviations are 107."""
    places = Counter((s.variant, s.position) for seed in range(300) for s in blocks("screen", NAMES, 10, seed))
    assert len(places) == 16
    assert all(abs(count - 750) < 107 for count in places.values())


def test_keys_name_starts_apart() -> None:
    plan = [*screening(NAMES, 3, 0), *confirming(NAMES, 3, 0), *debugging(NAMES)]
    assert len({start.key for start in plan}) == len(plan)
    assert debugging(["b"])[-1].key == "debug/b"


def test_one_block_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two blocks"):
        blocks("screen", NAMES, 1, 0)
