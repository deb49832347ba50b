"""A closed loop of prefill requests of random tokens, and its rate, for scripts that compare servers."""

import random
import re
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.sweep.student import quantile
from workbench.errors import HsbenchError
from workbench.server.client import SglangClient

THROUGHPUT = re.compile(rb"Prefill batch.*input throughput \(token/s\): ([0-9.]+)")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """What one stretch of load gave."""

    requests: int
    tokens: int
    seconds: float
    tok_s: float
    """Between the end of the ramp and the beginning of the drain: see `rate`; of a short stretch, over all of it."""
    server_tok_s: float | None
    """Median of `input throughput` in the server's log lines of this stretch."""
    failed: int = 0
    error: str = ""
    """What the first request that failed was told."""


class Load:
    """Requests of `length` random tokens each, `concurrency` at a time, no two alike."""

    def __init__(
        self, client: SglangClient, *, length: int, concurrency: int, vocabulary: int, log: Path | None
    ) -> None:
        self.client, self.length, self.concurrency, self.log = client, length, concurrency, log
        self._random = random.Random(time.time_ns())
        self._vocabulary = vocabulary
        self._count = 0
        self._lock = threading.Lock()

    def _next(self, prefix: str) -> tuple[list[int], str]:
        with self._lock:
            self._count += 1
            return [self._random.randrange(5, self._vocabulary) for _ in range(self.length)], f"{prefix}{self._count}"

    def run(self, seconds: float, prefix: str) -> Block:
        """Send for so long, let the last answers come, and say what the rate was. The first failure ends it."""
        ends: list[float] = []
        failed: list[str] = []
        start = self.log.stat().st_size if self.log else 0
        began, over = time.monotonic(), threading.Event()

        def lane() -> None:
            while not over.is_set() and time.monotonic() - began < seconds:
                ids, rid = self._next(prefix)
                try:
                    self.client.generate(ids, rid, timeout=600)
                    ends.append(time.monotonic())
                except HsbenchError as error:
                    over.set()
                    failed.append(error.message)
                except RuntimeError:
                    if not over.is_set():  # else whoever broke it off has closed the client
                        raise

        threads = [threading.Thread(target=lane, daemon=True) for _ in range(self.concurrency)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            over.set()
        return Block(
            requests=len(ends),
            tokens=len(ends) * self.length,
            seconds=time.monotonic() - began,
            tok_s=rate(ends, self.length, self.concurrency) or len(ends) * self.length / (time.monotonic() - began),
            server_tok_s=self._by_the_server(start),
            failed=len(failed),
            error=failed[0] if failed else "",
        )

    def _by_the_server(self, start: int) -> float | None:
        if self.log is None:
            return None
        with open(self.log, "rb") as file:
            file.seek(start)
            found = [float(value) for value in THROUGHPUT.findall(file.read())]
        return statistics.median(found[1:]) if len(found) > 1 else None  # the first spans the pause before


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Their mean with the interval in words; one value has none."""
    mean, half = interval(values)
    if len(values) < 2:
        return f"{mean:.{digits}f} in one round, so without an interval"
    return f"{mean:.{digits}f} ± {half:.{digits}f} over {len(values)} rounds"


def rate(ends: Sequence[float], length: int, concurrency: int) -> float:
    """Tokens a second, by the slope of a straight line through (time, number) of the answers (least squares).

    Answers come in batches, all of one pass at once; the ends of a simple quotient would fall somewhere inside one.
    Ramp and drain, `concurrency` answers each, are left out. 0 when too few others remain for a line.
    """
    ordered = sorted(ends)
    if len(ordered) <= 3 * concurrency:
        return 0.0
    ordered = ordered[concurrency:-concurrency]
    if ordered[0] == ordered[-1]:
        return 0.0
    return statistics.linear_regression(ordered, range(len(ordered))).slope * length


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (Student's t, n - 1 degrees of freedom)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, float("nan")
    half = quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, half
