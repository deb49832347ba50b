"""Rates and intervals of the measuring scripts, against arithmetic."""

import argparse
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import capture_overhead, capture_server, host_rates
from bench.capture_report import report
from bench.prefill_load import THROUGHPUT, Load, interval, rate, spread
from workbench.errors import ServerError


def test_answers_in_batches_have_the_rate_of_the_batches() -> None:
    ends = [0.4 * batch for batch in range(20) for _ in range(8)]
    assert rate(ends, 2048, 16) == pytest.approx(8 / 0.4 * 2048)


def test_ramp_and_drain_are_left_out() -> None:
    steady = [1.0 + 0.1 * number for number in range(100)]
    assert rate([0.2, 0.9, *steady, 13.0, 19.0], 10, 2) == pytest.approx(100.0)


@pytest.mark.parametrize("ends", [[], [1.0], [1.0, 1.0], [1.0] * 40])
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
    before = [signal.getsignal(number) for number in capture_overhead.ENDS]
    for name in ("run", "Popen"):
        monkeypatch.setattr(capture_server.subprocess, name, lambda command, **_how: asked.append(command))
    monkeypatch.setattr(capture_server.state, "load", lambda name: name)
    monkeypatch.setattr(capture_server.state, "alive", lambda record: record == "overhead-bare")
    with pytest.raises(SystemExit, match="a server named overhead-bare runs already; hsbench stop overhead-bare ends"):
        capture_overhead.measure(options)
    assert asked == [], "nothing was started, nothing is stopped"
    assert [signal.getsignal(number) for number in capture_overhead.ENDS] == before
    assert not (tmp_path / "d").exists()


def test_the_servers_own_rate_is_read_from_its_log() -> None:
    line = (
        b"[2026-11-29 22:27:44] Prefill batch, #new-seq: 7, cuda graph: False, input throughput (token/s): 39053.27\n"
    )
    assert THROUGHPUT.findall(line) == [b"39053.27"]


def test_what_is_measured_in_is_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit, match="is there already: name a new one"):
        host_rates.refuse_used(tmp_path)
    host_rates.refuse_used(tmp_path / "new")
    assert host_rates.written(tmp_path, 40_000, 2, 10_000) > 0
    with pytest.raises(OSError, match="no room for 3 files"):
        host_rates.written(tmp_path, 1, 3, 1 << 60)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


class Answers:
    """A client of a server that answers `good` requests and then fails for ever."""

    def __init__(self, good: int) -> None:
        self.good, self.asked = good, 0

    def generate(self, ids: list[int], rid: str, timeout: float) -> None:
        self.asked += 1
        mine = self.asked
        time.sleep(0.01)
        if mine > self.good:
            raise ServerError("no server answers")


def test_the_first_failure_ends_a_load() -> None:
    client: Any = Answers(8)
    block = Load(client, length=4, concurrency=2, vocabulary=9, log=None).run(60.0, "x")
    assert (block.error, block.requests > 0) == ("no server answers", True)
    assert 1 <= block.failed <= 2
    assert client.asked <= 10


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"bytes": 0, "errors": 36}, "recorder lost 36 dumps of this block: disk full"),
        ({"bytes": 0, "errors": 0}, "recorder lost all dumps of this block: disk full"),
        ({"bytes": 9, "errors": 1}, "recorder lost 1 dumps"),
    ],
)
def test_a_recorder_that_loses_dumps_has_no_rate(tmp_path: Path, made: dict[str, int], said: str) -> None:
    server = capture_server.Server("recorder", argparse.Namespace(scratch=str(tmp_path)))
    server.dumps.mkdir()
    (server.dumps / "errors.jsonl").write_text('{"request_id": "a", "error": "disk full"}\n')
    with pytest.raises(SystemExit, match=said):
        server._refuse_lost(made)
    server._refuse_lost({"bytes": 9, "errors": 0})


def test_the_report_is_arithmetic_of_the_blocks() -> None:
    def block(number: int, variant: str, rate: float) -> dict[str, Any]:
        counts = {"waiting_peak": 3_000_000, "drain_s": 0.6, "memory": 5_000_000_000, "held_back_ms": 4}
        return {"round": number, "variant": variant, "length": 64, "tok_s": rate, "server_tok_s": None, **counts}

    rates = {"bare": (100.0, 100.0, 100.0), "recorder": (98.0, 100.0, 102.0), "plain": (49.0, 50.0, 51.0)}
    blocks = [block(number, name, rate) for name, all_rates in rates.items() for number, rate in enumerate(all_rates)]
    said = list(report({"blocks": blocks}))
    assert said[0] == "recorder / bare,     64 tokens 1.0000 ± 0.0497 over 3 rounds, by the client; bare 100 tok/s"
    assert said[1].startswith("recorder / plain,    64 tokens 2.0000 ± 0.0000 over 3 rounds")
    assert "held prefill back for 12 ms, at most 3.0 MB waited, all written 0.6 s after" in said[2]
