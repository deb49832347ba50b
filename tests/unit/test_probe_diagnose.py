"""Each cause of a missing or short dump is named from the evidence that it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.probe.diagnose import why_missing, why_short
from workbench.probe.evidence import Evidence, gather

RUNNING: dict[str, Any] = {"counts": {}, "recent": [], "waiting_bytes": 0}


def evidence(**facts: Any) -> Evidence:
    return Evidence(**{"request_id": "hs-1", "dump_dir": "/d", **facts})


def recent(fate: str) -> dict[str, Any]:
    return {**RUNNING, "recent": [{"request_id": "hs-1", "fate": fate}]}


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"free_bytes": 10, "needed_bytes": 11}, "no_space"),
        ({"errors": ({"error": "OSError(28): [Errno 28] No space"},), "recorder": RUNNING}, "no_space"),
        ({"errors": ({"error": "ValueError('rows')"},), "recorder": RUNNING}, "recorder_failed"),
        ({"log_complaint": "SGLANG_HS_DUMP_FINAL is 'x'"}, "recorder_off"),
        ({"variable": ""}, "variable_unset"),
        ({"variable": "/elsewhere"}, "other_folder"),
        ({"variable": "/d", "patch_state": "clean"}, "not_patched"),
        ({"variable": "/d", "patch_state": "applied", "patched_after_start": True}, "patched_after_start"),
        ({"variable": "/d", "patch_state": "applied"}, "model_not_covered"),
        ({"recorder": recent("foreign")}, "not_ours"),
        ({"recorder": recent("recorded")}, "still_writing"),
        ({"recorder": {**RUNNING, "counts": {"passes_mixed": 1}}}, "mixed_pass"),
        ({"recorder": {**RUNNING, "counts": {"passes_graph": 1}}}, "prefill_graph"),
        ({"recorder": RUNNING}, "not_seen"),
    ],
)
def test_why_missing(facts: dict[str, Any], cause: str) -> None:
    diagnosis = why_missing(evidence(**facts))
    assert diagnosis.cause == cause
    assert diagnosis.message
    assert diagnosis.next_step


@pytest.mark.parametrize(
    ("passes", "got", "prefix", "chunk", "cause"),
    [
        (1, 9, 0, 0, None),
        (3, 4, 0, 0, "chunked"),
        (1, 4, 5, 1, "chunked"),
        (1, 4, 5, None, "radix_hit"),
        (2, 4, 5, None, "radix_hit"),
        (1, 4, 0, 0, "short"),
    ],
)
def test_why_short(passes: int, got: int, prefix: int, chunk: int | None, cause: str | None) -> None:
    meta = {"token_ids": list(range(got)), "prefix_len": prefix, "chunk": chunk}
    diagnosis = why_short(evidence(passes=passes), 9, meta)
    assert (diagnosis and diagnosis.cause) == cause


def test_gather_reads_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "recorder.json").write_text(json.dumps(RUNNING))
    (tmp_path / "index.jsonl").write_text('{"request_id": "hs-1"}\n{"request_id": "hs-2"}\n{"requ')
    (tmp_path / "errors.jsonl").write_text('{"request_id": "hs-1", "error": "x"}\n{"request_id": "hs-3"}\n')
    log = tmp_path / "log"
    log.write_text("fine\n[t] _hs_ recorder is off: bad value\n")
    seen = _gather(tmp_path, log)
    assert seen.recorder == RUNNING
    assert seen.passes == 1
    assert [e["error"] for e in seen.errors] == ["x"]
    assert seen.log_complaint == "bad value"
    assert seen.free_bytes is not None


def test_gather_survives_nothing_and_garbage(tmp_path: Path) -> None:
    assert _gather(tmp_path / "none", tmp_path / "no-log").recorder is None
    (tmp_path / "recorder.json").write_bytes(b"\xff{")
    (tmp_path / "index.jsonl").write_bytes(b"\xff\n[1]\n")
    assert _gather(tmp_path, None).passes == 0


def _gather(folder: Path, log: Path | None) -> Evidence:
    return gather("hs-1", folder, variable=None, patch_state=None, patched_after_start=False, log=log, needed_bytes=1)
