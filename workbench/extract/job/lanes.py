"""The two stages that samples pass in parallel: through the server, then through a worker into the data set."""

import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.errors import HsbenchError, Missing, ServerError
from workbench.extract.job.arrivals import Arrivals, Expected
from workbench.extract.job.attempt import Attempt, Finished, NoDump, NotWritten, Outcome
from workbench.extract.job.gate import SPARE_BYTES, free_bytes
from workbench.extract.job.keeper import Keeper
from workbench.extract.writer import DatasetWriter
from workbench.probe.capture import is_chain, no_dump

LOOK_S = 0.2
FULL_S = 5.0
"""A recorder whose folder is full cannot even write that down; it is believed to have failed after so long."""


class ServerGone(ServerError):
    """The server was given up on while something waited for it."""


class Lanes:
    """Requests and writes under way. Outcomes are put into `outcomes`, from several threads.

    Args:
        keeper: The server.
        arrivals: Its dump folder.
        writer: The data set.
        prefix: Of this start's request ids.
    """

    def __init__(self, keeper: Keeper, arrivals: Arrivals, writer: DatasetWriter, *, prefix: str) -> None:
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.concurrency, self.timeout_s = keeper.settings.concurrency, keeper.settings.timeout_s
        self._keeper, self._arrivals, self._writer, self._prefix = keeper, arrivals, writer, prefix
        self._requests = _Crew(self.concurrency, "request")
        self._writes = _Crew(writer.at_once, "write")
        self._flying: set[Attempt] = set()
        self._writing = 0
        self._lock = threading.Lock()
        self.server_gone = threading.Event()
        """Set to have everything that waits for the server give up."""

    @property
    def flying(self) -> frozenset[Attempt]:
        """What the server has, or should record."""
        with self._lock:
            return frozenset(self._flying)

    @property
    def busy(self) -> bool:
        """Whether anything is under way whose outcome was not put yet."""
        with self._lock:
            return bool(self._flying) or self._writing > 0

    def send(self, attempt: Attempt) -> None:
        """Start a sample through the server; never call it for more than `concurrency` at a time."""
        with self._lock:
            self._flying.add(attempt)
        self._requests.submit(lambda: self._request(attempt))

    def write(self, attempt: Attempt, dump: Path) -> None:
        """Start a dump into the data set."""
        with self._lock:
            self._writing += 1
        self._writes.submit(lambda: self._write(attempt, dump))

    def _request(self, attempt: Attempt) -> None:
        """An outcome always comes of it: the flow counts on that."""
        outcome: Outcome | None = None
        try:
            self.write(attempt, self._captured(attempt))
        except HsbenchError as error:
            outcome = NoDump(attempt, error)
        except Exception as error:
            outcome = NoDump(attempt, _defect(error))
        finally:
            with self._lock:  # at once, or the flow would see neither the request nor what came of it
                self._flying.discard(attempt)
                if outcome is not None:
                    self.outcomes.put(outcome)

    def _captured(self, attempt: Attempt) -> Path:
        ids = attempt.sample.input_ids
        expected = self._arrivals.expect(attempt.next_id(self._prefix), len(ids))
        try:
            self._keeper.client.generate(list(ids), expected.request_id, timeout=self.timeout_s)
            self._await(expected, attempt.nbytes)
            return self._whole(expected)
        except BaseException:
            self._arrivals.give_up(expected)
            raise

    def _await(self, expected: Expected, nbytes: int) -> None:
        began = time.monotonic()
        while not expected.came.wait(LOOK_S):
            if self.server_gone.is_set():
                raise ServerGone("the server ended before the dump was written")
            waited = time.monotonic() - began
            if waited >= FULL_S and self._arrivals.idle() and self._free() < nbytes + SPARE_BYTES:
                raise Missing(f"no dump came, and the dump folder {self._arrivals.dump_dir} is full")
            if waited >= self.timeout_s:
                break
        if not expected.folders:
            raise no_dump(self._keeper.target, expected.request_id, expected.tokens)

    def _free(self) -> int:
        return free_bytes(self._arrivals.dump_dir)

    def _whole(self, expected: Expected) -> Path:
        """One dump; what is short of the prompt is found when it is written."""
        folders = expected.folders
        if len(folders) < 2 or not self._keeper.target.allow_chunked or not is_chain(folders, expected.tokens):
            for other in folders[1:]:
                shutil.rmtree(other, ignore_errors=True)
            return folders[0]
        whole = Path(self._writer.pool.call("join", folders=[str(folder) for folder in folders]))
        for part in folders:
            shutil.rmtree(part, ignore_errors=True)
        return whole

    def _write(self, attempt: Attempt, dump: Path) -> None:
        outcome: Outcome
        try:
            outcome = Finished(attempt, self._writer.write(attempt.sample, dump))
        except HsbenchError as error:
            outcome = NotWritten(attempt, dump, error)
        except OSError as error:
            outcome = NotWritten(attempt, dump, Missing(f"{attempt.sample.index} cannot be written: {error}"))
        except Exception as error:
            outcome = NotWritten(attempt, dump, _defect(error))
        with self._lock:
            self._writing -= 1
            self.outcomes.put(outcome)

    def close(self) -> None:
        """End the threads, waiting for writes only: a request that hangs must not hold the process."""
        self.server_gone.set()
        self._requests.end()
        self._writes.end()
        self._writes.join()


class _Crew:
    """Daemon threads that run what is submitted, in order. Those of `concurrent.futures` hold the process's end."""

    def __init__(self, count: int, name: str) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._todo.put(work)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            work()

    def end(self) -> None:
        """Each thread ends after what it does; what is submitted and not begun is done first."""
        for _ in self._threads:
            self._todo.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def _defect(error: Exception) -> HsbenchError:
    return HsbenchError(f"defect in hsbench: {type(error).__name__}: {error}", "report it")
