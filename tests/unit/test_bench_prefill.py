"""Rates and intervals of the measuring scripts, against arithmetic."""

import json
import math
import sys
from pathlib import Path

import pytest

from bench import capture_overhead
from bench.prefill_load import THROUGHPUT, interval, rate, spread


def test_answers_in_batches_have_the_rate_of_the_batches() -> None:
    ends = [0.4 * batch for batch in range(20) for _ in range(8)]
    assert rate(ends, 2048, 16) == pytest.approx(8 / 0.4 * 2048)


def test_ramp_and_drain_are_left_out() -> None:
    steady = [1.0 + 0.1 * number for number in range(100)]
    assert rate([0.2, 0.9, *steady, 13.0, 19.0], 10, 2) == pytest.approx(100.0)


@pytest.mark.parametrize("ends", [[], [1.0], [1.0, 1.0]])
def test_too_few_answers_have_no_rate(ends: list[float]) -> None:
    assert rate(ends, 10, 4) == 0.0


def test_the_interval_is_students() -> None:
    mean, half = interval([0.98, 1.0, 1.02])
    assert mean == pytest.approx(1.0)
    assert half == pytest.approx(4.30265273 * 0.02 / math.sqrt(3), rel=1e-6)


def test_one_round_has_no_interval_and_says_so() -> None:
    assert spread([0.98, 1.0, 1.02], 3) == "1.000 ± 0.050 over 3 rounds"
    assert spread([0.97]) == "0.9700 in one round, so without an interval"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--length", "0"], "--length: '0' is not a number from 1 on"),
        (["--block", "soon"], "--block: 'soon' is not a number from 0.1 on"),
        (["--warm", "inf"], "--warm: 'inf' is not a number"),
        (["--rounds", "-1"], "--rounds: '-1' is not a number from 0 on"),
        (["--samples", "5", "--variants", "bare"], "--samples needs the recorder"),
        (["--vocabulary", "5"], "--vocabulary: ids are drawn from 5 on"),
    ],
)
def test_numbers_that_make_no_benchmark_are_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capture_overhead", *words])
    with pytest.raises(SystemExit):
        capture_overhead.parsed()
    assert said in capsys.readouterr().err


def test_a_server_of_another_run_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["capture_overhead", "--out", str(tmp_path / "o"), "--dumps", str(tmp_path / "d")])
    options = capture_overhead.parsed()
    asked: list[list[str]] = []
    monkeypatch.setattr(capture_overhead.subprocess, "run", lambda command, **_how: asked.append(command))
    monkeypatch.setattr(capture_overhead.state, "load", lambda name: name)
    monkeypatch.setattr(capture_overhead.state, "alive", lambda record: record == "overhead-bare")
    with pytest.raises(SystemExit, match="a server named overhead-bare runs already; hsbench stop overhead-bare ends"):
        capture_overhead.measure(options)
    assert asked == [], "nothing was started, nothing is stopped"
    assert json.loads((tmp_path / "o").read_text())["blocks"] == []


def test_the_servers_own_rate_is_read_from_its_log() -> None:
    line = (
        b"[2026-11-29 22:27:44] Prefill batch, #new-seq: 7, cuda graph: False, input throughput (token/s): 39053.27\n"
    )
    assert THROUGHPUT.findall(line) == [b"39053.27"]
