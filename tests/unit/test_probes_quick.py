"""The quick facts against plain float64 arithmetic, and at the ends of the range."""

import math

import pytest
import torch

from probes.quick import CHUNK, complaint, facts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 7, CHUNK // 64 + 5])
def test_facts_are_those_of_float64(dtype: torch.dtype, rows: int) -> None:
    tensor = (torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)) * 3 + 0.5).to(dtype)
    wide = tensor.double()
    found = facts(tensor)
    assert (found.rows, found.width, found.bad_rows, found.zero_rows, found.constant) == (rows, 64, 0, 0, False)
    assert (found.low, found.high) == (float(wide.min()), float(wide.max()))
    assert found.std == pytest.approx(float(wide.std(correction=0)), rel=1e-5)
    assert found.row_norm == pytest.approx(float((wide[1:] if rows > 1 else wide).norm(dim=-1).median()), rel=1e-5)
    assert complaint("x", found) == ""


def test_values_whose_squares_leave_float32_are_neither_infinite_nor_zero() -> None:
    tensor = torch.ones(4, 8, dtype=torch.bfloat16)
    tensor[1], tensor[2] = 1e30, 1e-30
    found = facts(tensor)
    assert (found.bad_rows, found.zero_rows) == (0, 0)
    assert found.high == pytest.approx(1e30, rel=0.01)


def test_what_is_bad_is_left_out_of_the_rest() -> None:
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6) + 1
    tensor[1, 2], tensor[3, 0] = math.nan, math.inf
    found = facts(tensor)
    assert (found.bad_rows, found.first_bad, found.low, found.high) == (2, 1, 1.0, 18.0)
    assert complaint("x", found) == "x: 2 of 4 rows hold NaN or Inf, the first is row 1"


def test_nothing_but_nan_and_no_rows_at_all() -> None:
    found = facts(torch.full((3, 4), math.nan))
    assert (found.bad_rows, found.row_norm, found.low) == (3, None, 0.0)
    assert complaint("x", facts(torch.empty(0, 4))) == "x has no rows"


def test_one_row_over_and_over() -> None:
    row = torch.randn(1, 16, generator=torch.Generator().manual_seed(1))
    assert facts(row.repeat(5, 1)).constant
    assert not facts(torch.cat([row.repeat(5, 1), -row])).constant
    assert not facts(row).constant
