"""The probe's deeper checks: reference, log-probabilities, self-test. Each returns plain JSON values."""

from collections.abc import Sequence
from typing import Any

from workbench.errors import CheckFailed
from workbench.probe.capture import Capture, capture, capture_batch, free_dumps
from workbench.probe.session import Target
from workbench.server.client import SglangClient
from workbench.worker import Worker

ENOUGH_TOKENS = 8
"""Shorter prompts leave too few tokens to average over; `probes/reference.py` has the measurements."""
VERDICT_TEXT = (
    "The lighthouse keeper counted eleven ships before dawn, wrote their names in a blue book, "
    "and wondered which of them would return before the storm."
)
BATCH_LENGTHS = (None, None, 3, 11, 24)
"""Lengths of the other prompts in the self-test's batch; None is the probed prompt's own, so that a mix-up of
two requests cannot be told from their shapes alone."""
BATCH_TRIES = 8


def reference_check(
    target: Target, client: SglangClient, worker: Worker, probed: Capture, *, model: str, timeout_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compare a capture with transformers in float32 and with the server's log-probabilities.

    A prompt under `ENOUGH_TOKENS` is judged on a built-in text instead, captured by the same server.

    Returns:
        The reference result and the log-probability result, each with a `verdict` a tensor or in all.
    """
    judged, note = probed, ""
    if len(probed.token_ids) < ENOUGH_TOKENS:
        ids, _ = client.tokenize(VERDICT_TEXT)
        judged = capture(target, client, ids, timeout_s=timeout_s, logprobs=True, worker=worker)
        note = f"a built-in text, since {len(probed.token_ids)} tokens are too few to judge by"
    try:
        result = worker.call("reference", model=model, folder=judged.folder)
        result["note"] = note
        return result, _logits(worker, judged, model)
    finally:
        if judged is not probed:
            free_dumps(target, [judged])


def _logits(worker: Worker, judged: Capture, model: str) -> dict[str, Any]:
    pairs = judged.answer.get("meta_info", {}).get("input_token_logprobs") or []
    given = [pair[0] for pair in pairs]
    if len(given) != len(judged.token_ids):
        raise CheckFailed(
            f"the server gave {len(given)} log-probabilities for {len(judged.token_ids)} tokens",
            "is its prefix cache off (--disable-radix-cache)?",
        )
    result = worker.call("logits", model=model, folder=judged.folder, server_logprobs=given)
    assert isinstance(result, dict)
    return result


def self_test(
    target: Target, client: SglangClient, worker: Worker, probed: Capture, *, timeout_s: float, routed: bool
) -> dict[str, Any]:
    """Send prompts one by one, then all in one batch, and compare the dumps request by request.

    A model whose tokens are `routed` to experts is given other bounds: see `probes/compare.py`.
    """
    filler, _ = client.tokenize(VERDICT_TEXT * 4)
    prompts = [list(probed.token_ids), *_other_prompts(len(probed.token_ids), filler)]
    others = [capture(target, client, p, timeout_s=timeout_s, worker=worker) for p in prompts[1:]]
    together, size = _one_batch(target, client, prompts, worker, timeout_s)
    solo = [probed.folder, *(one.folder for one in others)]
    compared = worker.call("compare", solo=solo, batch=[one.folder for one in together], routed=routed)
    free_dumps(target, [*others, *together])
    rows = [{**row, "label": "yours" if index == 0 else f"other {index}"} for index, row in enumerate(compared["rows"])]
    return {"batch": size, "rows": rows}


def _other_prompts(length: int, filler: Sequence[int]) -> list[list[int]]:
    """Different prompts, cut from the filler text at different places."""
    prompts = []
    for number, wanted in enumerate(BATCH_LENGTHS, start=1):
        start = number * 7 % len(filler)
        repeated = [*filler[start:], *(list(filler) * (length // len(filler) + 2))]
        prompts.append(repeated[: wanted or length])
    return prompts


def _one_batch(
    target: Target, client: SglangClient, prompts: list[list[int]], worker: Worker, timeout_s: float
) -> tuple[list[Capture], int]:
    """Dumps of all prompts, from tries until one forward pass held them all; and the size of the fullest pass.

    The scheduler takes what has arrived when it looks, so a batch can be split over two passes.
    """
    best: list[Capture] = []
    for _ in range(BATCH_TRIES):
        together = capture_batch(target, client, prompts, timeout_s=timeout_s, worker=worker)
        if _fullest_pass(together) <= _fullest_pass(best):
            free_dumps(target, together)
            continue
        free_dumps(target, best)
        best = together
        if _fullest_pass(best) >= len(prompts):
            break
    return best, _fullest_pass(best)


def _fullest_pass(captures: list[Capture]) -> int:
    return max((int(one.meta.get("pass", {}).get("requests", 1)) for one in captures), default=0)
