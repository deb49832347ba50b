"""Where the run is: counts and a clock that stands still while it waits."""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator

from workbench.extract.index import IndexLine
from workbench.extract.job.arrivals import Arrivals
from workbench.extract.job.events import Progress, Slow, State
from workbench.extract.job.gate import Gate, free_bytes
from workbench.extract.job.lanes import Lanes

EVERY_S = 2.0
SLOWEST = 5


class Counts:
    """The numbers of `Progress`.

    Args:
        rows: Of this shard.
        lines: What is done already.
        tokens_left: Expected of the other rows.
        plain_tok_s: Prefill rate without recording, if it was measured.
        clock: Seconds that only go on.
    """

    def __init__(
        self,
        rows: int,
        lines: Iterable[IndexLine],
        tokens_left: float,
        plain_tok_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restarts = self.retries = 0
        self._rows, self._plain, self._clock = rows, plain_tok_s, clock
        self._written = self._refused = self._quarantined = self._tokens = self._bytes = 0
        self._here = self._tokens_here = self._bytes_here = 0
        self._slowest: list[Slow] = []
        for line in lines:
            self._add(line)
        self._expected = self._tokens + tokens_left
        self._state: State = "running"
        self._why = ""
        self._seconds, self._since = 0.0, None if not tokens_left else clock()
        self._told = float("-inf")
        self._now: dict[str, int] = {}

    def _add(self, line: IndexLine) -> None:
        self._written += line.status == "written"
        self._refused += line.status == "refused"
        self._quarantined += line.status == "quarantined"
        if line.status == "written":
            self._tokens += line.tokens
            self._bytes += line.nbytes

    def written(self, line: IndexLine, took: Slow) -> None:
        """A sample is in the data set."""
        self._add(line)
        self._here += 1
        self._tokens_here += line.tokens
        self._bytes_here += line.nbytes
        self._slowest = heapq.nlargest(SLOWEST, [*self._slowest, took], key=lambda slow: slow.seconds)

    def refused(self) -> None:
        """A row never goes to the server."""
        self._refused += 1

    def quarantined(self) -> None:
        """A row is bad."""
        self._quarantined += 1

    def pause(self, state: State, why: str) -> bool:
        """The clock stands; whether it did not before."""
        changed = self._state != state
        if self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None
        self._state, self._why = state, why
        if changed:
            self._told = float("-inf")
        return changed

    def resume(self) -> None:
        """The clock goes on."""
        if self._since is None:
            self._since = self._clock()
        if self._state != "running":
            self._state, self._why, self._told = "running", "", float("-inf")

    def look(self, lanes: Lanes, arrivals: Arrivals, gate: Gate) -> None:
        """Take what is to be seen at this moment, if a picture is due or the run is over."""
        if self._clock() - self._told >= EVERY_S or not lanes.busy:
            self._now = {
                "in_flight": len(lanes.flying),
                "waiting_bytes": gate.waiting,
                "high_water_bytes": gate.high_water,
                "upload_bytes": gate.uploads.waiting if gate.uploads is not None else 0,
                "dump_n": arrivals.highest,
                "free_bytes": free_bytes(gate.out),
            }

    def waiting(self, state: State, why: str) -> Iterator[Progress]:
        """A picture in this state, if the state is another or the last picture is old."""
        if self.pause(state, why) or self._clock() - self._told >= EVERY_S:
            yield self.picture()

    def due(self) -> Progress | None:
        """A picture if the last one is old, or no longer true."""
        return self.picture() if self._clock() - self._told >= EVERY_S else None

    def picture(self, state: State | None = None) -> Progress:
        """The whole picture."""
        self._told = self._clock()
        running = 0.0 if self._since is None else self._told - self._since
        return Progress(
            time=time.time(),
            state=state or self._state,
            why=self._why,
            rows=self._rows,
            written=self._written,
            refused=self._refused,
            quarantined=self._quarantined,
            tokens=self._tokens,
            tokens_expected=self._expected,
            nbytes=self._bytes,
            samples_here=self._here,
            tokens_here=self._tokens_here,
            bytes_here=self._bytes_here,
            seconds_here=self._seconds + running,
            restarts=self.restarts,
            retries=self.retries,
            plain_tok_s=self._plain,
            slowest=tuple(self._slowest),
            **self._now,
        )
