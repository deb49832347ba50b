"""What the driver tells of its shards together: sums by arithmetic, on a clock of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.cluster.records import At, Hello
from workbench.cluster.tale import Tale

GIB = 1 << 30
WHO = [Hello(node=f"n{slot}", server=f"s{slot}", pid=1) for slot in range(3)]


class Told:
    """A tale of three shards of 27, 27 and 26 rows, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.now, self.path = 0.0, folder / "cluster.jsonl"
        self.tale = Tale(self.path, 80, 3, [At(shard=n, state="stopped") for n in range(3)], lambda: self.now)

    def at(self, shard: int, **changes: Any) -> None:
        whole: dict[str, Any] = {"state": "running", "high_water_bytes": 25 * GIB, "waiting_bytes": GIB, "in_flight": 8}
        self.tale.shard(At(shard=shard, **{**whole, **changes}), WHO[shard])

    def verdicts(self) -> list[str]:
        return [json.loads(line)["verdict"] for line in self.path.read_text().splitlines()]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_only_servers_at_work_have_room_for_what_waits(told: Told) -> None:
    for shard in range(3):
        told.at(shard)
    seen = told.tale.picture()
    assert (seen.high_water_bytes, seen.waiting_bytes, seen.in_flight) == (75 * GIB, 3 * GIB, 24)
    told.tale.finished(0)
    told.tale.server(WHO[1], 1, "lost", "the node died")
    seen = told.tale.picture()
    assert (seen.high_water_bytes, seen.waiting_bytes, seen.in_flight) == (25 * GIB, GIB, 8)
    told.at(2, state="done", written=26, high_water_bytes=25 * GIB)
    seen = told.tale.picture()
    assert (seen.high_water_bytes, seen.waiting_bytes, seen.written) == (0, 0, 26)


def test_what_a_finished_shard_holds_is_told_at_once(told: Told) -> None:
    told.at(0, written=3)
    assert [seen.written for seen in told.tale.due()] == [3]
    told.now = 0.1
    told.at(0, state="done", written=27)
    assert not list(told.tale.due())
    told.tale.finished(0)
    assert [seen.written for seen in told.tale.due()] == [27]


def test_a_server_that_finishes_nothing_is_not_called_ready(told: Told) -> None:
    for now, written in ((0, 1), (20, 2), (40, 2), (60, 2), (80, 3)):
        told.now = float(now)
        told.at(0, written=written)
    told.at(0, state="restarting", why="the server is STOPPED_CHILD: sglang::detokenizer (7) was stopped by a signal")
    assert told.verdicts() == ["READY", "READY", "READY", "READY_UNVERIFIED", "READY", "STOPPED_CHILD"]
