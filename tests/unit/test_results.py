"""What was measured elsewhere and lies in `docs/results` can be looked at again."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean, mean, stdev

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_sweep_of_two_gpus_is_shown_again() -> None:
    folder = RESULTS / "nccl-h200-x2"
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli", "bench", "show", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)["rows"]}
    starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    speed = {
        (one["start"]["block"], one["start"]["variant"]): one["measured"]["decode_tok_s"]
        for one in starts
        if one["measured"] and one["start"]["block"]
    }
    ratios = [speed[block, "no-custom-ar"] / speed[block, "baseline"] for block in (1, 2, 3)]
    row = rows["no-custom-ar"]
    assert (row["verdict"], row["served"]["decode"]) == ("slower", "NCCL")
    assert row["decisions"]["decode_tok_s"]["ratio"] == pytest.approx(geometric_mean(ratios))
    assert rows["proto-ll"]["served"]["decode"] == "custom all-reduce"


@pytest.mark.parametrize("shape", ["llama-8b", "deepseek-v3"])
def test_every_request_of_a_batch_on_an_h200_held_its_own_rows(shape: str) -> None:
    """The errors of these runs, by the bounds of today: the runs were judged by those for dense models."""
    from probes.compare import DENSE_BOUNDS, ROUTED_BOUNDS

    bounds = ROUTED_BOUNDS if shape == "deepseek-v3" else DENSE_BOUNDS
    for name in ("capture-speed", "extraction-speed"):
        rows = json.loads((RESULTS / f"{name}-{shape}.json").read_text())["checks"]["batch"]
        assert [row["best"] for row in rows] == list(range(6))
        assert all(row["error"] <= bounds.mean for row in rows)
        assert all(row["median_error"] <= bounds.median for row in rows)
        assert all(row["worst_error"] <= bounds.worst for row in rows)


@pytest.mark.parametrize(("shape", "least"), [("llama-8b", 0.98), ("deepseek-v3", 0.95)])
def test_the_extractions_reach_their_ceilings(shape: str, least: float) -> None:
    rounds = json.loads((RESULTS / f"extraction-speed-{shape}.json").read_text())["extractions"]
    ratios = []
    for one in rounds:
        disk = max(one["disk"].values()) * one["tokens"] / one["bytes"]
        ratios.append(one["tokens"] / one["seconds"] / min(disk, one["bare_tok_s"]))
    assert len(ratios) == 4
    assert sum(ratios) / 4 >= least


def test_the_recorder_costs_two_cpu_cores_nothing_that_six_rounds_show() -> None:
    blocks = json.loads((RESULTS / "capture-speed-cpu.json").read_text())["blocks"]
    speed = {(one["round"], one["variant"]): one["tok_s"] for one in blocks}  # a slope: without ramp and drain
    assert all(one["tok_s"] == pytest.approx(one["tokens"] / one["seconds"], rel=0.03) for one in blocks)
    ratios = [speed[number, "recorder"] / speed[number, "bare"] for number in range(6)]
    assert mean(ratios) == pytest.approx(1.01, abs=0.005)
    assert 2.571 * stdev(ratios) / 6**0.5 == pytest.approx(0.06, abs=0.005)  # Student's t of 95 % for 5 degrees
    recorded = [one["recorded_bytes"] for one in blocks if one["variant"] == "recorder"]
    assert min(recorded) > 40e6
