"""A server that has requests and finishes none: looked at until it is clear whether it hangs."""

import time
from collections.abc import Callable

from workbench.extract.job.keeper import Keeper
from workbench.server.ready import CONFIRM_S
from workbench.supervision.target import of_record
from workbench.supervision.verdict import BROKEN
from workbench.supervision.watch import Watch

QUIET_S = 60.0
"""Without an outcome for so long the server is watched."""
LOOK_S = 2.0


class Stall:
    """Watches a server of ours while nothing comes of its requests; costs nothing while something does."""

    def __init__(self, keeper: Keeper, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeper, self._clock = keeper, clock
        self._moved = self._looked = clock()
        self._watch: Watch | None = None
        self._broken_since: float | None = None

    def moved(self) -> None:
        """Something came of a request."""
        self._moved = self._clock()
        self._broken_since = None
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self._watch = None

    def look(self, flying: bool) -> str | None:
        """The verdict once the server is proven broken; None otherwise. Looks every other second at most."""
        now = self._clock()
        if not flying:
            self.moved()
        record = self._keeper.target.record
        if record is None or now - self._moved < QUIET_S or now - self._looked < LOOK_S:
            return None
        self._looked = now
        if self._watch is None:
            self._watch = Watch(of_record(record), attached=True).__enter__()
        verdict = self._watch.look().verdict
        if verdict.state not in BROKEN:
            self._broken_since = None
            return None
        self._broken_since = self._broken_since or now
        if now - self._broken_since < CONFIRM_S.get(verdict.state, 0.0):
            return None
        return f"{verdict.headline()}: {'; '.join(verdict.evidence)}"
