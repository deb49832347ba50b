"""What is kept of each request: while it runs (`Trace`) and afterwards (`RequestRecord`)."""

from itertools import pairwise
from typing import Literal

import msgspec

Counted = Literal["chunk", "total", "assumed"]
"""Who counted the output: the server with every chunk; the server, but only at the end, so that the tokens of each
chunk are inferred; or nobody, and one token a chunk is assumed."""


class Trace:
    """A request under way. Instants are of `time.perf_counter`."""

    __slots__ = (
        "asked",
        "asked_at",
        "cached",
        "chunked",
        "done",
        "end",
        "error",
        "finish",
        "heard",
        "number",
        "prompt",
        "start",
        "status",
        "times",
        "total",
        "totals",
    )

    def __init__(self, number: int = 0, asked: int = 0) -> None:
        self.number, self.asked = number, asked
        self.asked_at = self.start = self.heard = self.end = 0.0
        self.times: list[float] = []
        """When each chunk with tokens arrived."""
        self.totals: list[int] = []
        """Tokens up to and with each of those chunks."""
        self.chunked = True
        """Whether the server counted in every one of them."""
        self.total: int | None = None
        """The server's last count."""
        self.prompt: int | None = None
        self.cached: int | None = None
        self.finish: str | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.done = False

    def count(self, total: int, now: float) -> None:
        """The server says that there are `total` tokens now."""
        self.total = total
        if self.chunked and total > (self.totals[-1] if self.totals else 0):
            self.times.append(now)
            self.totals.append(total)

    def chunk(self, now: float) -> None:
        """Some text came, and nobody said how many tokens it is."""
        self.chunked = False
        self.times.append(now)
        self.totals.append((self.totals[-1] if self.totals else 0) + 1)


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `start` is in seconds from the beginning of its load, the others from `start`."""

    number: int
    start: float
    """When its bytes went to the connection."""
    waited: float = 0.0
    """Before that, in the client: connecting, where no connection was kept, and the event loop's other work."""
    end: float
    """When the answer was over, or failed."""
    times: tuple[float, ...] = ()
    """Arrival of each chunk that had tokens."""
    counts: tuple[int, ...] = ()
    """Tokens in each of them."""
    counted: Counted = "chunk"
    asked_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    status: int | None = None
    error: str | None = None

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(self.counts)

    @property
    def ok(self) -> bool:
        """Whether the answer came to its end."""
        return self.error is None


def record_of(trace: Trace, began: float) -> RequestRecord:
    """The finished request, to the microsecond."""
    counts, counted = _counts(trace)
    start = trace.start
    return RequestRecord(
        number=trace.number,
        start=round(start - began, 6),
        waited=round(start - trace.asked_at, 6),
        end=round(trace.end - start, 6),
        times=tuple([round(instant - start, 6) for instant in trace.times]),
        counts=counts,
        counted=counted,
        asked_tokens=trace.asked,
        prompt_tokens=trace.prompt,
        cached_tokens=trace.cached,
        finish=trace.finish,
        status=trace.status,
        error=trace.error,
    )


def _counts(trace: Trace) -> tuple[tuple[int, ...], Counted]:
    """Tokens of each chunk, those that only a total is known of spread evenly over the chunks."""
    chunks = len(trace.times)
    if trace.chunked or not chunks:
        return tuple(after - before for before, after in pairwise((0, *trace.totals))), "chunk"
    if trace.total is None:
        return (1,) * chunks, "assumed"
    marks = [trace.total * number // chunks for number in range(chunks + 1)]
    return tuple(after - before for before, after in pairwise(marks)), "total"
