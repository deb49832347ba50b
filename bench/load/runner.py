"""One run: every workload in turn, warmed up, measured, summed up and stored."""

import asyncio
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from bench.load.client import LoadClient, clock
from bench.load.dialects import dialect
from bench.load.live import LiveLog
from bench.load.load import Bodies, ClientCost, Loaded, Watch, put
from bench.load.metrics import Metrics, metrics, tpot_of
from bench.load.prompts import Unique, from_file, in_turn
from bench.load.records import RequestRecord
from bench.load.spec import BenchSettings, WarmUp, Workload
from workbench.errors import HsbenchError, RequestRefused, ServerError


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a warm-up."""

    label: str
    number: int
    tok_s: float


class Warmed(msgspec.Struct, frozen=True, kw_only=True):
    """How a warm-up went."""

    rates: tuple[float, ...]
    """Tokens a second of each round."""
    stable: bool
    seconds: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one workload."""

    workload: Workload
    metrics: Metrics
    client: ClientCost
    warmed: Warmed | None
    notes: tuple[str, ...]
    """What a reader of the figures must know."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is over."""

    point: Point
    records: tuple[RequestRecord, ...]


Tell = Callable[[Round | Measured], None]


def run(settings: BenchSettings, tell: Tell, api_key: str | None = None, ceiling: float | None = None) -> None:
    """`run_source` with the settings' own prompts.

    Raises:
        UsageError: the data or the range of token ids cannot be used.
        ServerError: no request of a load came to its end.
    """
    run_source(Source(settings), tell, api_key, ceiling)


def run_source(
    source: "Source",
    tell: Tell,
    api_key: str | None = None,
    ceiling: float | None = None,
    live: LiveLog | None = None,
) -> None:
    """Do every workload; each is told as `Measured` when it is over, and so is every round of a warm-up.

    Args:
        source: What to do, and with which prompts.
        tell: Called in this thread, between loads, with what there is to tell.
        api_key: Sent as a bearer token.
        ceiling: Tokens a second that the self-test found.
        live: Is told every second how it goes.

    Raises:
        ServerError: no request of a load came to its end.
    """
    settings = source.settings
    client = LoadClient(settings.url, source.spoken, settings.timeout, api_key)
    asyncio.run(_run(client, source, tell, ceiling, live))


class Source:
    """The settings, and requests as JSON; no synthetic prompt comes twice in a run, warm-up included.

    Raises:
        UsageError: the data or the range of token ids cannot be used.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self.spoken = dialect(settings.api, settings.model or "")
        prompts = from_file(settings.data, settings.api) if settings.data is not None else None
        self.rows = None if prompts is None else len(prompts)
        self._rows = None if prompts is None else in_turn(prompts)
        self._unique = Unique(*settings.token_range, settings.seed)
        self.sent = 0

    def bodies(self, work: Workload) -> Bodies:
        """Endless requests of one workload."""
        prompts = self._rows or self._unique.endless(work.input_len or 1, self.settings.api)
        for prompt in prompts:
            self.sent += 1
            yield self.spoken.body(prompt, work.output_len, work.ignore_eos)


async def _run(
    client: LoadClient, source: Source, tell: Tell, ceiling: float | None, live: LiveLog | None = None
) -> None:
    settings = source.settings
    async with client:
        for number, work in enumerate(settings.workloads):
            bodies = source.bodies(work)
            rule = settings.warm_up
            watches = partial(live.of, number) if live else None
            warmed = await warm_up(client, bodies, work, rule, tell, watches=watches) if rule else None
            watch = watches(work) if watches else None
            loaded = await put(client, bodies, work, settings.seed + number, ceiling, watch=watch)
            _must_have_answers(loaded.records)
            tell(Measured(point=_point(work, loaded, warmed, source), records=loaded.records))


async def warm_up(
    client: LoadClient,
    bodies: Bodies,
    work: Workload,
    rule: WarmUp,
    tell: Tell,
    *,
    watches: Callable[[Workload, int], Watch] | None = None,
) -> Warmed:
    """Rounds of the workload itself until their rates settle, or until the rule's bounds.

    `watches` makes what looks on, of a round and its number.
    """
    rates: list[float] = []
    began = clock()
    size = work.concurrency or max(3, math.ceil(work.rate or 1))
    one = msgspec.structs.replace(work, requests=size, seconds=None)
    while not settled(rates, rule) and len(rates) < rule.most_rounds and clock() - began < rule.most_seconds:
        watch = watches(one, len(rates) + 1) if watches else None
        loaded = await put(client, bodies, one, seed=len(rates), watch=watch)
        _must_have_answers(loaded.records)
        rates.append(_rate(loaded, work))
        tell(Round(label=work.label, number=len(rates), tok_s=rates[-1]))
    return Warmed(rates=tuple(rates), stable=settled(rates, rule), seconds=clock() - began)


def settled(rates: list[float], rule: WarmUp) -> bool:
    """Whether the last rounds' rates lie within the rule's share of the smallest of them."""
    last = rates[-rule.windows :]
    return len(last) == rule.windows and max(last) <= min(last) * (1 + rule.within)


def _rate(loaded: Loaded, work: Workload) -> float:
    """Tokens a second; for arrivals at a rate, which bound that, what one stream gets."""
    found = metrics(loaded.records, work.concurrency)
    if work.rate is None:
        return found.whole_tok_s or 0.0
    values = [value for record in loaded.records if record.ok and (value := tpot_of(record))]
    return 1 / statistics.median(values) if values else found.whole_tok_s or 0.0


def _must_have_answers(records: tuple[RequestRecord, ...]) -> None:
    if records and not any(record.ok for record in records):
        raise error_of(records[0])


def error_of(record: RequestRecord) -> HsbenchError:
    """A failed request as the user's error."""
    words = record.error or "no answer"
    if record.status is None:
        return ServerError(f"no request was answered: {words}", "hsbench status lists the servers")
    if record.status >= 400:
        step = "the server wants an API key: --api-key-env" if record.status == 401 else "see the server's log"
        return RequestRefused(f"the server refused the requests: {words}", step)
    return ServerError(f"no request came to its end: {words}", "see the server's log")


def _point(work: Workload, loaded: Loaded, warmed: Warmed | None, source: Source) -> Point:
    found = metrics(loaded.records, work.concurrency, source.settings.limits)
    notes = tuple(_notes(work, found, loaded.cost, warmed, source))
    return Point(workload=work, metrics=found, client=loaded.cost, warmed=warmed, notes=notes)


def _notes(work: Workload, found: Metrics, cost: ClientCost, warmed: Warmed | None, source: Source) -> Iterator[str]:
    yield from (f"CLIENT-LIMITED: {reason}" for reason in cost.limited)
    if found.failed:
        yield f"{found.failed} of {found.requests} requests failed, the first: {found.first_error}"
    if found.short and work.ignore_eos:
        ends = ", ".join(f"{count} by {name}" for name, count in found.finishes.items())
        yield f"{found.short} answers have not the length asked for; ended {ends}"
    if warmed and not warmed.stable:
        yield f"not warm: the rates of {len(warmed.rates)} warm-up rounds did not settle"
    if found.counted == "assumed":
        yield "token counts are ASSUMED, one a chunk: the server counted nothing"
    if found.counted == "total":
        yield "the server told only the total of each answer; ITL is per chunk, the total spread evenly over them"
    if found.itl_spread > 0.01:
        yield f"{found.itl_spread:.0%} of the tokens came several in a chunk; their ITL is the gap shared evenly"
    if found.cached_tokens and found.prompt_tokens and found.cached_tokens > 0.01 * found.prompt_tokens:
        yield f"{found.cached_tokens / found.prompt_tokens:.0%} of the prompts' tokens came from the server's cache"
    if source.rows is not None and source.sent > source.rows:
        yield f"the data's {source.rows} rows were sent more than once; a prefix cache may know them"
