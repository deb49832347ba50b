"""What is computed of a load's requests, by the definitions of `DEFINITIONS`."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from bench.load.records import RequestRecord
from bench.load.spec import GoodputLimits

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("tokens", "output tokens as the server counts them; 'total': only their sum, spread evenly over the chunks; "
     "'assumed': nobody counted, one a chunk"),
    ("chunk", "one event with new tokens; its time is taken when the client's event loop hands over the bytes"),
    ("TTFT", "from when the request's bytes go to the connection to its first chunk; connecting is not inside"),
    ("E2E", "from the same instant to its last chunk"),
    ("TPOT", "(E2E - TTFT) / (tokens - tokens of the first chunk), one value a request"),
    ("ITL", "gap between two chunks of a request divided by the tokens of the later one, one value for each of its "
     "tokens, the first chunk's excluded; 'spread' is the share of them from chunks of several tokens"),
    ("decode tok/s", "1 / median TPOT: what one stream gets"),
    ("full-batch window", "from the moment when as many requests as are kept in flight have had their first token to "
     "the moment when fewer are left to end; with one request for each, from the last first token to the first end"),
    ("batch tok/s", "tokens in the full-batch window / its length, tokens between two chunks spread evenly; "
     "later requests' prefill is inside; none for arrivals at a rate"),
    ("whole tok/s", "tokens of good and failed requests / from the first send to the last chunk or failure; "
     "ramp-up and drain are inside"),
    ("requests/s", "requests that came to their end / the same time"),
    ("goodput", "requests/s that came to their end within every limit; 'itl' limits a request's largest ITL"),
    ("percentile", "linear between the two nearest ranks, rank = p/100 x (n - 1) from 0, as numpy does by default; "
     "over good requests only"),
    ("short", "good requests that did not end by length with the tokens asked for"),
    ("client CPU", "user and system time of hsbench's process while the load ran"),
    ("loop lag", "how late a timer of the client's event loop fires"),
    ("client-limited", "loop lag p99 above 2 ms and 5 % of the median TPOT, client CPU above 70 % of a core, or more "
     "than half of the self-test's ceiling: the figures may be the client's, not the server's"),
)  # fmt: skip
"""Name and definition of every figure."""
QUANTILES = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one quantity, in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one load. None where there is nothing to compute them of."""

    requests: int
    failed: int
    short: int
    """Good requests that ended otherwise than by length, or with other than the tokens asked for."""
    first_error: str | None
    finishes: dict[str, int]
    tokens: int
    """Output tokens of all requests."""
    prompt_tokens: int | None
    """Of good requests, as the server counts them; None when it did not for some."""
    cached_tokens: int | None
    counted: str
    """The worst of the requests' ways of counting: chunk, total or assumed."""
    seconds: float
    """From the first send to the last chunk or failure."""
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    itl_spread: float
    """Share of the ITL values that come from chunks of several tokens."""
    decode_tok_s: float | None
    batch_tok_s: float | None
    window_s: float | None
    whole_tok_s: float | None
    requests_s: float | None
    good_s: float | None
    """Requests a second within the limits; None without limits."""
    good_share: float | None


def metrics(records: Sequence[RequestRecord], concurrency: int | None, limits: GoodputLimits | None = None) -> Metrics:
    """Every figure of one load.

    Args:
        records: Its requests.
        concurrency: How many were kept in flight; None for arrivals at a rate.
        limits: For the goodput.
    """
    good = [record for record in records if record.ok]
    with_tokens = [record for record in good if record.times]
    itls = [itl_values(record) for record in with_tokens]
    ttft, tpot = spread([r.times[0] for r in with_tokens]), spread([v for r in with_tokens if (v := tpot_of(r))])
    seconds = _seconds(records)
    window = full_window(records, concurrency)
    within = [record for record in good if keeps(record, limits)] if limits and limits != GoodputLimits() else None
    tokens = sum(record.tokens for record in records)
    return Metrics(
        requests=len(records),
        failed=len(records) - len(good),
        short=sum(r.finish != "length" or r.tokens != r.asked_tokens for r in good),
        first_error=next((record.error for record in records if record.error), None),
        finishes=_tally(record.finish or "unsaid" for record in good),
        tokens=tokens,
        prompt_tokens=_sum(record.prompt_tokens for record in good),
        cached_tokens=_sum(record.cached_tokens for record in good),
        counted=max((r.counted for r in with_tokens), key=("chunk", "total", "assumed").index, default="chunk"),
        seconds=seconds,
        ttft=ttft,
        tpot=tpot,
        itl=spread([value for values in itls for value in values]),
        e2e=spread([record.times[-1] for record in with_tokens]),
        itl_spread=_spread_share(with_tokens),
        decode_tok_s=1 / tpot.p50 if tpot and tpot.p50 > 0 else None,
        batch_tok_s=tokens_between(records, *window) / (window[1] - window[0]) if window else None,
        window_s=window[1] - window[0] if window else None,
        whole_tok_s=tokens / seconds if seconds else None,
        requests_s=len(good) / seconds if seconds else None,
        good_s=len(within) / seconds if within is not None and seconds else None,
        good_share=len(within) / len(records) if within is not None and records else None,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear between the nearest ranks of values in ascending order; NaN of none."""
    if not ordered:
        return math.nan
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and percentiles; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in QUANTILES)
    mean = math.fsum(ordered) / len(ordered)
    return Spread(count=len(ordered), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, largest=ordered[-1])


def tpot_of(record: RequestRecord) -> float | None:
    """Seconds a token after the first chunk; None when there are none."""
    later = sum(record.counts[1:])
    return (record.times[-1] - record.times[0]) / later if later else None


def shortest_latency(records: Sequence[RequestRecord]) -> float:
    """The median TPOT of good requests, or their median TTFT where answers have one token; 0 of nothing."""
    good = [record for record in records if record.ok and record.times]
    values = [value for record in good if (value := tpot_of(record))] or [record.times[0] for record in good]
    return percentile(sorted(values), 50) if values else 0.0


def itl_values(record: RequestRecord) -> list[float]:
    """One gap for each token after the first chunk."""
    values: list[float] = []
    before = record.times[0] if record.times else 0.0
    for time, count in zip(record.times[1:], record.counts[1:], strict=True):
        if count == 1:
            values.append(time - before)
        else:
            values += [(time - before) / count] * count if count else []
        before = time
    return values


def keeps(record: RequestRecord, limits: GoodputLimits) -> bool:
    """Whether a good request stayed within every limit; what it has not, such as ITL with one token, is within."""
    if not record.times:
        return False
    found = {
        "ttft": record.times[0],
        "tpot": tpot_of(record),
        "itl": max(itl_values(record), default=None),
        "e2e": record.times[-1],
    }
    return all(
        value is None or (limit := getattr(limits, name)) is None or value <= limit for name, value in found.items()
    )


def full_window(records: Sequence[RequestRecord], concurrency: int | None) -> tuple[float, float] | None:
    """The full-batch window, from the beginning of the load; None when there was no time at which all decoded."""
    firsts = sorted(record.start + record.times[0] for record in records if record.times)
    if concurrency is None or len(firsts) < concurrency:
        return None
    ends = sorted(record.start + (record.times[-1] if record.ok and record.times else record.end) for record in records)
    first, last = firsts[concurrency - 1], ends[len(ends) - concurrency]
    return (first, last) if last > first else None


def tokens_between(records: Iterable[RequestRecord], first: float, last: float) -> float:
    """Tokens that came after `first` and up to `last`."""
    return math.fsum(_tokens_until(record, last) - _tokens_until(record, first) for record in records)


def _tokens_until(record: RequestRecord, instant: float) -> float:
    """Tokens that had come by then: whole for the first chunk, evenly over the gap for the others."""
    times, counts = record.times, record.counts
    at = bisect_right(times, instant - record.start)
    if at in (0, len(times)):
        return sum(counts[:at])
    gap = times[at] - times[at - 1]
    return sum(counts[:at]) + counts[at] * (instant - record.start - times[at - 1]) / gap


def _spread_share(records: Sequence[RequestRecord]) -> float:
    later = [count for record in records for count in record.counts[1:]]
    return sum(count for count in later if count > 1) / sum(later) if sum(later) else 0.0


def _seconds(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    ends = (r.start + (r.times[-1] if r.ok and r.times else r.end) for r in records)
    return max(ends) - min(record.start for record in records)


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found or not found else sum(value or 0 for value in found)


def _tally(names: Iterable[str]) -> dict[str, int]:
    tally: dict[str, int] = {}
    for name in names:
        tally[name] = tally.get(name, 0) + 1
    return tally
