"""Sends finished sample files in the background, records them in parts, and frees them."""

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.errors import HsbenchError
from workbench.extract.index import IndexLine
from workbench.storage.errors import Refused, StorageError
from workbench.storage.parts import Parts
from workbench.storage.store import Store

THREADS = 4
PART_LINES = 512
"""A part is made of so many lines at most."""
PART_S, PART_MOST_S, PARTS = 2.0, 60.0, 500
"""A line waits so long for its part at most: longer in long runs, so that there are not many more than a thousand."""
REST_S, REST_MOST_S = 1.0, 30.0
"""Between two tries of the same file; each has botocore's own tries inside."""
TICK_S = 0.1
CLOSE_S = 30.0
"""What is under way when the job ends has so long to be stored."""


class Uploader:
    """The files of a staging folder on their way to a store. Nothing here decides anything but when to try again.

    Args:
        store: Where they go.
        parts: Where they are recorded.
        folder: The staging folder.
        patience_s: How long the store may fail before `check` gives up.
        before_free: Called with a line and its file before the file is removed.
        clock: Seconds that only go on.
    """

    def __init__(
        self,
        store: Store,
        parts: Parts,
        folder: Path,
        *,
        patience_s: float,
        before_free: Callable[[IndexLine, Path], None] = lambda line, path: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._parts, self._folder = store, parts, folder
        self._patience_s, self._before_free, self._clock = patience_s, before_free, clock
        self._todo: queue.SimpleQueue[IndexLine | None] = queue.SimpleQueue()
        self._stored: list[IndexLine] = []
        self._oldest = 0.0
        self._lock = threading.Lock()
        self._closed, self._over, self._hurry = threading.Event(), threading.Event(), threading.Event()
        self._fatal: HsbenchError | None = None
        self._trouble, self._since = "", 0.0
        self._began = clock()
        self.waiting = 0
        """Bytes of files that are not freed yet."""
        self.left = 0
        """Lines that are in no part yet."""
        # Daemons, since a store that does not answer must not hold the process.
        self._threads = [threading.Thread(target=self._run, name=f"upload-{n}", daemon=True) for n in range(THREADS)]
        self._recorder = threading.Thread(target=self._record, name="parts", daemon=True)
        for thread in (*self._threads, self._recorder):
            thread.start()

    @property
    def trouble(self) -> str:
        """Why nothing gets through just now; empty while something does."""
        return self._trouble

    def submit(self, line: IndexLine) -> None:
        """Have a row recorded, after its file, if it has one, is stored."""
        with self._lock:
            self.waiting += line.nbytes
            self.left += 1
        self._todo.put(line)

    def check(self) -> None:
        """Raise what ends the run: the store failed for too long, or another job has it."""
        if self._fatal is not None:
            raise self._fatal
        waited = self._clock() - self._since
        if self._trouble and waited > self._patience_s:
            raise StorageError(
                f"the storage was not reachable for {waited:.0f} s: {self._trouble}",
                f"hsbench extract --resume {self._store.url} goes on when it is back",
            )

    def hurry(self) -> None:
        """Make the last part as soon as all is stored: nothing more will come."""
        self._hurry.set()

    def close(self) -> None:
        """End the threads. What is stored is recorded if the store is well; the rest waits in the staging folder."""
        deadline = time.monotonic() + CLOSE_S
        self._closed.set()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._over.set()
        self._recorder.join(max(1.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (line := self._todo.get()) is not None and not self._closed.is_set():
            if not line.file or self._insist(functools.partial(self._send, line)):
                with self._lock:
                    self._oldest = self._oldest if self._stored else self._clock()
                    self._stored.append(line)

    def _send(self, line: IndexLine) -> None:
        path = self._folder / line.file
        self._store.put(path, line.file, line.crc32, may_replace=self._parts.may_replace)
        self._before_free(line, path)

    def _insist(self, work: Callable[[], None]) -> bool:
        """Do it until it is done; False when the job is over or it can never be done."""
        rest = REST_S
        while self._fatal is None:
            try:
                work()
            except (StorageError, Refused, OSError) as error:  # rights and tokens come and go
                self._failed(error)
            except HsbenchError as error:
                self._fatal = error
                return False
            except Exception as error:
                self._fatal = HsbenchError(f"defect in hsbench: {type(error).__name__}: {error}", "report it")
                return False
            else:
                self._trouble = ""
                return True
            if self._closed.wait(rest):
                return False
            rest = min(2 * rest, REST_MOST_S)
        return False

    def _failed(self, error: Exception) -> None:
        if not self._trouble:
            self._since = self._clock()
        self._trouble = error.message if isinstance(error, HsbenchError) else str(error)

    def _record(self) -> None:
        """The thread that makes parts: one after the other, as their numbers are."""
        ending = False
        while not ending:
            ending = self._over.wait(TICK_S)
            while (lines := self._due(ending)) and self._insist(functools.partial(self._parts.append, lines)):
                self._free(lines)

    def _due(self, ending: bool) -> list[IndexLine]:
        """The lines of the next part; none while it is not worth one."""
        with self._lock:
            count = len(self._stored)
            wait = min(PART_MOST_S, max(PART_S, (self._clock() - self._began) / PARTS))
            waited = ending or self._clock() - self._oldest >= wait or (self._hurry.is_set() and count == self.left)
            return self._stored[:PART_LINES] if count >= PART_LINES or (count and waited) else []

    def _free(self, lines: list[IndexLine]) -> None:
        for line in lines:
            if line.file:
                with contextlib.suppress(OSError):
                    (self._folder / line.file).unlink()
        with self._lock:
            del self._stored[: len(lines)]
            self._oldest = self._clock()
            self.waiting -= sum(line.nbytes for line in lines)
            self.left -= len(lines)
