"""A sweep of flags on a real SGLang: one variant hangs, one computes something else; broken off and resumed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine import tiny_models
from tests.engine.conftest import Command

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

SPINS = "77"
SABOTAGE = {"HS_TEST_SPIN": SPINS, "HS_TEST_LAG": "60"}
"""The server and the client share the cores, so the client's delays would make starts invalid by chance."""
VARIANTS = f"""
[[variant]]
name = "interval"
axis = "flags"
flags = ["--stream-interval", "2"]

[[variant]]
name = "hangs"
axis = "flags"
flags = ["--random-seed", "{SPINS}"]

[[variant]]
name = "wrong"
axis = "flags"
flags = ["--json-model-override-args", '{{"num_hidden_layers": 5}}']
"""


@pytest.fixture(scope="module")
def arguments(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("sweep")
    model = tiny_models.make("llama", folder / "model", demo_model)
    (folder / "variants.toml").write_text(VARIANTS)
    loads = ["--output-len", "8", "--requests", "4", "--prefill-len", "64", "--input-len", "8"]
    server = ["--model", str(model), "--device", "cpu", "--silence", "15", "--timeout", "600"]
    plan = [
        "--variants",
        str(folder / "variants.toml"),
        "--axes",
        "flags",
        "--blocks",
        "2",
        "--no-confirm",
        "--retries",
        "0",
    ]
    return [*plan, *server, *loads, "--out", str(folder / "run")]


def starts(arguments: list[str]) -> list[dict[str, Any]]:
    path = Path(arguments[-1]) / "starts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_it_goes_on_after_a_break_and_ends_with_a_verdict_on_each(hsbench: Command, arguments: list[str]) -> None:
    env = {**hsbench.env, **SABOTAGE}
    command = [sys.executable, "-m", "workbench.cli", "bench", "--nccl-sweep", *arguments]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Tests that a shell runs in the background inherit that the signal is ignored.
    with subprocess.Popen(command, env=env, preexec_fn=listen_to_ctrl_c, **how) as child:  # noqa: PLW1509
        while len(starts(arguments)) < 2:
            assert child.poll() is None, child.stdout and child.stdout.read()
            time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.wait(300) == 130
    before = starts(arguments)
    done = hsbench("bench", "--nccl-sweep", *arguments, "--json", timeout=1200, env=SABOTAGE)
    assert done.returncode == 0, done.stderr[-3000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert starts(arguments)[: len(before)] == before, "what was finished stays"
    rows = {row["variant"]: row for row in events[-1]["rows"]}
    assert rows["hangs"]["verdict"] == "hung"
    assert "HUNG_SPIN" in rows["hangs"]["reason"]
    assert rows["wrong"]["verdict"] == "gate"
    assert rows["interval"]["verdict"] in ("same", "undecided", "slower", "faster")
    measured = [s for s in starts(arguments) if s["start"]["variant"] == "interval" and s["outcome"] == "measured"]
    assert len(measured) == 2, events[-1]["invalid"]
    assert events[-1]["complete"]
    shown = hsbench.ok("bench", "show", arguments[-1])
    assert "hung" in shown
    assert "gate" in shown


def test_nccls_variables_are_refused_where_nccl_has_no_role(hsbench: Command, arguments: list[str]) -> None:
    sweep = [word if word != "flags" else "nccl,flags" for word in arguments]
    done = hsbench("bench", "--nccl-sweep", *sweep)
    assert done.returncode == 2
    assert "there is no GPU, so NCCL has no role" in done.stderr
    assert "--axes flags" in done.stderr
