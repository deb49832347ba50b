"""Several tensor workers that threads borrow one at a time."""

import contextlib
import os
import queue
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from workbench.errors import Missing
from workbench.worker import Worker


def cores() -> int:
    """Cores that this process may run on."""
    return max(1, len(os.sched_getaffinity(0)))


class WorkerPool:
    """Up to `size` workers in the engine's interpreter, started when first needed. Safe for threads.

    Args:
        python: The interpreter; it has torch.
        size: Workers at most; by default one a core.
        start: Makes a worker, for tests.
    """

    def __init__(self, python: str, size: int | None = None, start: Callable[[str], Worker] = Worker) -> None:
        self.python = python
        self.size = size or cores()
        self._start = start
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        self._fresh: set[Worker] = set()
        """Started, and not yet told how many threads they may have."""
        for _ in range(self.size):
            self._free.put(None)

    def start(self, count: int) -> None:
        """Have up to `count` workers load torch now, so that nobody waits for it later. Does not wait itself."""
        held: list[Worker] = []
        try:
            while len(held) < count and not self._free.empty():
                held.append(self._taken())
        finally:
            for worker in held:
                self._free.put(worker)

    def _taken(self) -> Worker:
        worker = self._free.get()
        if worker is None:
            try:
                worker = self._start(self.python)
            except BaseException:
                self._free.put(None)
                raise
            self._fresh.add(worker)
        return worker

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Worker]:
        """One worker for the time of the block; waits while all are in use. A worker that died is replaced."""
        worker: Worker | None = self._taken()
        assert worker is not None
        try:
            if worker in self._fresh:
                self._fresh.discard(worker)
                if self.size > 1:
                    worker.call("threads", count=max(1, cores() // self.size))
            yield worker
        except Missing:
            if worker is not None and not worker.alive():
                worker.close()
                worker = None
            raise
        finally:
            self._free.put(worker)

    def call(self, name: str, **arguments: Any) -> Any:
        """`Worker.call` on whichever worker is free."""
        with self.borrow() as worker:
            return worker.call(name, **arguments)

    def close(self) -> None:
        """End all workers that are not in use."""
        for _ in range(self.size):
            with contextlib.suppress(queue.Empty):
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
