"""One sample on its way, and what can come of it."""

import time
from pathlib import Path

import msgspec

from workbench.errors import HsbenchError
from workbench.extract.index import IndexLine
from workbench.extract.sample import Sample

REST_S = 1.0
"""Before a row is sent again, the longer the oftener it failed: a server that is being killed takes a while to be gone,
and until then refuses everything."""
TRIES = 3
"""Requests that a row may take while the server lives."""
DEATHS_SHARED = 2
"""Servers that may die with a row in flight before it is sent alone."""
DEATHS_ALONE = 2
"""Servers that may die with only this row in flight before it is given up."""


class Attempt:
    """A sample until it has its line in the index."""

    def __init__(self, sample: Sample, nbytes: int) -> None:
        self.sample, self.nbytes = sample, nbytes
        self.tries = self.deaths = self.deaths_alone = self.sent_times = 0
        self.began = self.sent_at = time.monotonic()
        self.ready_at = self.busy_since = 0.0
        self.alone = False

    def next_id(self, prefix: str) -> str:
        """A request id that was not used before; it is sent now."""
        self.sent_at = time.monotonic()
        self.sent_times += 1
        return f"{prefix}{self.sample.index}-{self.sent_times}"

    def failed(self) -> None:
        """The server lives and the request came to nothing."""
        self.tries += 1
        self.rest()

    def may_wait(self, seconds: float) -> bool:
        """Whether the server may go on saying that it is busy."""
        self.busy_since = self.busy_since or time.monotonic()
        return time.monotonic() - self.busy_since < seconds

    def rest(self) -> None:
        """Not to be sent for a while."""
        self.ready_at = time.monotonic() + REST_S * 4 ** max(0, self.tries - 1)

    def died(self) -> None:
        """The server died while this was in flight."""
        self.deaths += 1
        self.deaths_alone += self.alone
        self.alone = self.deaths >= DEATHS_SHARED

    @property
    def hopeless(self) -> bool:
        """Whether another request would be one too many."""
        return self.tries >= TRIES or self.deaths_alone >= DEATHS_ALONE


class Finished(msgspec.Struct, frozen=True):
    """The row has its line."""

    attempt: Attempt
    line: IndexLine


class NoDump(msgspec.Struct, frozen=True):
    """The request failed, or no usable dump came of it."""

    attempt: Attempt
    error: HsbenchError


class NotWritten(msgspec.Struct, frozen=True):
    """The dump is there but could not be written; nothing was recorded."""

    attempt: Attempt
    dump: Path
    error: HsbenchError


Outcome = Finished | NoDump | NotWritten
