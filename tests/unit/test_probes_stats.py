"""Statistics against plain Python arithmetic over the very values."""

import bisect
import math
from itertools import pairwise

import pytest
import torch

from probes.errors import DumpError
from probes.stats import BINS, CHUNK, TensorStats, describe, histogram_edges

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def expected_bins(values: list[float], edges: tuple[float, ...]) -> list[int]:
    """Left of 0 a bin holds its right edge, right of 0 its left one."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        if value < 0:
            counts[bisect.bisect_left(edges, value) - 1] += 1
        else:
            counts[bisect.bisect_right(edges, value) - 1] += 1
    return counts


def check_against_python(tensor: torch.Tensor, stats: TensorStats) -> None:
    values = [float(value) for value in tensor.reshape(-1).tolist()]
    finite = [value for value in values if math.isfinite(value)]
    mean = math.fsum(finite) / len(finite)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / len(finite))
    assert (stats.min, stats.max) == (min(finite), max(finite))
    assert stats.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * std)
    assert stats.std == pytest.approx(std, rel=1e-12)
    assert stats.zeros == sum(value == 0 for value in values)
    assert stats.nan == sum(math.isnan(value) for value in values)
    assert stats.inf == sum(math.isinf(value) for value in values)
    assert stats.zero_share == stats.zeros / len(values)
    assert list(stats.histogram) == expected_bins(finite, stats.edges)
    assert len(stats.histogram) == BINS
    assert list(stats.edges) == sorted(stats.edges)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_statistic_with_nan_inf_and_zeros_planted(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensor = (torch.randn(300, 40) * 3).to(dtype)
    tensor[0, :7], tensor[1, :5], tensor[2, :3], tensor[2, 3:5] = 0.0, math.nan, math.inf, -math.inf
    tensor[3, 0], tensor[4, 4], tensor[5, 5], tensor[6, 6] = -0.0, 22272.0, -794.0, 1024.0
    stats = describe(tensor)
    check_against_python(tensor, stats)
    assert (stats.zeros, stats.nan, stats.inf) == (8, 5, 5)
    assert (stats.shape, stats.dtype, stats.bytes) == (
        (300, 40),
        str(dtype)[6:],
        12000 * tensor.element_size(),
    )
    for row, norm in zip(tensor.tolist(), stats.token_norms, strict=True):
        plain = math.sqrt(math.fsum(value * value for value in row)) if all(map(math.isfinite, row)) else None
        assert norm == pytest.approx(plain, rel=1e-12) if plain is not None else not math.isfinite(norm)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tensors_of_many_chunks_are_merged_exactly(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    tensor = torch.cat([torch.full((1, CHUNK), 100.0), torch.randn(2, CHUNK), torch.randn(1, CHUNK) * 50]).to(dtype)
    check_against_python(tensor, describe(tensor))


def test_the_largest_bfloat16_values_do_not_overflow() -> None:
    top = torch.finfo(torch.bfloat16).max
    stats = describe(torch.tensor([[top, -top], [top, top]], dtype=torch.bfloat16))
    assert (stats.min, stats.max, stats.mean) == (-top, top, top / 2)
    assert stats.std == pytest.approx(top * math.sqrt(0.75), rel=1e-12)
    assert stats.token_norms == pytest.approx([top * math.sqrt(2)] * 2, rel=1e-12)
    assert all(map(math.isfinite, stats.edges))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fill", [math.nan, math.inf, 0.0])
def test_tensors_of_one_special_value(dtype: torch.dtype, fill: float) -> None:
    stats = describe(torch.full((3, 5), fill, dtype=dtype))
    finite = fill == 0
    nothing = 0.0 if finite else None
    assert [stats.min, stats.max, stats.mean, stats.std] == [nothing] * 4
    assert (stats.zeros, stats.nan, stats.inf) == (15 * finite, 15 * math.isnan(fill), 15 * math.isinf(fill))
    assert sum(stats.histogram) == 15 * finite
    assert stats.histogram[BINS // 2] == 15 * finite


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    stats = describe(torch.zeros(shape, dtype=torch.bfloat16))
    assert (stats.min, stats.mean, stats.std, stats.zeros, stats.token_norms) == (None, None, None, 0, ())
    assert (stats.zero_share, sum(stats.histogram)) == (0.0, 0)


def test_integers_and_one_dimension() -> None:
    tensor = torch.tensor([3, 0, -5, 8])
    stats = describe(tensor)
    check_against_python(tensor, stats)
    assert (stats.dtype, stats.token_norms) == ("int64", ())


def test_a_view_is_described_by_its_own_elements() -> None:
    whole = torch.arange(200, dtype=torch.float32).reshape(10, 20).to(torch.bfloat16)
    check_against_python(whole[2:7, 3:9], describe(whole[2:7, 3:9]))


def test_complex_tensors_are_refused() -> None:
    with pytest.raises(DumpError, match="complex64"):
        describe(torch.zeros(2, 2, dtype=torch.complex64))


def test_edges_are_powers_of_two_and_bins_widen_with_the_range() -> None:
    edges = histogram_edges(3, 1)
    assert edges[BINS // 2] == 0.0
    assert edges[-1] == 8.0
    assert all(later / earlier == 2 for earlier, later in pairwise(edges[BINS // 2 + 1 :]))
    assert list(edges) == [-edge for edge in reversed(edges)]
    wide = describe(torch.tensor([[2.0**-20, 2.0**-3, 1.0, 20000.0]], dtype=torch.bfloat16))
    assert sum(count > 0 for count in wide.histogram) == 4
