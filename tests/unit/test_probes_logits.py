"""The log-probability check against log-probabilities that transformers computed by itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from probes.errors import CallError, DumpError, ModelError
from probes.logits import Head, check
from tests.unit.probes_support import HIDDEN, IDS, Capture, save_tiny_model

PRE, POST = -2, -1
Setup = tuple[Path, Capture]


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def setup(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Setup:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), tied=request.param)
    return folder, Capture(folder, IDS)


def changed(folder: Path, copy: Path, **config: Any) -> Path:
    """A copy of a model with other settings in its config.json."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    held = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(held | config))
    return copy


@pytest.mark.parametrize(("norm", "state"), [("pre", PRE), ("post", POST)])
def test_the_right_state_gives_the_servers_numbers(setup: Setup, norm: Any, state: int) -> None:
    folder, capture = setup
    found = check(folder, capture.states[state], norm, IDS, capture.logprobs)
    assert (found.verdict, found.fits, found.claimed, found.compared) == ("ok", norm, norm, len(IDS) - 1)
    assert found.error is not None
    assert found.error_other is not None
    assert found.error < 0.1 < 3 * 0.1 < found.error_other


@pytest.mark.parametrize(("norm", "state"), [("pre", PRE), ("post", POST)])
def test_in_float32_the_difference_vanishes(setup: Setup, norm: Any, state: int) -> None:
    capture = Capture(setup[0], IDS, torch.float32)
    found = check(setup[0], capture.states[state], norm, IDS, capture.logprobs)
    assert found.worst is not None
    assert found.worst < 1e-4


@pytest.mark.parametrize(("claimed", "state"), [("pre", POST), ("post", PRE)])
def test_the_other_side_of_the_norm_is_caught(setup: Setup, claimed: Any, state: int) -> None:
    folder, capture = setup
    found = check(folder, capture.states[state], claimed, IDS, capture.logprobs)
    assert (found.verdict, found.fits) == ("wrong norm", found.other)
    assert found.other != claimed


def test_wrong_rows_blocks_and_nan_match_nothing(setup: Setup) -> None:
    folder, capture = setup
    for state in (
        capture.states[PRE].roll(1, 0),
        capture.states[PRE - 1],
        capture.states[PRE] * float("nan"),
    ):
        assert check(folder, state, "pre", IDS, capture.logprobs).verdict == "no match"


def test_the_worst_token_is_named(setup: Setup) -> None:
    folder, capture = setup
    states = capture.states[PRE].clone()
    states[6] = states[2]
    found = check(folder, states, "pre", IDS, capture.logprobs)
    assert found.worst_token == 7


def test_unknown_log_probabilities_are_passed_over(setup: Setup) -> None:
    folder, capture = setup
    some = [None if t % 2 else value for t, value in enumerate(capture.logprobs)]
    assert check(folder, capture.states[PRE], "pre", IDS, some).compared == 4
    one = check(folder, capture.states[PRE][:1], "pre", IDS[:1], [None])
    assert (one.verdict, one.fits, one.error) == ("nothing to compare", None, None)


def test_a_norm_that_changes_nothing_gives_no_verdict(setup: Setup, tmp_path: Path) -> None:
    copy = changed(setup[0], tmp_path)
    weights = load_file(copy / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.ones(HIDDEN)}, copy / "model.safetensors")
    state = torch.nn.functional.normalize(torch.randn(len(IDS), HIDDEN), dim=-1) * HIDDEN**0.5
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).float()
    scores = (state @ head.T).log_softmax(-1)
    server = [None, *(float(scores[t - 1, IDS[t]]) for t in range(1, len(IDS)))]
    assert check(copy, state, "pre", IDS, server).verdict == "unclear"


def test_a_vocabulary_of_several_chunks() -> None:
    torch.manual_seed(0)
    head = Head(torch.ones(8), torch.randn(20_000, 8), 1e-5)
    rows, targets = torch.randn(5, 8), torch.tensor([0, 8191, 8192, 16384, 19_999])
    expected = (rows.double() @ head.weight.double().T).log_softmax(-1)[range(5), targets]
    assert head.log_probabilities(rows, targets).tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_shapes_and_lists_that_do_not_fit(setup: Setup) -> None:
    folder, capture = setup
    with pytest.raises(CallError, match="9 log-probabilities for 10 tokens"):
        check(folder, capture.states[PRE], "pre", IDS, capture.logprobs[1:])
    with pytest.raises(CallError, match="must be pre or post"):
        check(folder, capture.states[PRE], "both", IDS, capture.logprobs)  # type: ignore[arg-type]
    with pytest.raises(DumpError, match=r"\[10, 32\], expected \[10, 64\]"):
        check(folder, capture.states[PRE][:, :32], "pre", IDS, capture.logprobs)
    with pytest.raises(ModelError, match="token id 999"):
        check(folder, capture.states[PRE], "pre", [*IDS[:-1], 999], capture.logprobs)


def test_sharded_and_prefixed_weights_are_found(setup: Setup, tmp_path: Path) -> None:
    folder, capture = setup
    weights = load_file(folder / "model.safetensors")
    copy = changed(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    names = {f"language_model.{name}": value.contiguous() for name, value in weights.items()}
    files = {name: f"part-{number % 3}.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: value for name, value in names.items() if files[name] == file}, copy / file)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert check(copy, capture.states[PRE], "pre", IDS, capture.logprobs).verdict == "ok"
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        if f"language_model.{name}" in files:
            (copy / files[f"language_model.{name}"]).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="cannot be read"):
        check(copy, capture.states[PRE], "pre", IDS, capture.logprobs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"final_logit_softcapping": 30.0}, r"scales its logits \(final_logit_softcapping\)"),
        ({"model_type": "gemma3_text"}, "head of gemma3_text"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
    ],
)
def test_heads_that_do_more_are_refused(setup: Setup, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    folder, capture = setup
    with pytest.raises(ModelError, match=message):
        check(changed(folder, tmp_path, **config), capture.states[PRE], "pre", IDS, capture.logprobs)


def test_quantised_and_missing_heads_are_refused(setup: Setup, tmp_path: Path) -> None:
    folder, capture = setup
    weights = load_file(folder / "model.safetensors")
    copy = changed(folder, tmp_path)
    head = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    save_file(weights | {head: weights[head].to(torch.int8)}, copy / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{head} is stored as torch\.int8: it is quantised"):
        check(copy, capture.states[PRE], "pre", IDS, capture.logprobs)
    rest = {
        name: value for name, value in weights.items() if not name.endswith(("lm_head.weight", "embed_tokens.weight"))
    }
    save_file(
        rest | {"lm_head.qweight": weights[head].clone(), "model.embed_tokens.qweight": torch.zeros(2)},
        copy / "model.safetensors",
    )
    with pytest.raises(ModelError, match="has no weight") as caught:
        check(copy, capture.states[PRE], "pre", IDS, capture.logprobs)
    assert "qweight" in caught.value.next_step
