"""An extraction on Ray's own test cluster, two nodes of it each with a real server, while nearly everything dies.

Few scenarios, since a server takes half a minute to start: a node is killed in the middle of a shard, then the driver
and the hand of the other node are, then the run goes on and its server hangs. And one whose shards go to a bucket. The
result is that of one machine.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import psutil
import pytest

from tests.engine.conftest import Command
from tests.engine.distances import distances
from tests.engine.human_eval import chats
from tests.unit.storage_support import check_recorded, moto, recorded, s3_environment
from workbench.extract.shards import shard_name
from workbench.storage.address import staging_folder
from workbench.storage.store import Store

pytestmark = pytest.mark.engine

ROWS, SHARDS = 24, 3
STORE = 80 << 20
"""Bytes of a node's object store."""
LEASE_S = 15.0
"""Longer than a driver on two busy cores and a slow disk is silent."""
REPEATS = 0.001
"""What two runs of other batches differ by, at most: as in `test_extract_job.py`."""
OPTIONS = ("--device", "cpu", "--max-seq-len", "160", "--baseline", "0", "--min-free", "0.1", "--writers", "1")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """An S3 server; what the environment must hold to find it."""
    with moto() as endpoint:
        yield s3_environment(endpoint)


@pytest.fixture(scope="module")
def machines(hsbench: Command, bucket: dict[str, str]) -> Iterator[Any]:
    """A head without room for servers, and two nodes with room for one each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        added = {**hsbench.env, **bucket, "RAY_USAGE_STATS_ENABLED": "0", "HS_TEST_SILENCE": "20"}
        added["HS_TEST_HANG"] = str(hsbench.home / "hang")
        for name in set(os.environ) - set(added):
            patch.delenv(name)
        for name, value in added.items():
            patch.setenv(name, value)
        small = {"object_store_memory": STORE}
        head = {"num_cpus": 0, "include_dashboard": False, **small}
        cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        try:
            nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
            yield cluster, nodes
        finally:
            for driver in Driver.every:  # that of a test that failed
                driver.process.kill()
                driver.process.wait()
            cluster.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(ROWS, 80)))
    return path


class Driver:
    """`hsbench extract --ray` in the foreground, as a process that can be killed."""

    every: ClassVar[list["Driver"]] = []

    def __init__(self, hsbench: Command, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.out, self.err = folder / "driver.out", folder / "driver.err"
        command = [sys.executable, "-m", "workbench.cli", "extract", *arguments, "--foreground", "--json"]
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=hsbench.env, cwd="/")
        self.every.append(self)

    def events(self) -> list[dict[str, Any]]:
        """All that stdout holds must be events."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def said(self) -> str:
        return "\n".join(event.get("text", event.get("message", "")) for event in self.events())

    def until(self, true: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"{self.said()}\n{self.err.read_text()[-2000:]}"
            assert time.monotonic() < end, self.said()
            time.sleep(0.01)


def done_in(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "index.jsonl").read_bytes().count(b"\n")
    return 0


def begun(out: Path, done: set[str] = frozenset()) -> str:
    """A shard that is in the middle of its rows."""
    for folder in sorted(out.glob("shard_*-of-*")):
        if folder.name not in done and 0 < done_in(folder) < ROWS // SHARDS - 1:
            return folder.name
    return ""


def last_line(out: Path, shard: str) -> dict[str, Any]:
    """The newest of `cluster.jsonl` about a shard."""
    lines = map(json.loads, (out / ".hsbench/cluster.jsonl").read_text().splitlines())
    return [line for line in lines if line["shard"] == shard][-1]


def processes(*words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def servers_of_hands() -> list[psutil.Process]:
    """Servers that a hand started: their state lies below `hsbench/cluster/`. Other tests have servers too."""
    found = []
    for process in processes("sglang.launch_server"):
        with contextlib.suppress(psutil.Error):
            if "/hsbench/cluster/" in process.environ().get("XDG_STATE_HOME", ""):
                found.append(process)
    return found


def through_object_stores(cluster: Any) -> list[int]:
    """Bytes that were ever put into each of Ray's object stores, by the last that its raylet told."""
    logs = Path(cluster.head_node.get_session_dir_path()) / "logs"
    told = [re.findall(r"num bytes created total: (\d+)", path.read_text()) for path in logs.glob("raylet*.out")]
    return [int(each[-1]) for each in told]


def test_a_lost_node_a_killed_driver_and_a_hung_server_cost_no_row(
    hsbench: Command, machines: Any, demo_model: Path, data: Path
) -> None:
    cluster, nodes = machines
    out = data.parent / "out"
    where = ["--model", str(demo_model), *OPTIONS]
    many = ["--ray", cluster.address, "--shards", str(SHARDS), "--concurrency", "1", "--lease", str(LEASE_S)]
    driver = Driver(hsbench, data.parent, str(data), "--out", str(out), *where, *many)

    # A node is killed in the middle of a shard.
    with hsbench.fault("pace"):
        driver.until(lambda: bool(begun(out)))
        shard = begun(out)
        node = last_line(out, shard)["node"].partition(":")[2]
        victim, survivor = sorted(nodes, key=lambda one: not one.node_id.startswith(node))
        cluster.remove_node(victim, allow_graceful=False)
        assert 0 < done_in(out / shard) < ROWS // SHARDS, "it was too late to be in the middle"
    driver.until(lambda: "is lost" in driver.said())
    twice = hsbench("extract", "--resume", str(out))
    assert (twice.returncode, "a job already writes into" in twice.stderr) == (2, True), twice.stderr

    # The driver is killed, and so is the hand of the other node, which leaves its server an orphan.
    hands = processes("workbench.cluster.hand", survivor.node_id)
    assert len(hands) == 1
    assert servers_of_hands()
    hands[0].kill()
    driver.process.kill()
    driver.process.wait()
    end = time.monotonic() + 60
    while processes("--requested", str(out)):
        assert time.monotonic() < end, "a job outlived its hand"
        time.sleep(0.1)

    # It goes on, and the server hangs in a forward pass: the new one, not the orphan with a row of before.
    hang, before = hsbench.home / "hang", driver.said()
    driver = Driver(hsbench, data.parent, "--resume", str(out))
    driver.until(lambda: "is there, on node" in driver.said().removeprefix(before))
    hang.touch()
    alone = data.parent / "alone"
    hsbench.ok("extract", str(data), "--out", str(alone), *where, "--concurrency", "8", "--foreground")
    assert driver.process.wait(300) == 0, f"{driver.said()}\n{driver.err.read_text()[-3000:]}"
    assert not hang.exists(), "no server hung"
    assert "HUNG_SPIN" in driver.said(), driver.said()

    assert sorted(path.name for path in out.iterdir()) == [
        ".hsbench",
        "data_config.json",
        "hsbench.json",
        "index.jsonl",
        "rows_0-2000",
        "sample_lengths.json",
    ]
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(ROWS))
    audit = hsbench.json("verify", str(out), "--all")
    assert (audit["verdict"], audit["checked"]) == ("ok", ROWS)
    assert "24 of 24 rows are done" in hsbench("extract", "--resume", str(out), "--foreground").stderr
    assert not processes("workbench.cluster.hand")
    assert not servers_of_hands(), "a server is left"
    assert max(distances(ROWS, alone, out)) <= REPEATS
    stores = through_object_stores(cluster)
    assert len(stores) == 3
    assert max(stores) < 10_000, "states went through Ray"


@pytest.fixture
def two_nodes(hsbench: Command, machines: Any, bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cluster as it was at first, and an environment in which all find a bucket."""
    cluster, _ = machines
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
    for name, value in bucket.items():
        monkeypatch.setitem(hsbench.env, name, value)
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", hsbench.env["XDG_STATE_HOME"])
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("samples")
    return cluster


def test_shards_go_to_a_bucket_and_a_lost_node_and_a_killed_driver_cost_no_row(
    hsbench: Command, two_nodes: Any, demo_model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, url = two_nodes, "s3://samples/many"
    store, here = Store.open(url), staging_folder(url)
    where = ["--model", str(demo_model), *OPTIONS]
    many = ["--ray", cluster.address, "--shards", "2", "--concurrency", "1", "--lease", str(LEASE_S)]
    driver = Driver(hsbench, data.parent / "far", str(data), "--out", url, *where, *many)

    # A node is killed when a part of its shard is stored.
    shards = [shard_name(number, 2) for number in range(2)]
    stored = lambda: [name for name in shards if 0 < len(recorded(store.below(name))) < ROWS // 2 - 1]  # noqa: E731
    with hsbench.fault("pace"):
        driver.until(lambda: bool(stored()))
        shard = stored()[0]
        node = last_line(here, shard)["node"].partition(":")[2]
        victim = next(one for one in cluster.worker_nodes if one.node_id.startswith(node))
        cluster.remove_node(victim, allow_graceful=False)
        kept = {row: line.time for row, line in recorded(store.below(shard)).items()}
        assert 0 < len(kept) < ROWS // 2, "it was too late to be in the middle"
    driver.until(lambda: "is lost" in driver.said())
    rows = hsbench.json("watch", str(here), "--once")["shards"]
    assert {row["shard"] for row in rows if row["server"]} == set(shards)

    # The driver is killed, and the run goes on from another machine.
    driver.process.kill()
    driver.process.wait()
    monkeypatch.setitem(hsbench.env, "XDG_STATE_HOME", str(hsbench.home / "elsewhere"))
    driver = Driver(hsbench, data.parent / "far", "--resume", url, "--ray", cluster.address)
    assert driver.process.wait(300) == 0, f"{driver.said()}\n{driver.err.read_text()[-3000:]}"
    assert sum(check_recorded(store.below(name)) for name in shards) == ROWS
    again = {row: line.time for row, line in recorded(store.below(shard)).items()}
    assert {row: again[row] for row in kept} == kept, "what was stored was made again"
    lines = [json.loads(line) for line in (store.read("index.jsonl") or b"").splitlines()]
    assert [line["index"] for line in lines] == list(range(ROWS))
    audit = hsbench.json("verify", url, "--all", "--workers", "1")
    assert (audit["verdict"], audit["checked"], audit["folder"]) == ("ok", ROWS, url)
    view = hsbench.json("watch", url, "--once")
    assert (view["state"], view["written"]) == ("done", ROWS)
    assert not servers_of_hands(), "a server is left"
    alone, fetched = data.parent / "alone", data.parent / "fetched"
    if not alone.exists():
        hsbench.ok("extract", str(data), "--out", str(alone), *where, "--concurrency", "8", "--foreground")
    for line in lines:
        path = fetched / line["file"].partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(line["file"]) or b"")
    assert max(distances(ROWS, alone, fetched)) <= REPEATS
