"""The reference check on a tiny random model: a bfloat16 capture judged against a float32 forward."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probes.dumps import load, read_meta
from probes.errors import DumpError, MemoryShort, ModelError
from probes.measure import mean_error, token_errors
from probes.model import ReferenceModel, free_memory, load_model
from probes.reference import EMBEDDINGS, TensorCheck, judge, reference
from probes.weights import count_parameters
from tests.unit.probes_support import BLOCKS, HIDDEN, IDS, Capture, save_tiny_model, write_dump

LAST = BLOCKS - 1
Setup = tuple[Path, Capture, ReferenceModel]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    return folder, Capture(folder, IDS), load_model(folder)


def judged(setup: Setup, dump_dir: Path, tensors: list[Tensor], norm: str = "pre") -> list[TensorCheck]:
    folder = write_dump(dump_dir, "hs-1", tensors, norm=norm)
    return judge(setup[2].states(IDS), load(folder), read_meta(folder))


def after(capture: Capture, block: int) -> Tensor:
    """The captured output of a block, -1 for the embeddings."""
    return capture.states[block + 1]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_right_capture_is_recognised(setup: Setup, tmp_path: Path, norm: str) -> None:
    capture = setup[1]
    final = capture.states[-1] if norm == "post" else after(capture, LAST)
    checks = judged(setup, tmp_path, [after(capture, 0), after(capture, 1), after(capture, 2), final], norm)
    assert [check.verdict for check in checks] == ["ok"] * 4
    assert [(check.claimed, check.best_block) for check in checks] == [(k, k) for k in range(BLOCKS)]
    assert checks[-1].claimed_norm == checks[-1].best_norm == norm
    for check in checks:
        assert check.error is not None
        assert 0 < check.error == check.best_error < 0.03  # bfloat16 has 8 bits: up to 0.004 a rounding
        assert check.next_error > 10 * check.error
        assert not check.weak


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_shift_by_one_block_is_caught_and_named(setup: Setup, tmp_path: Path, block: int, shift: int) -> None:
    capture = setup[1]
    states = [after(capture, k + (shift if k == block else 0)) for k in range(BLOCKS)]
    checks = judged(setup, tmp_path, states)
    assert [check.verdict for check in checks] == ["wrong block" if k == block else "ok" for k in range(BLOCKS)]
    wrong = checks[block]
    assert (wrong.claimed, wrong.best_block) == (block, block + shift)
    assert wrong.best == ("embeddings" if block + shift == EMBEDDINGS else f"block {block + shift}")
    assert wrong.best_error == (wrong.error_before if shift < 0 else wrong.error_after)


def test_a_final_state_of_the_block_before_is_caught(setup: Setup, tmp_path: Path) -> None:
    states = [after(setup[1], k) for k in (0, 1, 2, 2)]
    final = judged(setup, tmp_path, states)[-1]
    assert (final.verdict, final.best_block, final.best_norm) == ("wrong block", 2, None)
    assert final.error_after is None


@pytest.mark.parametrize("claimed", ["pre", "post"])
def test_the_other_side_of_the_norm_is_caught(setup: Setup, tmp_path: Path, claimed: str) -> None:
    capture = setup[1]
    final = after(capture, LAST) if claimed == "post" else capture.states[-1]
    check = judged(setup, tmp_path, [*(after(capture, k) for k in range(3)), final], claimed)[-1]
    assert check.verdict == "wrong norm"
    assert (check.claimed, check.best_block, check.claimed_norm) == (LAST, LAST, claimed)
    assert check.best_norm == ("pre" if claimed == "post" else "post")
    assert check.error_other_norm == check.best_error


def test_rows_of_another_prompt_or_in_another_order_match_nothing(setup: Setup, tmp_path: Path) -> None:
    folder, capture, _ = setup
    other = Capture(folder, IDS[::-1])
    states = [after(other, 0), after(capture, 1).roll(1, 0), after(capture, 2), after(capture, LAST)]
    assert [c.verdict for c in judged(setup, tmp_path, states)] == ["no match", "no match", "ok", "ok"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_match_nothing(setup: Setup, tmp_path: Path, bad: float) -> None:
    states = [after(setup[1], k).clone() for k in range(BLOCKS)]
    states[1][4, 4] = bad
    check = judged(setup, tmp_path, states)[1]
    assert (check.verdict, check.best, check.best_error) == ("no match", "none", math.inf)


def test_blocks_that_hardly_differ_give_no_verdict(setup: Setup, tmp_path: Path) -> None:
    states = setup[2].states(IDS)
    twin = 1.001 * states.blocks[1]
    alike = type(states)(states.embeddings, (states.blocks[0], states.blocks[1], twin, states.pre), states.pre, twin)
    folder = write_dump(tmp_path, "hs-1", [after(setup[1], k) for k in (0, 1, 1, 3)])
    assert [c.verdict for c in judge(alike, load(folder), read_meta(folder))] == [
        "ok",
        "unclear",
        "unclear",
        "ok",
    ]


def test_a_dump_without_claims_is_named(setup: Setup) -> None:
    folder, capture, _ = setup
    checks = reference(folder, IDS, {"layer": after(capture, 1), "end": capture.states[-1]}, None)
    assert [(check.best, check.verdict, check.claimed, check.error) for check in checks] == [
        ("block 1", "unclaimed", None, None),
        ("after the final norm", "unclaimed", None, None),
    ]


@pytest.mark.parametrize(("tokens", "weak"), [(1, True), (2, True), (7, True), (8, False)])
def test_short_prompts_are_marked_weak(setup: Setup, tmp_path: Path, tokens: int, weak: bool) -> None:
    folder, ids = setup[0], IDS[:tokens]
    capture = Capture(folder, ids)
    dump = write_dump(tmp_path, "hs-1", [after(capture, k) for k in range(BLOCKS)], token_ids=ids)
    checks = reference(folder, ids, load(dump), read_meta(dump))
    assert [(check.verdict, check.weak, check.num_tokens) for check in checks] == [("ok", weak, tokens)] * 4


def test_the_first_token_does_not_hide_the_others() -> None:
    """One huge row that is the same in both: the whole tensor's norm sees nothing, the measure does."""
    expected = torch.randn(5, HIDDEN)
    expected[0] *= 10_000
    found = torch.cat([expected[:1], 1.2 * expected[1:]])
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    assert mean_error(found, expected) == pytest.approx(0.2, rel=1e-4)
    assert token_errors(found, expected).tolist() == pytest.approx([0, 0.2, 0.2, 0.2, 0.2], rel=1e-4)
    assert mean_error(found[:1], 2 * expected[:1]) == pytest.approx(0.5)
    assert mean_error(found[:0], expected[:0]) == mean_error(found, expected[1:]) == math.inf


def test_a_model_that_does_not_fit_is_refused_with_numbers(setup: Setup) -> None:
    from transformers import AutoModelForCausalLM

    folder, capture, _ = setup
    count = sum(weight.numel() for weight in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert count_parameters(folder) == count
    with pytest.raises(MemoryShort, match=f"{count:,} parameters.*0.00 GiB is free on cpu"):
        reference(folder, IDS, {"a": after(capture, 0)}, None, available=4 * count - 1)
    assert reference(folder, IDS, {"a": after(capture, 0)}, None, available=4 * count)[0].best == "block 0"
    assert 1 << 20 < free_memory() < 1 << 50


def test_sharded_models_are_counted_once(tmp_path: Path, setup: Setup) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(setup[0]).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert count_parameters(tmp_path) == count_parameters(setup[0])
    (tmp_path / "consolidated.safetensors").write_bytes((setup[0] / "model.safetensors").read_bytes())
    assert count_parameters(tmp_path) == count_parameters(setup[0])


def test_folders_that_hold_no_model_are_refused(tmp_path: Path, setup: Setup) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(tmp_path)
    config = json.loads((setup[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="no safetensors"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ModelError, match="quantised"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path)


def test_dumps_that_are_not_this_prompts_are_refused(setup: Setup, tmp_path: Path) -> None:
    folder, capture, _ = setup
    states = [after(capture, k) for k in range(BLOCKS)]
    cached = write_dump(tmp_path, "hs-1", states, prefix_len=3)
    with pytest.raises(DumpError, match="first 3 tokens came from the server's cache"):
        reference(folder, IDS, load(cached), read_meta(cached))
    whole = write_dump(tmp_path, "hs-2", states)
    with pytest.raises(DumpError, match="token ids differ"):
        reference(folder, IDS[::-1], load(whole), read_meta(whole))
    deeper = write_dump(tmp_path, "hs-3", states, num_blocks=5)
    with pytest.raises(DumpError, match="5 blocks, the reference has 4"):
        reference(folder, IDS, load(deeper), read_meta(deeper))
    with pytest.raises(DumpError, match=r"\[10, 32\], the reference's states are \[10, 64\]"):
        reference(folder, IDS, {"a": states[0][:, :32]}, None)
    with pytest.raises(ModelError, match="token id 999 is outside the vocabulary of 256"):
        reference(folder, [999, *IDS[1:]], {"a": states[0]}, None)


def test_a_model_that_cannot_run_gives_one_line(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the size of a\ndoes not match b")

    model = load_model(setup[0])
    monkeypatch.setattr(model.blocks[2], "forward", fail)
    with pytest.raises(ModelError) as caught:
        model.states(IDS)
    assert caught.value.message == f"transformers cannot run {setup[0]}: the size of a does not match b"
