"""The probe's seams: waiting for a dump, judging, rendering, and the worker as seen from the command line."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from workbench.errors import CheckFailed, Missing
from workbench.probe.arrival import errors_of, wait_for_dumps
from workbench.probe.capture import Capture
from workbench.probe.diagnose import Diagnosis
from workbench.probe.report import OtherDump, ProbeReport, TensorRow, Token
from workbench.probe.verdict import judge
from workbench.render import text
from workbench.render.probe import probe_text
from workbench.worker import Worker

ROW = TensorRow(
    name="aux_0", after_block=2, captured_entering=3, norm=None, shape=(2, 8), dtype="bfloat16", bytes=32,
    min=-1.5, max=2.0, mean=0.25, std=1.0, zeros=4, nan=0, inf=0, histogram=(0, 1, 9, 900), token_norms=(1.0, 2.0),
)  # fmt: skip
GOT = Capture(request_id="hs-1", token_ids=(1, 2), folder="/d/req_0", meta={}, answer={}, seconds=0.5, shortfall=None)


def report(**changes: Any) -> ProbeReport:
    whole = ProbeReport(
        model="/m", prompt="Hi", tokens=(Token(1, "H"), Token(2, "[i]")), tensors=(ROW,), final_norm="pre",
        other_dumps=(OtherDump("req_1", "foreign", 6), OtherDump("", "decode pass", count=7)), verdict="ok",
        summary="fine", seconds=1.0, capture_seconds=0.5, gb_per_second=1e-6, request_id="hs-1", dump="/d/req_0",
        server="http://x",
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


def index_line(number: int, request_id: str, **more: int | None) -> str:
    return json.dumps({"n": number, "request_id": request_id, **more}) + "\n"


def test_a_dump_is_found_when_its_whole_line_is_there(tmp_path: Path) -> None:
    index = tmp_path / "index.jsonl"
    line = index_line(7, "hs-1")

    def grow() -> None:
        for piece in (index_line(6, "hs-0"), "garbage\n", line[:9], line[9:]):
            with open(index, "a", encoding="utf-8") as file:
                file.write(piece)
            time.sleep(0.03)

    thread = threading.Thread(target=grow)
    thread.start()
    assert wait_for_dumps(tmp_path, "hs-1", 10) == [tmp_path / "req_7"]
    thread.join()


def test_waiting_ends_at_the_deadline_and_on_failure(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert wait_for_dumps(tmp_path, "hs-1", 3, clock=lambda: now[0], sleep=sleep) == []
    assert now[0] == pytest.approx(3, abs=0.1)
    assert wait_for_dumps(tmp_path, "hs-1", 3, failed=lambda: True, clock=lambda: now[0], sleep=sleep) == []
    assert now[0] == pytest.approx(3, abs=0.1)


def test_chunks_are_waited_for_and_come_in_the_order_of_their_passes(tmp_path: Path) -> None:
    index = tmp_path / "index.jsonl"
    index.write_text(index_line(1, "hs-1", num_tokens=4, chunk=1, **{"pass": 6}))
    late = index_line(0, "hs-1", num_tokens=4, chunk=0, **{"pass": 5})

    def sleep(seconds: float) -> None:
        with open(index, "a", encoding="utf-8") as file:
            file.write(late)

    found = wait_for_dumps(tmp_path, "hs-1", 10, tokens=8, rest_s=10, sleep=sleep)
    assert found == [tmp_path / "req_0", tmp_path / "req_1"]


def test_a_rest_that_cannot_come_is_not_waited_for(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    (tmp_path / "index.jsonl").write_text(index_line(3, "hs-1", num_tokens=4, chunk=0))
    found = wait_for_dumps(tmp_path, "hs-1", 60, tokens=8, rest_s=2, clock=lambda: now[0], sleep=sleep)
    assert found == [tmp_path / "req_3"]
    assert now[0] == pytest.approx(2, abs=0.1)
    (tmp_path / "index.jsonl").write_text(index_line(3, "hs-1", num_tokens=4, chunk=None))
    assert wait_for_dumps(tmp_path, "hs-1", 60, tokens=8, rest_s=60, clock=lambda: now[0], sleep=sleep) == found
    assert now[0] == pytest.approx(2, abs=0.1)


def test_an_error_line_is_seen(tmp_path: Path) -> None:
    (tmp_path / "errors.jsonl").write_text('{"request_id": "hs-1"}\n')
    assert errors_of(tmp_path, "hs-1")()
    assert not errors_of(tmp_path, "hs-2")()


REFERENCE_ROW = {
    "name": "aux_0", "claimed": 2, "claimed_norm": None, "error": 0.3, "error_before": 0.2, "error_after": 0.01,
    "best": "block 3", "best_block": 3, "best_error": 0.01, "verdict": "wrong block",
}  # fmt: skip
LOGITS = {"verdict": "wrong norm", "claimed": "pre", "other": "post", "error": 9.0, "error_other": 0.1}


@pytest.mark.parametrize(
    ("row", "deeper", "name"),
    [
        (ROW, {}, "ok"),
        (msgspec.structs.replace(ROW, nan=1), {}, "not_finite"),
        (msgspec.structs.replace(ROW, inf=1), {}, "not_finite"),
        (msgspec.structs.replace(ROW, min=0.0, max=0.0), {}, "constant"),
        (ROW, {"reference": {"tensors": [REFERENCE_ROW]}}, "wrong_block"),
        (ROW, {"logits": LOGITS}, "logits_wrong_norm"),
        (ROW, {"self_test": {"batch": 6, "rows": [{"verdict": "swapped", "summary": "s"}]}}, "mixed_up"),
        (ROW, {"self_test": {"batch": 6, "rows": [{"verdict": "no match", "summary": "s"}]}}, "batch_no_match"),
        (ROW, {"self_test": {"batch": 1, "rows": [{"verdict": "ok", "summary": "s"}]}}, "not_batched"),
        (ROW, {"logits": {"verdict": "nothing to compare"}}, "ok"),
    ],
)
def test_one_verdict(row: TensorRow, deeper: dict[str, Any], name: str) -> None:
    verdict = judge(GOT, (row,), deeper)
    assert verdict.name == name
    assert bool(verdict.next_step) == (name != "ok")


def test_a_short_dump_comes_before_all_else() -> None:
    short = msgspec.structs.replace(GOT, shortfall=Diagnosis("radix_hit", "m", "n"))
    assert judge(short, (msgspec.structs.replace(ROW, nan=1),), {}).name == "radix_hit"


@pytest.mark.parametrize("width", [80, 128, 160])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("workbench.render.probe.columns", lambda: width)
    shown = probe_text(report())
    table = [line for line in shown.splitlines() if "aux_0" in line or "tensor" in line]
    assert table
    assert max(map(len, table)) <= width
    for expected in ("entering 3", "[2, 8]", "bfloat16", "-1.5", "25 %", "2 '[i]'"):
        assert expected in shown
    assert "decode pass x7" in shown


def test_long_prompts_are_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tuple(Token(n, f"t{n}") for n in range(500))
    shown = probe_text(report(tokens=tokens))
    assert "444 more" in shown
    assert "'t499'" in shown


def test_ascii_when_the_terminal_speaks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "speaks_unicode", lambda: False)
    monkeypatch.setattr("workbench.render.probe.verdict_mark", text.verdict_mark)
    assert text.bars((0, 1, 9, 900)).isascii()
    assert text.plain_table("t", ["a", "b"], [["x", "1"]]).isascii()


def test_bars_grow_with_the_count() -> None:
    line = text.bars((0, 1, 10, 100, 1000))
    assert line[0] == " "
    assert sorted(line[1:], key=text.BARS.index) == list(line[1:])


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2304, "2.3 kB"), (97e6, "97.0 MB"), (1e15, "1000.0 TB")],
)
def test_sizes(count: float, shown: str) -> None:
    assert text.size(count) == shown


def test_the_worker_answers_and_reports() -> None:
    with Worker(sys.executable) as worker:
        assert worker.call("ping")["torch"]
        with pytest.raises(CheckFailed, match="/no/such"):
            worker.call("describe", folder="/no/such")
        assert worker.call("list_dumps", folder="/no/such") == []


def test_a_worker_without_torch_is_explained(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with Worker(str(python)) as worker, pytest.raises(Missing, match="torch"):
        worker.call("ping")
    with pytest.raises(Missing, match="cannot run"):
        Worker(str(tmp_path / "none"))
