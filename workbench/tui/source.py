"""Looking without blocking the interface: a thread collects a snapshot, one message hands it over.

A source is plain code without textual. It is asked in a thread of its own, again and again while its screen is seen,
and never twice at once.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from workbench.errors import HsbenchError


class Source(Protocol):
    """Where a screen's facts come from."""

    every_s: float
    """Seconds between two looks."""

    def collect(self) -> Any:
        """Look once: a frozen record. May take its time.

        Raises:
            HsbenchError: there is nothing to see; the message says why.
        """

    def close(self) -> None:
        """Give back what is held."""


class Failed(msgspec.Struct, frozen=True):
    """A look that found an error instead."""

    message: str
    next_step: str = ""


class Poller(threading.Thread):
    """Asks a source until it is stopped.

    Args:
        source: What is asked.
        tell: Called in this thread with each snapshot, or `Failed`.
    """

    def __init__(self, source: Source, tell: Callable[[Any], object]) -> None:
        super().__init__(daemon=True, name=f"poll {type(source).__name__}")
        self.source, self._tell = source, tell
        self._stop_asked, self._wake, self._active = threading.Event(), threading.Event(), threading.Event()
        self._active.set()

    def run(self) -> None:
        """Look, tell, wait."""
        while not self._stop_asked.is_set():
            self._wake.clear()
            told = look(self.source)
            if self._stop_asked.is_set():
                break
            self._tell(told)
            self._wake.wait(self.source.every_s)
            self._active.wait()
        with contextlib.suppress(Exception):
            self.source.close()

    def wake(self) -> None:
        """Look again now: something changed."""
        self._wake.set()

    def pause(self) -> None:
        """Nobody looks on."""
        self._active.clear()

    def resume(self) -> None:
        """Somebody looks on again."""
        self._active.set()
        self._wake.set()

    def stop(self) -> None:
        """End soon; a look that is under way is not waited for."""
        self._stop_asked.set()
        self._active.set()
        self._wake.set()


def look(source: Source) -> Any:
    """One look; whatever goes wrong in it is a snapshot too, since a view must survive what it looks at."""
    from patches.errors import PatchError

    try:
        return source.collect()
    except (HsbenchError, PatchError) as error:
        return Failed(error.message, error.next_step)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
