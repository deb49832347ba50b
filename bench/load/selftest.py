"""How much this machine's client can take, found with a server whose schedule is known."""

import asyncio
import itertools
from collections.abc import Iterator

import msgspec

from bench.load.client import LoadClient
from bench.load.dialects import dialect
from bench.load.known_server import KnownServer, Schedule
from bench.load.load import ClientCost, Loaded, put
from bench.load.metrics import metrics
from bench.load.spec import Api, Workload
from workbench.extract.durable import replace_bytes
from workbench.paths import state_dir

STREAMS, SECONDS, TTFT_S = 64, 1.5, 0.2
RATES = (12_500, 25_000, 50_000, 100_000, 200_000)
TAKEN = 0.97
"""Share of the offered rate that must have been taken for the rate to count."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One offered rate. Rates are tokens a second."""

    offered: int
    taken: float
    """In the full-batch window."""
    server_late: float
    """p99 of how far the server was behind its schedule, in seconds."""
    cost: ClientCost


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a self-test."""

    api: Api
    tok_s: float
    """The highest rate that was taken; 0 when none was."""
    steps: tuple[Step, ...]


def self_test(api: Api, rates: tuple[int, ...] = RATES) -> Iterator[Step | Ceiling]:
    """Offer higher and higher rates, one event a token, until one is not taken; the outcome comes last.

    The server is a process of its own and shares the machine, so that the ceiling is of both together.
    """
    steps: list[Step] = []
    for rate in rates:
        steps.append(_step(api, rate))
        yield steps[-1]
        if steps[-1].taken < TAKEN * rate:
            break
    yield Ceiling(api=api, tok_s=max((step.taken for step in steps), default=0.0), steps=tuple(steps))


def _step(api: Api, rate: int) -> Step:
    with KnownServer(Schedule(ttft=TTFT_S, itl=STREAMS / rate)) as server:
        loaded = offer(server.url, api, STREAMS, round(SECONDS * rate / STREAMS))
        late = server.account().late_p99
    taken = metrics(loaded.records, STREAMS).batch_tok_s or 0.0
    return Step(offered=rate, taken=taken, server_late=late, cost=loaded.cost)


def offer(url: str, api: Api, streams: int, tokens: int) -> Loaded:
    """Ask for `streams` answers of so many tokens at once, over connections that are open already."""
    return asyncio.run(_offer(url, api, streams, tokens))


async def _offer(url: str, api: Api, streams: int, tokens: int) -> Loaded:
    spoken = dialect(api, "known")
    prompt: list[int] | list[dict[str, str]]
    prompt = [{"role": "user", "content": "a"}] if api == "openai-chat" else [1] * 16
    opening, asked = (spoken.body(prompt, count, True) for count in (1, tokens))
    work = Workload(input_len=16, output_len=tokens, concurrency=streams, requests=streams)
    async with LoadClient(url, spoken) as client:
        await put(client, itertools.repeat(opening), work)
        return await put(client, itertools.repeat(asked), work)


def remember(ceiling: Ceiling) -> None:
    """Keep the outcome, against which later runs are judged."""
    path = state_dir() / "bench" / f"ceiling-{ceiling.api}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, msgspec.json.format(msgspec.json.encode(ceiling), indent=2))


def remembered(api: Api) -> float | None:
    """Tokens a second of the last self-test on this machine; None without one."""
    try:
        data = (state_dir() / "bench" / f"ceiling-{api}.json").read_bytes()
        return msgspec.json.decode(data, type=Ceiling).tok_s or None
    except (OSError, msgspec.DecodeError):
        return None
