"""Four shards of a real run, one after the other, merged and compared with the run without shards; then planned by."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import Command

pytestmark = pytest.mark.engine

ROWS, OF = 16, 4
REPEATS = 0.001
"""As in `test_extract_job.py`: what two runs differ by, at most, in the mean distance a token of any state."""


def some(out: Path, *more: str) -> list[str]:
    """One writer, and rows of ids: what a process imports is most of what so short a job takes."""
    few = ["--concurrency", "4", "--writers", "1", "--baseline", "0", "--min-free", "0.1", "--foreground"]
    return ["--out", str(out), *few, *more]


def row(number: int) -> dict[str, list[int]]:
    """Between 24 and 39 tokens, the second half trained on; nothing is in the last shard's rows, which are refused."""
    length = 24 + number
    trained = number % OF != OF - 1
    return {
        "input_ids": [1000 + (number * 7919 + place * 104_729) % 40_000 for place in range(length)],
        "loss_mask": [int(trained and place >= length // 2) for place in range(length)],
    }


def test_shards_merged_are_the_run_without_shards(hsbench: Command, server: str, tmp_path: Path) -> None:
    data, whole, out = tmp_path / "chats.jsonl", tmp_path / "whole", tmp_path / "shards"
    data.write_text("".join(json.dumps(row(number)) + "\n" for number in range(ROWS)))
    hsbench.ok("extract", str(data), *some(whole))
    for number in range(OF):
        if number == OF - 1:
            refused = hsbench("extract", "--merge", str(out))
            assert (refused.returncode, "1 of 4 shards are missing" in refused.stderr) == (2, True)
            assert "shard_3-of-4" in refused.stderr
        hsbench.ok("extract", str(data), *some(out, "--shard", f"{number}/{OF}"))
    seen = hsbench.json("watch", str(out), "--once")
    assert [seen[name] for name in ("state", "rows", "written", "refused")] == ["done", ROWS, ROWS - 4, 4]
    assert [row["shard"] for row in seen["shards"]] == [f"shard_{number}-of-{OF}" for number in range(OF)]
    assert hsbench.ok("extract", "--merge", str(out), "--check").strip() == str(out)

    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
    lines, expected = index_of(out), index_of(whole)
    assert list(lines) == sorted(expected) == list(range(ROWS))
    for index, line in lines.items():
        assert [line.get(name) for name in SAME] == [expected[index].get(name) for name in SAME]
    assert max(distance(whole, out, index) for index in range(ROWS) if index % OF != OF - 1) <= REPEATS
    report = hsbench.json("verify", str(out), "--all", "--workers", "1")
    assert (report["verdict"], report["checked"]) == ("ok", ROWS - 4)
    seen = hsbench.json("watch", str(out), "--once")
    assert (seen["kind"], seen["state"], seen["written"]) == ("own", "done", ROWS - 4)
    assert f"{ROWS} of {ROWS} rows are done" in hsbench("extract", "--resume", str(out), "--foreground").stderr

    plan = hsbench.json("plan", str(data), "--like", str(out), "--servers", "3")
    assert plan["volume"]["tokens"] == sum(line.get("tokens", 0) for line in lines.values())
    assert plan["volume"]["bytes_per_token"] == 4 * 576 * 2
    assert plan["rates"]["tok_s"] > 0


SAME = ("status", "file", "tokens", "trained", "ids", "mask")


def index_of(out: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert len(lines) == len({line["index"] for line in lines})
    return {line["index"]: line for line in lines}


def distance(one: Path, other: Path, index: int) -> float:
    """The greatest mean per-token relative distance of a state; ids and masks must be equal."""
    a, b = (torch.load(out / f"rows_0-2000/data_{index}.pt", weights_only=True) for out in (one, other))
    assert torch.equal(a["input_ids"], b["input_ids"])
    assert torch.equal(a["loss_mask"], b["loss_mask"])
    pairs = zip(a["hidden_states"], b["hidden_states"], strict=True)
    return max(float(((x.float() - y.float()).norm(dim=1) / x.float().norm(dim=1)).mean()) for x, y in pairs)
