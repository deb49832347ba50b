"""A server that has requests and finishes none: looked at until it is clear whether it hangs.

Three things prove it: a process of it that was stopped; a verdict that does not end by itself; and silence, of a server
that answers nobody, for many times what the slowest sample of this run took. Its log proves nothing, since the
questions that it is asked meanwhile write lines of their own.
"""

import time
from collections.abc import Callable, Collection

from workbench.extract.job.attempt import Attempt
from workbench.extract.job.keeper import Keeper
from workbench.server.ready import CONFIRM_S
from workbench.supervision.records import PortSample
from workbench.supervision.signals import stopped
from workbench.supervision.target import of_record
from workbench.supervision.verdict import BROKEN, State, Verdict
from workbench.supervision.watch import Watch

QUIET_S = 60.0
"""Without an outcome or a dump for so long the server is watched."""
STOPPED_S = 10.0
"""Without one for so long, its processes are looked at for one that was stopped."""
LOOK_S = 2.0
PATIENCE = 10.0
"""Silence may last so many times as long as the slowest sample took; twice as many each time that it ended a server."""


class Stall:
    """Watches a server of ours while nothing comes of its requests; costs nothing while something does."""

    def __init__(self, keeper: Keeper, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper, self._clock = keeper, clock
        self._moved = self._looked = clock()
        self._watch: Watch | None = None
        self._broken_since: float | None = None
        self._dumps = -1
        self._stopped: tuple[str, ...] = ()
        self._slowest: tuple[float, int] | None = None
        """Seconds and tokens of a sample."""
        self._patience = PATIENCE

    def moved(self) -> None:
        """Something came of a request."""
        self._moved = self._clock()
        self._broken_since, self._stopped = None, ()
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self._watch = None

    def took(self, seconds: float, tokens: int) -> None:
        """A sample took so long, from its request to its line in the index."""
        self._slowest = max(self._slowest or (0.0, 1), (seconds, tokens))

    def bound(self, flying: Collection[Attempt]) -> float | None:
        """Seconds that nothing may come; None while no sample shows what is slow here.

        A prompt that is longer than the slowest sample's gets time for its attention, which grows with the square.
        """
        if self._slowest is None:
            return None
        seconds, tokens = self._slowest
        longest = max((len(attempt.sample.input_ids) for attempt in flying), default=0)
        return max(QUIET_S, self._patience * seconds * max(1.0, longest / tokens) ** 2)

    def look(self, flying: Collection[Attempt], dumps: int = -1) -> str | None:
        """What is wrong, once the server is proven broken; None otherwise. Looks every other second at most.

        Args:
            flying: What the server has.
            dumps: A number that changes with each dump that comes.
        """
        now = self._clock()
        if not flying or dumps != self._dumps:
            self._dumps = dumps
            self.moved()
        record = self._keeper.target.record
        quiet = now - self._moved
        if record is None or quiet < min(STOPPED_S, QUIET_S) or now - self._looked < LOOK_S:
            return None
        self._looked = now
        before, self._stopped = self._stopped, stopped(record.pid)
        if before and before == self._stopped:
            return f"{State.STOPPED_CHILD}: {', '.join(before)} was stopped by a signal, with {_requests(flying)}"
        if quiet < QUIET_S:
            return None
        if self._watch is None:
            self._watch = Watch(of_record(record), attached=True).__enter__()
        seen = self._watch.look()
        return self._broken(seen.verdict, now) or self._silent(seen.sample.port, flying, quiet)

    def _broken(self, verdict: Verdict, now: float) -> str | None:
        if verdict.state not in BROKEN:
            self._broken_since = None
            return None
        self._broken_since = self._broken_since or now
        if now - self._broken_since < CONFIRM_S.get(verdict.state, 0.0):
            return None
        return f"{verdict.headline()}: {'; '.join(verdict.evidence)}"

    def _silent(self, port: PortSample | None, flying: Collection[Attempt], quiet: float) -> str | None:
        """Why a server is given up that no verdict calls broken. One that answers `/health` works for somebody."""
        bound = self.bound(flying)
        if bound is None or self._slowest is None or quiet < bound:
            return None
        if port is None or port.health in (None, 200):
            return None
        self._patience *= 2
        return (
            f"silent: no answer and no dump for {quiet:.0f} s with {_requests(flying)}, while the slowest "
            f"sample so far took {self._slowest[0]:.1f} s; /health answers {port.health or 'nothing'}"
        )


def _requests(flying: Collection[Attempt]) -> str:
    return f"{len(flying)} request{'s' if len(flying) != 1 else ''} in flight"
