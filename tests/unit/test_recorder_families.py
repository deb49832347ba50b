"""The recorder on the ways in which model families hand out their states, and on several ranks."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from patches import recorder
from patches.recorder.ranks import Ranks
from tests.unit.test_recorder import BLOCKS, HIDDEN, MODEL, batch, forward, state, status


def test_an_accumulator_of_the_engine_gets_what_it_would_have_got(dump_dir: Path) -> None:
    class Packer(list[Any]):
        def capture(self, value: Any, **how: Any) -> None:
            self.append((value, how))

        def finalize(self) -> str:
            return "packed"

    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    assert recorder.accumulate(now, 2, None) is None
    plain: list[Any] = []
    for engines, method in ((Packer(), "capture"), (plain, "append")):
        ours = recorder.accumulate(now, 1, engines)
        value = state(0, 2)
        if method == "capture":
            ours.capture(value, owned=True)
            assert engines == [(value, {"owned": True})]
            assert ours.finalize() == "packed"
        else:
            ours.append(value)
            assert engines[0] is value
        assert len(ours) == len(engines) == 1
        assert now is not None
        kept = now.tensors["aux_0"][1]
        assert torch.equal(kept, value)
        assert kept.data_ptr() != value.data_ptr()
    assert len(recorder.accumulate(now, 1, None)) == 0


def test_a_partial_sum_never_becomes_a_dump(dump_dir: Path) -> None:
    """0.5.15 marks a block's output that the next block's norm still has to reduce over the ranks."""
    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    partial = state(0, 2)
    partial._sglang_needs_allreduce_fusion = True  # type: ignore[attr-defined]
    for block in range(BLOCKS):
        recorder.entering(now, block, partial, state(0, 2))
    recorder.final_pair(now, (state(5, 2), state(5, 2)))
    recorder.finish(now, state(5, 2))
    assert status(dump_dir, "errors") == 1
    assert "partial sum of this rank" in (dump_dir / "errors.jsonl").read_text()
    assert not list(dump_dir.glob("req_*"))


def test_states_of_different_widths_never_become_a_dump(dump_dir: Path) -> None:
    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    for block in range(BLOCKS):
        recorder.entering(now, block, torch.zeros(2, HIDDEN * (1 + (block == 3))), None)
    recorder.final_pair(now, (state(5, 2), state(5, 2)))
    recorder.finish(now, state(5, 2))
    assert status(dump_dir, "errors") == 1
    assert "different shapes" in (dump_dir / "errors.jsonl").read_text()


def test_a_model_without_a_configuration_has_as_many_blocks_as_it_lists(dump_dir: Path) -> None:
    """GptOssModel keeps none."""
    now = recorder.begin(SimpleNamespace(layers=[None] * BLOCKS), batch(("hs-a", 2)))
    assert now is not None
    assert now.num_blocks == BLOCKS


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process the given one of two tensor-parallel ranks."""

    def become(rank: int, scattered: tuple[str, ...] = ()) -> None:
        monkeypatch.setattr(recorder, "read_ranks", lambda: Ranks(rank, 2, scattered))

    return become


def asked_for(now: Any) -> list[int]:
    """The blocks at which the engine is asked for a state, which may take a collective operation."""
    return [block for block in range(BLOCKS) if recorder.capture(now, block, None) is not None]


def test_the_other_ranks_ask_for_the_same_states_and_write_nothing(
    dump_dir: Path, two_ranks: Callable[..., None]
) -> None:
    two_ranks(1)
    for style in ("callback", "accumulator", "sum"):
        forward(batch(("hs-a", 2), ("other", 3)), style=style)
    assert asked_for(recorder.begin(MODEL, batch(("hs-a", 2)))) == [1, 3, 5]
    assert asked_for(recorder.begin(MODEL, batch(("other", 2)))) == []
    assert not dump_dir.exists()


def test_a_failure_on_the_writing_rank_leaves_it_in_step(
    dump_dir: Path, two_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ranks(0)
    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    callback = recorder.capture(now, 1, None)
    assert callback is not None
    callback(state(0, 1))
    assert now is not None
    assert now.failed
    assert asked_for(now) == [1, 3, 5]
    broken = batch(("hs-b", 2))
    broken.input_ids = None
    assert asked_for(recorder.begin(MODEL, broken)) == [1, 3, 5]
    assert status(dump_dir, "errors", 2) == 2
    monkeypatch.setattr(recorder, "_started", False)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "/proc/nowhere")
    assert asked_for(recorder.begin(MODEL, batch(("hs-c", 2)))) == [1, 3, 5]


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_asks_for_anything_where_states_are_scattered(
    dump_dir: Path, two_ranks: Callable[..., None], rank: int
) -> None:
    two_ranks(rank, scattered=("--enable-dp-attention",))
    assert recorder.begin(MODEL, batch(("hs-a", 2))) is None
