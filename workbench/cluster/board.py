"""Which shard is whose: the queue of a run. It knows no clock, no network and no file, only what it is told.

A shard is waiting, or with one server, or done. One that comes back from a server that was lost rests before another
gets it, so that the job which may still run there has ended: a hand ends its job once it has not heard of its driver
for `lease_s`.
"""

import collections
from collections.abc import Iterable

from workbench.exitcodes import ExitCode

STRIKES = 3
"""Shards in a row that may fail on a server before it gets no more."""
LOSSES = 5
"""Hands in a row that may be lost at a slot before one of them finishes a shard."""
TRIES = 6
"""Times that one shard may fail, on whatever server."""
DEFECTS = 3
"""Times that one shard may end in a way that speaks of a defect and not of a server."""
BUSY_S, BUSY_LONG_S = 5.0, 600.0
"""Rest of a shard in whose folder somebody else still writes, and how long that may go on."""
REST_S = 2.0
"""Before a shard that failed is tried again."""
REPEATS = frozenset({ExitCode.CHECK_FAILED, ExitCode.USAGE})
"""Ends of a shard that another server would come to as well."""


class Board:
    """The queue.

    Args:
        shards: Numbers of those that are not done.
        lease_s: How long a hand may go on without its driver.
    """

    def __init__(self, shards: Iterable[int], lease_s: float) -> None:
        self.lease_s = lease_s
        self.waiting: dict[int, float] = dict.fromkeys(shards, 0.0)
        """Shard → when it may be handed out."""
        self.held: dict[int, int] = {}
        """Slot → shard."""
        self.done: set[int] = set()
        self.retired: dict[int, str] = {}
        """Slot → why it gets nothing more."""
        self._busy_since: dict[int, float] = {}
        self._strikes: collections.Counter[int] = collections.Counter()
        self._losses: collections.Counter[int] = collections.Counter()
        self._fails: collections.Counter[int] = collections.Counter()
        self._defects: collections.Counter[int] = collections.Counter()

    @property
    def over(self) -> bool:
        """Whether every shard is done."""
        return not self.waiting and not self.held

    def take(self, slot: int, now: float) -> int | None:
        """The next shard for a server that has none; None while there is none for it."""
        if slot in self.held or slot in self.retired:
            return None
        ready = [shard for shard, at in self.waiting.items() if at <= now]
        if not ready:
            return None
        shard = min(ready)
        del self.waiting[shard]
        self.held[slot] = shard
        return shard

    def finish(self, slot: int, shard: int) -> None:
        """A shard is done."""
        if self.held.get(slot) == shard:
            del self.held[slot]
            self.done.add(shard)
            self._strikes[slot] = self._losses[slot] = 0

    def give_back(self, slot: int, now: float, rest_s: float = 0.0) -> int | None:
        """The slot's shard is to be done by another, if it has one; which."""
        shard = self.held.pop(slot, None)
        if shard is not None:
            self.waiting[shard] = now + rest_s
        return shard

    def busy(self, slot: int, now: float) -> bool:
        """Somebody else writes into the folder of the slot's shard; whether for too long."""
        shard = self.give_back(slot, now, BUSY_S)
        return shard is not None and now - self._busy_since.setdefault(shard, now) > BUSY_LONG_S

    def moved(self, shard: int) -> None:
        """The shard's job does something."""
        self._busy_since.pop(shard, None)

    def fail(self, slot: int, code: int, now: float) -> str:
        """The slot's shard failed there; "" when that is nobody's end.

        Returns:
            `stop`: the run must end with the reason. `retire`: the server gets nothing more. "" otherwise.
        """
        shard = self.give_back(slot, now, REST_S)
        if shard is None:
            return ""
        self._fails[shard] += 1
        self._defects[shard] += code not in list(ExitCode) or code == ExitCode.INTERNAL
        if code in REPEATS or self._fails[shard] >= TRIES or self._defects[shard] >= DEFECTS:
            return "stop"
        self._strikes[slot] += 1
        return "retire" if self._strikes[slot] >= STRIKES else ""

    def lose(self, slot: int, now: float) -> bool:
        """The slot's hand is gone; whether another one may be tried there."""
        self.give_back(slot, now, self.lease_s)
        self._losses[slot] += 1
        return self._losses[slot] < LOSSES

    def retire(self, slot: int, reason: str, now: float) -> None:
        """The slot gets nothing more."""
        self.give_back(slot, now)
        self.retired[slot] = reason
