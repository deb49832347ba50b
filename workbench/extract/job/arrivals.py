"""Dumps as they come: one reader of the dump folder's index for all requests of a job.

What comes and was not expected, but bears the run's request ids, is left over from a start that was killed or a request
that was given up; it is removed, since nobody else will.
"""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from workbench.probe.arrival import NewLines, in_order, settled
from workbench.probe.evidence import read_json

POLL_S = 0.02
REST_S = 2.0
"""How long further passes of a prompt are waited for that should have come in one."""


class Expected:
    """The dumps of one request, once `came` is set: `folders` in the order of their passes, none if it failed."""

    def __init__(self, request_id: str, tokens: int) -> None:
        self.request_id, self.tokens = request_id, tokens
        self.came = threading.Event()
        self.folders: list[Path] = []
        self._entries: list[dict[str, Any]] = []
        self._first = 0.0

    def add(self, entry: dict[str, Any], now: float) -> None:
        """Take one line of the index."""
        self._first = self._first or now
        self._entries.append(entry)

    def settled(self, now: float, rest_s: float) -> bool:
        """Whether nothing more is to come, or has not come in time."""
        return settled(self._entries, self.tokens) or (bool(self._entries) and now - self._first >= rest_s)

    def settle(self, dump_dir: Path) -> None:
        """Say where the dumps are."""
        self.folders = in_order(dump_dir, self._entries)
        self.came.set()


class Arrivals:
    """Follows `index.jsonl` and `errors.jsonl` of a dump folder in a thread.

    Args:
        dump_dir: The folder that the server records into.
        prefix: How the request ids of this run begin, over all its starts.
        allow_chunked: Wait for as many passes as a prompt takes.
    """

    def __init__(self, dump_dir: Path, prefix: str, *, allow_chunked: bool = False) -> None:
        self.dump_dir, self.prefix = dump_dir, prefix
        self.highest = -1
        """N of the last dump, of whatever request."""
        self._rest_s = float("inf") if allow_chunked else REST_S
        self._index, self._errors = NewLines(dump_dir / "index.jsonl"), NewLines(dump_dir / "errors.jsonl")
        self._expected: dict[str, Expected] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._errors.take()  # those of before are of requests that nobody waits for
        self.look()
        self._thread = threading.Thread(target=self._follow, name="arrivals", daemon=True)
        self._thread.start()

    def expect(self, request_id: str, tokens: int) -> Expected:
        """Announce a request before it is sent."""
        expected = Expected(request_id, tokens)
        with self._lock:
            self._expected[request_id] = expected
        return expected

    def give_up(self, expected: Expected) -> None:
        """Stop waiting; a dump that still comes is removed, and so is what came."""
        with self._lock:
            self._expected.pop(expected.request_id, None)
        for entry in expected._entries:
            self._remove(entry)

    def idle(self) -> bool:
        """Whether no dump is being written."""
        return next(self.dump_dir.glob("req_*.tmp"), None) is None

    def look(self) -> None:
        """Read what is new. The thread does this by itself."""
        now = time.monotonic()
        with self._lock:
            for entry in self._index.take():
                self._take(entry, now)
            for line in self._errors.take():
                found = self._expected.get(str(line.get("request_id")))
                if found is not None:
                    found.came.set()
            for request_id, expected in list(self._expected.items()):
                if expected.settled(now, self._rest_s):
                    del self._expected[request_id]
                    expected.settle(self.dump_dir)

    def _take(self, entry: dict[str, Any], now: float) -> None:
        if not str(entry.get("n")).isdigit():
            return
        self.highest = max(self.highest, int(entry["n"]))
        request_id = str(entry.get("request_id"))
        expected = self._expected.get(request_id)
        if expected is not None:
            expected.add(entry, now)
        elif request_id.startswith(self.prefix):
            self._remove(entry)

    def _remove(self, entry: dict[str, Any]) -> None:
        name = f"req_{int(entry['n'])}"
        for folder in (self.dump_dir / name, self.dump_dir / f"{name}.whole"):
            shutil.rmtree(folder, ignore_errors=True)

    def _follow(self) -> None:
        while not self._end.wait(POLL_S):
            self.look()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()


def sweep(dump_dir: Path) -> int:
    """Remove half-written dumps, unless some server still records there. Returns their number."""
    status = read_json(dump_dir / "recorder.json") or {}
    if psutil.pid_exists(int(status.get("pid", 0))):
        return 0
    left = [*dump_dir.glob("req_*.tmp"), *dump_dir.glob("req_*.whole")]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)
