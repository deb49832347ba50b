"""Solo against batch captures: own rows, swapped requests, single wrong rows."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probes.compare import compare
from probes.errors import CallError
from tests.unit.probes_support import IDS, Capture, save_tiny_model

Dump = dict[str, Tensor]
PROMPTS = [IDS, IDS[::-1], IDS[:6], [*IDS[:8], 77, 12], [*IDS, 44, 45, 46]]


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> list[Dump]:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    return [_dump(folder, ids) for ids in PROMPTS]


def _dump(folder: Path, ids: list[int]) -> Dump:
    capture = Capture(folder, ids)
    return {"aux_0": capture.states[1], "aux_1": capture.states[3], "final": capture.states[4]}


@pytest.fixture
def batch(solo: list[Dump]) -> list[Dump]:
    """The same with noise of a bfloat16 step, as another kernel order gives."""
    torch.manual_seed(5)
    return [{name: value * (1 + 0.004 * torch.randn_like(value)) for name, value in dump.items()} for dump in solo]


def test_every_request_holds_its_own_rows(solo: list[Dump], batch: list[Dump]) -> None:
    checks = compare(solo, batch)
    assert [check.verdict for check in checks] == ["ok"] * 5
    assert [check.best for check in checks] == list(range(5))
    assert [check.num_tokens for check in checks] == [10, 10, 6, 10, 13]
    assert all(check.error is not None and 0 < check.error < 0.02 for check in checks)
    assert not any(check.bit_equal for check in checks)


def test_the_error_is_that_of_the_rows(solo: list[Dump]) -> None:
    grown = [{name: value.float() * (1.25 if name == "aux_1" else 1.0) for name, value in solo[0].items()}]
    check = compare([solo[0]], grown)[0]
    assert check.error == pytest.approx(0.25, rel=1e-3)
    assert (check.verdict, check.worst_tensor) == ("no match", "aux_1")


def test_equal_bits_are_told(solo: list[Dump]) -> None:
    assert all(check.bit_equal and check.error == 0 for check in compare(solo, solo))
    off = [dict(dump) for dump in solo]
    off[1]["final"] = off[1]["final"].clone()
    off[1]["final"].view(torch.int16)[3, 3] ^= 1
    assert [check.bit_equal for check in compare(solo, off)] == [True, False, True, True, True]


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 3), (1, 3)])
def test_swapped_requests_are_caught_and_named(solo: list[Dump], batch: list[Dump], one: int, other: int) -> None:
    batch[one], batch[other] = batch[other], batch[one]
    checks = compare(solo, batch)
    swapped = {one: other, other: one}
    assert [check.verdict for check in checks] == ["swapped" if k in swapped else "ok" for k in range(5)]
    for number, owner in swapped.items():
        assert checks[number].best == owner
        assert checks[number].summary == f"request {number} holds the rows of request {owner}"


def test_prompts_of_other_lengths_can_never_match(solo: list[Dump], batch: list[Dump]) -> None:
    batch[2], batch[4] = batch[4], batch[2]
    checks = compare(solo, batch)
    assert [check.verdict for check in checks] == ["ok", "ok", "swapped", "ok", "swapped"]
    assert (checks[2].error, checks[2].best, checks[4].best) == (None, 4, 2)
    batch[4] = {name: value[:5] for name, value in batch[4].items()}
    check = compare(solo, batch)[4]
    assert (check.verdict, check.best, check.error, check.bit_equal) == ("no match", None, None, False)


def test_one_wrong_row_among_many_is_caught(solo: list[Dump]) -> None:
    rows = torch.randn(200, 16)
    wrong = rows.clone()
    wrong[150] = rows[3]
    check = compare([{"aux_0": rows}], [{"aux_0": wrong}])[0]
    assert check.error is not None
    assert check.error < 0.05
    assert (check.verdict, check.worst_token, check.worst_tensor) == ("no match", 150, "aux_0")


def test_a_routed_model_is_judged_by_its_median_token(solo: list[Dump]) -> None:
    torch.manual_seed(3)
    rows = torch.randn(40, 64)
    astray = rows.clone()
    astray[5:9] += 0.7 * torch.randn(4, 64)  # four tokens went to other experts

    def verdict(batch: Tensor, routed: bool) -> str:
        return compare([{"aux_0": rows}], [{"aux_0": batch}], routed=routed)[0].verdict

    assert (verdict(astray, True), verdict(astray, False)) == ("ok", "no match")
    wrong = rows.clone()
    wrong[30] = rows[3]  # the norm of the difference of two random rows is about 1.4 of one's
    assert verdict(wrong, True) == "no match"
    assert verdict(rows + 0.1 * torch.randn(40, 64), True) == "no match", "every token is off"
    assert verdict(rows.roll(1, 0), True) == "no match"


def test_rows_shifted_by_one_token_match_nothing(solo: list[Dump], batch: list[Dump]) -> None:
    batch[0] = {name: value.roll(1, 0) for name, value in batch[0].items()}
    assert compare(solo, batch)[0].verdict == "no match"


def test_nan_and_other_names_match_nothing(solo: list[Dump], batch: list[Dump]) -> None:
    batch[0]["final"] = torch.full_like(batch[0]["final"], math.nan)
    del batch[1]["final"]
    assert [check.verdict for check in compare(solo, batch)][:2] == ["no match", "no match"]


def test_equal_prompts_cannot_be_told_apart(solo: list[Dump], batch: list[Dump]) -> None:
    check = compare([solo[0], solo[0]], [batch[0], batch[0]])[1]
    assert check.verdict == "unclear"


def test_lists_must_pair(solo: list[Dump]) -> None:
    for one, other in (([], []), (solo, solo[1:])):
        with pytest.raises(CallError):
            compare(one, other)
