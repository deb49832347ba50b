"""What a job asks its server before the first sample, while it looks whether the server hangs."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar, cast

from workbench.errors import ServerBroken
from workbench.extract.job.attempt import Attempt
from workbench.extract.job.events import Told
from workbench.extract.job.keeper import Keeper
from workbench.extract.job.stall import Stall
from workbench.extract.sample import Sample
from workbench.server.events import describe

T = TypeVar("T")
TICK_S = 0.5
TRIES = 2
"""Servers that may hang at it before the job gives up."""


class _Asking(threading.Thread):
    """A daemon, so that whoever breaks the job off does not wait for a server that never answers."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(name="asking", daemon=True)
        self._work = work
        self.error: BaseException | None = None
        self.found: object = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as error:
            self.error = error


def guarded(keeper: Keeper, samples: Sequence[Sample], work: Callable[[], T]) -> Generator[Told, None, T]:
    """Do the work. A server that hangs meanwhile is ended and started again, and the work is done anew.

    Args:
        samples: What the work sends. It asks `keeper` for its client each time, and ends when the server is gone.

    Raises:
        ServerBroken: one server after the other hangs.
        HsbenchError: what the work raises, or the server does not come back.
    """
    tries = 0
    while True:
        tries += 1
        asking = _Asking(work)
        why = _hang(keeper, samples, asking)
        if why is None:
            if asking.error is not None:
                raise asking.error
            return cast(T, asking.found)
        keeper.kill()
        asking.join()
        if tries == TRIES:
            raise ServerBroken(
                f"{TRIES} servers in a row hung before the first sample; the last was {why}",
                "hsbench logs and hsbench doctor show more",
            )
        yield Told(time=time.time(), text=f"restarting: the server is {why}", level="warning")
        for event in keeper.restart():
            yield Told(time=time.time(), text=describe(event))


def _hang(keeper: Keeper, samples: Sequence[Sample], asking: _Asking) -> str | None:
    """What is wrong with the server; None once it has answered."""
    stall, flying = Stall(keeper), [Attempt(sample, 0) for sample in samples]
    try:
        while asking.is_alive():
            asking.join(TICK_S)
            if asking.is_alive() and (why := stall.look(flying)) is not None:
                return why
        return None
    finally:
        stall.moved()  # ends its watch
