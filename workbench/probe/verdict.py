"""One verdict on a probe: the first thing that is wrong, in the order of how much it spoils."""

from typing import Any

import msgspec

from workbench.probe.capture import Capture
from workbench.probe.report import TensorRow


class Verdict(msgspec.Struct, frozen=True):
    """`name` is stable and short; "ok" when nothing is wrong."""

    name: str
    summary: str
    next_step: str = ""


def judge(got: Capture, rows: tuple[TensorRow, ...], deeper: dict[str, Any]) -> Verdict:
    """Judge a capture by its completeness, its values, and the deeper checks that were run.

    Args:
        got: The capture.
        rows: Its tensors.
        deeper: Results of `checks`, by the name of the report's field.
    """
    if got.shortfall is not None:
        return Verdict(got.shortfall.cause, got.shortfall.message, got.shortfall.next_step)
    return (
        _values(rows)
        or _reference(deeper.get("reference"))
        or _logits(deeper.get("logits"))
        or _self_test(deeper.get("self_test"))
        or Verdict("ok", _good(rows, deeper))
    )


def _values(rows: tuple[TensorRow, ...]) -> Verdict | None:
    for row in rows:
        if row.nan or row.inf:
            return Verdict(
                "not_finite",
                f"{row.name} holds {row.nan} NaN and {row.inf} infinite values",
                "is the checkpoint or its quantisation sound? --reference shows where it begins",
            )
        if row.min == row.max:
            return Verdict(
                "constant", f"{row.name} holds one value only: {row.min}", "is the model's weight file complete?"
            )
    return None


def _reference(reference: dict[str, Any] | None) -> Verdict | None:
    for row in reference["tensors"] if reference else ():
        if row["verdict"] != "ok":
            claimed = f"block {row['claimed']}" + (f", {row['claimed_norm']}-norm" if row["claimed_norm"] else "")
            return Verdict(
                row["verdict"].replace(" ", "_"),
                f"{row['name']} claims {claimed} but fits {row['best']} best (error {row['best_error']:.3g})",
                "hsbench patch verify; is the served model the one in the folder?",
            )
    return None


def _logits(logits: dict[str, Any] | None) -> Verdict | None:
    if logits is None or logits["verdict"] in ("ok", "nothing to compare"):
        return None
    return Verdict(
        "logits_" + logits["verdict"].replace(" ", "_"),
        f"the final state as {logits['claimed']}-norm gives other log-probabilities than the server "
        f"(mean difference {logits['error']:.3g}, as {logits['other']}-norm {logits['error_other']:.3g})",
        "is the served model the one in the folder, and its norm side as recorded?",
    )


def _self_test(result: dict[str, Any] | None) -> Verdict | None:
    if result is None:
        return None
    for row in result["rows"]:
        if row["verdict"] != "ok":
            name = {"swapped": "mixed_up"}.get(row["verdict"], "batch_" + row["verdict"].replace(" ", "_"))
            return Verdict(name, f"in the batch, {row['summary']}", "do not use this server's dumps")
    if result["batch"] < 2:
        return Verdict("not_batched", "the server never took two requests in one pass", "raise --max-prefill-tokens")
    return None


def _good(rows: tuple[TensorRow, ...], deeper: dict[str, Any]) -> str:
    parts = [f"{len(rows)} tensors of {rows[0].shape[0] if rows else 0} tokens, complete and finite"]
    if deeper.get("reference"):
        parts.append("every block is the claimed one")
    if deeper.get("logits", {}).get("verdict") == "ok":
        parts.append("the final state gives the server's log-probabilities")
    if deeper.get("self_test"):
        parts.append(f"a batch of {deeper['self_test']['batch']} gives every request its own rows")
    return "; ".join(parts)
