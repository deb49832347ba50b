"""`hsbench probe` against a real SGLang on the CPU, its values against transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import LAYERS, Command

pytestmark = pytest.mark.engine

LONG = "The lighthouse keeper counted eleven ships before dawn and wrote their names in a blue book."
States = Callable[[list[int]], dict[str, Any]]


@pytest.fixture(scope="module")
def hello(hsbench: Command, server: str) -> dict[str, Any]:
    return hsbench.json("probe", "Hello world", "--layers", ",".join(map(str, LAYERS)))


def load(folder: str, name: str) -> torch.Tensor:
    tensor = torch.load(Path(folder) / f"{name}.pt", weights_only=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Mean relative error a token, the first left out; written here again on purpose."""
    apart = (found.float() - expected).norm(dim=1) / expected.norm(dim=1)
    return float(apart[1:].mean())


def test_json_has_the_promised_form(hello: dict[str, Any]) -> None:
    assert hello["schema"] == 1
    assert hello["prompt"] == "Hello world"
    assert [(t["id"], t["text"]) for t in hello["tokens"]] == [(19556, "Hello"), (905, " world")]
    assert [t["name"] for t in hello["tensors"]] == ["aux_0", "aux_1", "aux_2", "final"]
    assert [t["after_block"] for t in hello["tensors"]] == [2, 15, 27, 29]
    for tensor in hello["tensors"]:
        assert tensor["shape"] == [2, 576]
        assert tensor["dtype"] == "bfloat16"
        assert tensor["nan"] == tensor["inf"] == 0
        assert {"min", "max", "mean", "std", "zeros"} <= set(tensor)
    assert hello["final_norm"] == "pre"
    assert isinstance(hello["other_dumps"], list)
    assert hello["verdict"] == "ok"
    assert isinstance(hello["seconds"], float)
    assert Path(hello["model"]).is_dir()


def test_values_agree_with_transformers(hello: dict[str, Any], reference_states: States) -> None:
    states = reference_states([19556, 905])
    for tensor in hello["tensors"]:
        key = "pre" if tensor["name"] == "final" else str(tensor["after_block"])
        expected = states[key]
        assert error(load(hello["dump"], tensor["name"]), expected) < 0.03
        # The last block takes a value of 22,267 down to 2,575; bfloat16 counts in steps of 128 up there.
        step = 2 * 128 if tensor["name"] == "final" else 0.01 * float(expected.max() - expected.min())
        assert tensor["min"] == pytest.approx(float(expected.min()), abs=step)
        assert tensor["max"] == pytest.approx(float(expected.max()), abs=step)
        assert tensor["mean"] == pytest.approx(float(expected.mean()), abs=step / 10)
        assert tensor["std"] == pytest.approx(float(expected.std(correction=0)), rel=0.06)
    spans = {t["after_block"]: (t["min"], t["max"]) for t in hello["tensors"]}
    assert spans[2] == pytest.approx((-139.5, 761.3), rel=0.02)
    assert spans[15] == pytest.approx((-752.2, 22596.8), rel=0.02)
    assert spans[27] == pytest.approx((-794.5, 22266.8), rel=0.02)


@pytest.mark.parametrize("text", ["Hello world", LONG])
def test_reference_recognises_every_block(hsbench: Command, server: str, text: str) -> None:
    report = hsbench.json("probe", text, "--reference")
    assert report["verdict"] == "ok"
    assert [row["best_block"] for row in report["reference"]["tensors"]] == [2, 15, 27, 29]
    assert report["reference"]["num_tokens"] >= 8
    for row in report["reference"]["tensors"]:
        assert row["error"] < 0.05
        assert row["error_before"] > 3 * row["error"]
    assert report["logits"]["verdict"] == "ok"
    assert report["logits"]["fits"] == "pre"


def test_a_capture_shifted_by_one_block_is_caught(hsbench: Command, server: str) -> None:
    with hsbench.fault("shift"):
        done = hsbench("probe", LONG, "--reference", "--json")
        plain = hsbench.json("probe", LONG)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["verdict"] == "wrong_block"
    aux = [row for row in report["reference"]["tensors"] if row["name"] != "final"]
    assert [(row["claimed"], row["best_block"]) for row in aux] == [(2, 3), (15, 16), (27, 28)]
    assert plain["verdict"] == "ok", "without --reference the shift cannot be seen, which is why it exists"


def test_self_test_is_green_and_batched(hsbench: Command, server: str) -> None:
    report = hsbench.json("probe", "Hello world", "--self-test")
    assert report["verdict"] == "ok"
    assert report["self_test"]["batch"] >= 2
    assert len(report["self_test"]["rows"]) == 6


def test_two_requests_swapped_in_a_batch_are_caught(hsbench: Command, server: str) -> None:
    with hsbench.fault("swap"):
        done = hsbench("probe", "Hello world", "--self-test", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["verdict"] == "mixed_up"
    assert "holds the rows of request" in report["summary"]


def test_nan_turns_the_verdict_red(hsbench: Command, server: str) -> None:
    with hsbench.fault("nan"):
        done = hsbench("probe", "Hello world", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "not_finite"


def test_a_dump_that_does_not_come_is_explained(hsbench: Command, server: str) -> None:
    with hsbench.fault("slow"):
        done = hsbench("probe", "Hello world", "--timeout", "3")
    assert done.returncode == 4
    assert "no dump came" in done.stderr
    assert "still being written" in done.stderr
    assert "Traceback" not in done.stderr


def test_tokens_and_chat(hsbench: Command, server: str) -> None:
    given = hsbench.json("probe", "--tokens", "19556,905")
    assert [t["text"] for t in given["tokens"]] == ["Hello", " world"]
    chat = hsbench.json("probe", "Hello world", "--chat")
    pieces = [t["text"] for t in chat["tokens"]]
    assert "<|im_start|>" in pieces
    assert "".join(pieces).endswith("<|im_start|>assistant\n")


def test_the_table_names_blocks_and_tokens(hsbench: Command, server: str) -> None:
    text = hsbench.ok("probe", "Hello world")
    for expected in ("19556 'Hello'", "905 ' world'", "entering 3", "entering 28", "pre-norm", "verdict"):
        assert expected in text
    assert "\x1b" not in text


def test_text_that_looks_like_markup_is_shown_as_it_is(hsbench: Command, server: str) -> None:
    report = hsbench.json("probe", "[bold]x[/bold] [/]")
    assert report["prompt"] == "[bold]x[/bold] [/]"
    shown = hsbench.ok("probe", "[bold]x[/bold] [/]")
    assert all(piece in shown for piece in ("75 '['", "30471 'bold'", "933 ' ['"))


def test_by_url_the_dump_folder_is_asked_of_the_server(hsbench: Command, server: str) -> None:
    assert hsbench.json("probe", "Hello world", "--url", server)["verdict"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([""], 2, "the prompt is empty"),
        ([], 2, "no prompt given"),
        (["Hello", "--layers", "3,4,5"], 2, "the blocks 2,15,27, not 3,4,5"),
        (["Hello", "--model", "/no/such/model"], 2, "not /no/such/model"),
        (["--tokens", "49152"], 2, "outside the model's vocabulary"),
        (["--tokens", ",".join(["5"] * 9000)], 2, "the prompt has 9000 tokens"),
        (["Hello", "--url", "http://127.0.0.1:1"], 3, "no server answers"),
        (["Hello", "--url", "http://127.0.0.1:1", "--dump-dir", "x"], 3, "no server answers"),
        (["Hello", "--name", "none", "--model", "/no/such/model"], 6, "/no/such/model"),
        (["Hello", "--name", "none", "--python", "/no/such/python"], 6, "/no/such/python"),
    ],
)
def test_bad_calls_get_one_line_and_a_next_step(
    hsbench: Command, server: str, arguments: list[str], code: int, says: str
) -> None:
    done = hsbench("probe", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "next:" in done.stderr
    assert "Traceback" not in done.stderr
