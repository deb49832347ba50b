"""What a run on Ray costs beside the work itself: python -m bench.cluster_overhead

Two things are measured on a Ray cluster that it starts on this machine, with jobs that have nothing to wait for.

1. `shards`: real driver, actors, hands and job processes; a job (`cluster_stub_job.py`) writes the index lines of its
   shard at once. The same jobs are also run by so many threads without Ray, in turn, so the difference is what handing
   out costs: a shard, and a sample of it.
2. `crowd`: the real driver with N hands that are simulated by one actor but called through Ray one by one, each telling
   its picture as a real one does. It says what part of a core N servers take of the driver, and how long a server waits
   from the end of a shard to the order for the next.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.cluster import place, relay, shardjob
from workbench.cluster.board import Board
from workbench.cluster.ray_crew import NodeActor, RayCrew, load
from workbench.cluster.records import At, Errand, Gone, Hello, News, Order, Over, encode
from workbench.cluster.shift import Shift
from workbench.cluster.tale import Tale
from workbench.extract.job.files import JobFiles, Request
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.shards import shard_name

STUB = Path(__file__).with_name("cluster_stub_job.py")
COMMAND = (sys.executable, "-I", "-S", str(STUB))
HAND = (
    sys.executable,
    "-c",
    f"from workbench.cluster import hand, shardjob; shardjob.COMMAND = {COMMAND!r}; hand.main()",
)
STORE = 80 << 20


class Counted(RayCrew):
    """A crew that counts the replies."""

    replies = 0

    def wait(self, seconds: float) -> list[tuple[int, list[News] | Gone]]:
        """See `Crew`."""
        found = super().wait(seconds)
        self.replies += len(found)
        return found


class StubActor(NodeActor):
    """An actor whose hand runs the stub."""

    def __init__(self, errand: dict[str, Any], threads: str | None) -> None:
        import ray

        self._relay = relay.Relay(errand, ray.get_runtime_context().get_node_id(), threads, HAND)


class CrowdActor:
    """All hands of a crowd: each shard takes `shard_s`, each call at most `relay.POLL_S`."""

    def __init__(self, shard_s: float) -> None:
        self._shard_s = shard_s
        self._ends: dict[int, tuple[int, float]] = {}
        self._over: dict[int, float] = {}
        self._waits: list[float] = []

    async def work(self, slot: int, order: dict[str, Any] | None) -> list[dict[str, Any]]:
        """As `Relay.work`."""
        if order is None:
            return [encode(Hello(node="n", server=f"s{slot}", pid=1))]
        if order["do"] == "end":
            raise RuntimeError("the hand has ended")
        now = time.monotonic()
        if order["do"] == "shard":
            self._ends[slot] = order["shard"], now + self._shard_s * (0.5 + slot % 101 / 100)
            if slot in self._over:
                self._waits.append(now - self._over.pop(slot))
        shard, end = self._ends.get(slot, (-1, float("inf")))
        await asyncio.sleep(max(0.0, min(relay.POLL_S, end - now)))
        if time.monotonic() < end:
            return [] if shard < 0 else [encode(At(shard=shard, state="running", written=1, tokens=9))]
        del self._ends[slot]
        self._over[slot] = time.monotonic()
        return [encode(Over(shard=shard, outcome="done"))]

    async def waits(self) -> list[float]:
        """Seconds from the end of a shard to the next order, of every shard so far."""
        return self._waits


class Crowd(Counted):
    """Slots without machines."""

    def __init__(self, ray: Any, shard_s: float) -> None:
        super().__init__(ray, Cluster(address="auto", servers=1))
        self.actor = ray.remote(CrowdActor).options(num_cpus=0, max_concurrency=5000).remote(shard_s)

    def hire(self, slot: int, errand: Errand) -> None:
        """See `Crew`."""
        self._actors[slot] = None
        self._calls[self.actor.work.remote(slot, None)] = slot

    def send(self, slot: int, order: Order) -> None:
        """See `Crew`."""
        self._calls[self.actor.work.remote(slot, encode(order))] = slot


def errand_of(out: Path, rows: int, shards: int) -> Errand:
    """A run of stubs: the data set's name says how many rows a shard has."""
    data = out.parent / str(rows)
    data.touch()
    out.mkdir(parents=True)
    place.leave_token(out, "t")
    settings = ExtractSettings(data=str(data), out=str(out), model="stub")
    return Errand(settings=settings, run=out.name, slot=0, shards=shards, token="t", lease_s=60.0)


def shift_of(
    crew: RayCrew, errand: Errand, workers: int, stopping: Any = lambda: False, paused: Any = lambda: False
) -> Shift:
    """The driver's round."""
    out = Path(errand.settings.out)
    tale = Tale(JobFiles(out).folder / "cluster.jsonl", errand.shards, errand.shards, [])
    board = Board(range(errand.shards), errand.lease_s)
    return Shift(crew, board, errand, workers, tale, timeout_s=60.0, stopping=stopping, paused=paused)


def plain(errand: Errand, workers: int) -> float:
    """Seconds that so many threads take for the same jobs, each started and asked as a hand does it, without Ray."""
    shards = iter(range(errand.shards))
    lock = threading.Lock()

    def lane() -> None:
        while True:
            with lock:
                shard = next(shards, None)
            if shard is None:
                return
            settings = shardjob.settings_of(errand, shard, "s", 1, False)
            JobFiles(settings.folder).save_request(Request(settings=settings))
            subprocess.run([*COMMAND, settings.out], stdout=subprocess.DEVNULL, check=True)

    threads = [threading.Thread(target=lane) for _ in range(workers)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def on_ray(ray: Any, errand: Errand, workers: int) -> dict[str, float]:
    """The same through the driver. Nothing is handed out until all hands are there; then the clock runs."""
    crew = Counted(ray, Cluster(address="auto", servers=workers, gpus=0))
    crew._actor = ray.remote(StubActor).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
    began = ended = cpu = 0.0
    there: list[str] = []
    for event in shift_of(crew, errand, workers, paused=lambda: len(there) < workers).events():
        text = getattr(event, "text", "")
        if " is there, on node" in text:
            there.append(text)
            began, cpu, crew.replies = time.monotonic(), time.process_time(), 0
        ended = time.monotonic() if " is done, by " in text else ended
    used = time.process_time() - cpu
    for number in range(errand.shards):
        lines = (Path(errand.settings.out) / shard_name(number, errand.shards) / "index.jsonl").read_bytes()
        assert lines.count(b"\n") == int(os.path.basename(errand.settings.data))
    for slot in list(crew._actors):
        crew.dismiss(slot)
    return {"seconds": ended - began, "replies": crew.replies, "cpu": used}


def crowd(ray: Any, folder: Path, servers: int, seconds: float, shard_s: float) -> dict[str, float]:
    """The driver with so many simulated servers, for so long."""
    crew = Crowd(ray, shard_s)
    errand = errand_of(folder / f"crowd{servers}", 1, int(servers * (4 + 2 * seconds / shard_s)))
    stop = threading.Event()
    began, cpu = time.monotonic(), time.process_time()
    threading.Timer(seconds, stop.set).start()
    for _ in shift_of(crew, errand, servers, stop.is_set).events():
        if stop.is_set():
            break
    took, used = time.monotonic() - began, time.process_time() - cpu
    waits = sorted(ray.get(crew.actor.waits.remote()))
    ray.kill(crew.actor)
    return {
        "replies_s": crew.replies / took,
        "cpu_share": used / took,
        "cpu_a_reply": used / crew.replies,
        "shards": len(waits),
        "wait_mean": statistics.fmean(waits) if waits else float("nan"),
        "wait_p99": waits[int(0.99 * (len(waits) - 1))] if waits else float("nan"),
    }


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Ray's own test cluster: a head, and a node with room for the workers."""
    ray = load()
    from ray.cluster_utils import Cluster as Machines

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    machines: Any = Machines(initialize_head=True, connect=False, head_node_args=head)
    machines.add_node(num_cpus=workers, object_store_memory=STORE)
    ray.init(address=machines.address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    try:
        yield ray
    finally:
        ray.shutdown()
        machines.shutdown()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", default="1,4,16")
    parser.add_argument("--crowd", default="16,100,1000")
    parser.add_argument("--shards", type=int, default=48, help="Of each run.")
    parser.add_argument("--rows", type=int, default=1000, help="Of a shard.")
    parser.add_argument("--seconds", type=float, default=30.0, help="For each crowd.")
    parser.add_argument("--shard-seconds", type=float, default=20.0, help="What a simulated shard takes on average.")
    given = parser.parse_args()
    sizes = [int(word) for word in given.workers.split(",")]
    with tempfile.TemporaryDirectory() as name, cluster(max(sizes)) as ray:
        os.environ["XDG_STATE_HOME"] = name
        print(f"shards: {given.shards} of {given.rows} rows that take no time; ms")
        print("workers   plain/shard   on Ray/shard   overhead/shard   overhead/sample   driver CPU/reply")
        for workers in sizes:
            alone = plain(errand_of(Path(name) / f"plain{workers}", given.rows, given.shards), workers)
            found = on_ray(ray, errand_of(Path(name) / f"ray{workers}", given.rows, given.shards), workers)
            each, ours = (1000 * workers * t / given.shards for t in (alone, found["seconds"]))
            cpu = 1000 * found["cpu"] / max(1, found["replies"])
            over = ours - each
            print(f"{workers:7}   {each:11.1f}   {ours:12.1f}   {over:14.1f}   {over / given.rows:15.4f}   {cpu:16.2f}")
        print(
            f"crowd: simulated servers, a picture every {relay.POLL_S:.0f} s, a shard every {given.shard_seconds:.0f} s"
        )
        print("servers   replies/s   driver, of a core   CPU/reply ms   from end to next order: mean   p99 (ms)")
        for servers in (int(word) for word in given.crowd.split(",")):
            got = crowd(ray, Path(name), servers, given.seconds, given.shard_seconds)
            print(
                f"{servers:7}   {got['replies_s']:9.1f}   {100 * got['cpu_share']:15.1f} %   "
                f"{1000 * got['cpu_a_reply']:12.2f}   {1000 * got['wait_mean']:28.1f}   {1000 * got['wait_p99']:8.1f}"
            )


if __name__ == "__main__":
    main()
