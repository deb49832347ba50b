"""What was measured elsewhere and lies in `docs/results` can be looked at again."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean

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
