"""Are a recording server's states still right? A few prompts alone, in one batch, and against float32."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probes.weights import is_routed, read_config
from workbench.probe.capture import Capture, capture, capture_batch, free_dumps
from workbench.probe.options import ProbeOptions
from workbench.probe.prompt import Prompt
from workbench.probe.session import Target, open_target
from workbench.server.client import SglangClient

LENGTHS = (48, 333, 7, 105, 64, 200)
REFERENCES = 2
"""Of the prompts, the first so many go through the float32 reference too."""
TIMEOUT_S = 300.0


def target_of(name: str) -> Target:
    """The running server of this name."""
    waiting = open_target(ProbeOptions(prompt=Prompt(token_ids=(1,)), name=name))
    try:
        while True:
            next(waiting)
    except StopIteration as done:
        target: Target = done.value
        return target


def capture_twice(name: str, vocabulary: int) -> tuple[list[Capture], list[Capture], Target]:
    """Random prompts of `LENGTHS` tokens, each alone, with log-probabilities, and all in one batch."""
    chance, target = random.Random(11), target_of(name)
    prompts = [[chance.randrange(10, vocabulary) for _ in range(length)] for length in LENGTHS]
    with SglangClient(target.url, timeout=TIMEOUT_S) as client:
        solo = [capture(target, client, prompt, timeout_s=TIMEOUT_S, logprobs=True) for prompt in prompts]
        batch = capture_batch(target, client, prompts, timeout_s=TIMEOUT_S)
    return solo, batch, target


def check(name: str, model: Path, vocabulary: int, device: str) -> dict[str, Any]:
    """Both comparisons on the running server `name`; its model's float32 weights must fit beside it.

    Returns:
        `batch`: a row a prompt; `reference`: the first prompts, as `bench.gpu_check.judged` puts it.
    """
    from bench.gpu_check import judged

    solo, batch, target = capture_twice(name, vocabulary)
    try:
        return {
            "batch": compared(solo, batch, is_routed(read_config(model))),
            "reference": judged(model, solo[:REFERENCES], device),
        }
    finally:
        free_dumps(target, [*solo, *batch])


def compared(solo: list[Capture], batch: list[Capture], routed: bool) -> list[dict[str, Any]]:
    """Each request of the batch against all prompts sent alone."""
    from probes.compare import compare
    from probes.dumps import load

    alone, together = ([load(one.folder) for one in captures] for captures in (solo, batch))
    return [asdict(row) for row in compare(alone, together, routed=routed)]


def summary(found: dict[str, Any]) -> list[str]:
    """The two outcomes as lines."""
    rows, judged = found["batch"], found["reference"]
    worst = max(row["error"] if row["error"] is not None else float("inf") for row in rows)
    fine = f"{sum(row['verdict'] == 'ok' for row in rows)} of {len(rows)} requests ok"
    states = [row for one in judged for row in one["tensors"]]
    right = sum(row["verdict"] == "ok" for row in states)
    heads = ", ".join(one["logits"]["verdict"] for one in judged)
    median = max(row["median_error"] if row["median_error"] is not None else float("inf") for row in rows)
    return [
        f"batch against alone         {fine}, error at most {worst:.4f}, median {median:.4f}",
        f"float32 reference           {right} of {len(states)} states are the claimed ones; log-probabilities: {heads}",
    ]
