"""Why a dump did not come, or came short: from evidence to one sentence and a next step."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workbench.probe.evidence import DUMP_VARIABLE, Evidence, no_space


class Diagnosis(msgspec.Struct, frozen=True):
    """One cause, by a short stable name, in words, and what to do about it."""

    cause: str
    message: str
    next_step: str


def why_missing(seen: Evidence) -> Diagnosis:
    """The most likely reason that a finished request left no dump."""
    if no_space(seen):
        return _no_space(seen)
    if seen.errors:
        return Diagnosis(
            "recorder_failed",
            f"the recorder failed on this request: {seen.errors[-1].get('error')}",
            f"see {seen.dump_dir}/errors.jsonl and the server's log",
        )
    if seen.recorder is None:
        return _recorder_absent(seen)
    return _recorder_present(seen, seen.recorder)


def _no_space(seen: Evidence) -> Diagnosis:
    free = "?" if seen.free_bytes is None else f"{seen.free_bytes / 1e6:.1f}"
    return Diagnosis(
        "no_space",
        f"no space in the dump folder {seen.dump_dir}: {free} MB free, {seen.needed_bytes / 1e6:.1f} MB needed",
        "remove old req_* folders there, or start the server with another --dump-dir",
    )


def _recorder_absent(seen: Evidence) -> Diagnosis:
    if seen.log_complaint:
        return Diagnosis(
            "recorder_off", f"the recorder switched itself off: {seen.log_complaint}", "correct it and restart"
        )
    if seen.variable == "":
        return Diagnosis(
            "variable_unset",
            f"the server runs without {DUMP_VARIABLE}, so it records nothing",
            "restart it: hsbench stop, then hsbench serve --model … --dump-dir DIR",
        )
    if seen.variable is not None and seen.variable != seen.dump_dir:
        return Diagnosis(
            "other_folder",
            f"the server records into {seen.variable}, not into {seen.dump_dir}",
            f"use --dump-dir {seen.variable}",
        )
    if seen.patch_state is not None and seen.patch_state != "applied":
        return Diagnosis(
            "not_patched",
            f"the engine's source is not patched (state: {seen.patch_state})",
            "hsbench patch apply, then restart the server",
        )
    if seen.patched_after_start:
        return Diagnosis(
            "patched_after_start",
            "the patch was applied after this server started, so it runs the old source",
            "restart the server",
        )
    return Diagnosis(
        "model_not_covered",
        "the recorder never ran: this model does not pass through a patched file, or another SGLang serves it",
        "hsbench patch status; is the model of a patched family, and --python the server's interpreter?",
    )


def _recorder_present(seen: Evidence, recorder: dict[str, Any]) -> Diagnosis:
    fates = [r for r in recorder.get("recent", ()) if r.get("request_id") == seen.request_id]
    counts = recorder.get("counts", {})
    if fates and fates[-1].get("fate") != "recorded":
        return Diagnosis(
            "not_ours",
            f"the recorder passed this request over as '{fates[-1].get('fate')}'",
            "its id must start with hs-, or start the server with SGLANG_HS_DUMP_ALL=1",
        )
    if fates:
        return Diagnosis(
            "still_writing",
            f"the dump is still being written ({recorder.get('waiting_bytes', 0) / 1e6:.0f} MB wait for the disk)",
            "try again with a longer --timeout, or put the dump folder on a faster disk",
        )
    if counts.get("passes_mixed"):
        return Diagnosis(
            "mixed_pass",
            "prefill shared its pass with decode (chunked prefill mixes them), which is not recorded",
            "restart the server with --chunked-prefill-size -1 and without --enable-mixed-chunk",
        )
    if counts.get("passes_graph"):
        return Diagnosis(
            "prefill_graph",
            "prefill ran as a CUDA graph, which Python code in the model cannot see",
            "restart the server with --disable-prefill-cuda-graph",
        )
    return Diagnosis(
        "not_seen",
        "the recorder runs but never saw this request: another server answered, or another rank records",
        "check --url, and that only one server records into this folder",
    )


def why_short(seen: Evidence, sent: int, meta: Mapping[str, Any]) -> Diagnosis | None:
    """The reason that a dump holds fewer tokens than were sent, or None when it is whole.

    Args:
        seen: Evidence gathered after the dump came.
        sent: Number of tokens in the prompt.
        meta: The dump's own description.
    """
    got, prefix_len, chunk = len(meta.get("token_ids", ())), int(meta.get("prefix_len", 0)), meta.get("chunk", 0)
    if got == sent and prefix_len == 0:
        return None
    if chunk or (chunk is not None and seen.passes > 1):
        return Diagnosis(
            "chunked",
            f"prefill was cut into {max(2, seen.passes)} chunks; this dump holds {got} of {sent} tokens",
            "restart the server with --chunked-prefill-size -1, or have chunks put together: --allow-chunked",
        )
    if prefix_len:
        return Diagnosis(
            "radix_hit",
            f"the first {prefix_len} of {sent} tokens came from the prefix cache and were not computed",
            "restart the server with --disable-radix-cache",
        )
    return Diagnosis(
        "short", f"the dump holds {got} of {sent} tokens", "is this dump of another request with the same id?"
    )
