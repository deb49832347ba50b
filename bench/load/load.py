"""Puts one load on a server: a fixed number in flight, or arrivals at a rate; and watches the client meanwhile."""

import asyncio
import contextlib
import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

from bench.load.client import LoadClient, clock
from bench.load.metrics import percentile, shortest_latency
from bench.load.records import RequestRecord, Trace, record_of
from bench.load.spec import Workload

LAG_EVERY_S = 0.05
"""Each look wakes the loop, which on a quiet client would be much of its work."""
LAG_P99_S = 0.002
LAG_SHARE = 0.05
"""Of the shortest latency that is measured: where that is long, more lag does no harm."""
CPU_SHARE = 0.7
CEILING_SHARE = 0.5
"""Bounds above which a run counts as limited by its client."""

Bodies = Iterator[bytes]


class ClientCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the client needed while the load ran."""

    cpu_s: float
    seconds: float
    cpu_share: float
    """Of one core."""
    cpu_us_per_token: float | None
    lag_p50: float
    lag_p99: float
    lag_largest: float
    limited: tuple[str, ...] = ()
    """Why the figures may be the client's; empty when they are not."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """One load that is over."""

    records: tuple[RequestRecord, ...]
    cost: ClientCost


class LagSampler:
    """A timer that notes by how much it is late, from entering to leaving."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def __enter__(self) -> "LagSampler":
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        self._due = clock() + LAG_EVERY_S
        self._handle = asyncio.get_running_loop().call_later(LAG_EVERY_S, self._fire)

    def _fire(self) -> None:
        self.lags.append(max(0.0, clock() - self._due))
        self._arm()


Watch = Callable[[list[Trace], LagSampler], AbstractContextManager[None]]
"""Looks on while a load runs, in its event loop: at the traces as they grow, and at how late the loop is."""


async def put(
    client: LoadClient,
    bodies: Bodies,
    work: Workload,
    seed: int = 0,
    ceiling: float | None = None,
    *,
    watch: Watch | None = None,
) -> Loaded:
    """Put `work` on the server and wait for every answer.

    Args:
        client: An open client.
        bodies: Requests as JSON, taken as they are needed.
        work: What to send.
        seed: Of the arrival times.
        ceiling: Tokens a second that the self-test found this client able to take.
        watch: Looks on.
    """
    client.sent = []
    load = _at_rate if work.rate is not None else _in_flight
    with _no_collection(), LagSampler() as lag, watch(client.sent, lag) if watch else contextlib.nullcontext():
        cpu, began = time.process_time(), clock()
        traces = await load(client, bodies, work, random.Random(seed))
        cpu, seconds = time.process_time() - cpu, clock() - began
    records = tuple(record_of(trace, began) for trace in sorted(traces, key=lambda trace: trace.start))
    bound = max(LAG_P99_S, LAG_SHARE * shortest_latency(records))
    cost = cost_of(cpu, seconds, sum(r.tokens for r in records), lag.lags, ceiling=ceiling, lag_bound=bound)
    return Loaded(records=records, cost=cost)


def cost_of(
    cpu: float,
    seconds: float,
    tokens: int,
    lags: list[float],
    *,
    ceiling: float | None = None,
    lag_bound: float = LAG_P99_S,
) -> ClientCost:
    """The client's cost, and whether it limited the run."""
    ordered = sorted(lags) or [0.0]
    p99, share = percentile(ordered, 99), cpu / seconds if seconds else 0.0
    limited = []
    if p99 > lag_bound:
        limited.append(f"loop lag p99 {p99 * 1000:.1f} ms > {lag_bound * 1000:.1f} ms")
    if share > CPU_SHARE:
        limited.append(f"client CPU {share:.0%} of a core > {CPU_SHARE:.0%}")
    if ceiling and seconds and tokens / seconds > CEILING_SHARE * ceiling:
        limited.append(f"{tokens / seconds:.0f} tok/s > half of the self-test's {ceiling:.0f}")
    return ClientCost(
        cpu_s=cpu,
        seconds=seconds,
        cpu_share=share,
        cpu_us_per_token=cpu / tokens * 1e6 if tokens else None,
        lag_p50=percentile(ordered, 50),
        lag_p99=p99,
        lag_largest=ordered[-1],
        limited=tuple(limited),
    )


async def _in_flight(client: LoadClient, bodies: Bodies, work: Workload, _: random.Random) -> list[Trace]:
    """As many lanes as requests in flight; each sends its next one when its last one is over."""
    traces: list[Trace] = []
    left = _Left(work)

    async def lane() -> None:
        while (number := left.take()) is not None:
            traces.append(await client.send(next(bodies), number, work.output_len))

    await asyncio.gather(*(lane() for _ in range(work.concurrency or 1)))
    return traces


async def _at_rate(client: LoadClient, bodies: Bodies, work: Workload, rng: random.Random) -> list[Trace]:
    """Requests at times that do not depend on the answers."""
    left, tasks = _Left(work), []
    due = clock()
    while (number := left.take()) is not None:
        due += rng.expovariate(work.rate or 1.0)
        body = next(bodies)
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.create_task(client.send(body, number, work.output_len)))
    return list(await asyncio.gather(*tasks))


class _Left:
    """Numbers the requests of a workload until its count or its time is used up."""

    def __init__(self, work: Workload) -> None:
        self._until = clock() + work.seconds if work.seconds is not None else math.inf
        self._count = work.requests if work.requests is not None else math.inf
        self._next = 0

    def take(self) -> int | None:
        if self._next >= self._count or clock() >= self._until:
            return None
        self._next += 1
        return self._next - 1


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage collection stops the event loop, so it waits until the load is over."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
