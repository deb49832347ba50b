"""Waiting for the dumps of one request id in a dump folder."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.02


def wait_for_dumps(
    dump_dir: Path,
    request_id: str,
    timeout_s: float,
    *,
    tokens: int = 0,
    rest_s: float = 0.0,
    failed: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """The finished dumps of `request_id`: the first that comes, or as many as it takes to hold `tokens` tokens.

    They are in the order of their passes, as writers finish in any order. Less than asked for, or nothing, comes when
    the time is up or `failed()` says so, `rest_s` seconds after the first, and as soon as one of them goes on from
    tokens that were never recorded. Reads only what was appended to `index.jsonl` since the last look.
    """
    deadline = clock() + timeout_s
    tail = NewLines(dump_dir / "index.jsonl")
    found: list[dict[str, Any]] = []
    while True:
        new = [entry for entry in tail.about(request_id) if str(entry.get("n")).isdigit()]
        if new and not found:
            deadline = min(deadline, clock() + rest_s)
        found += new
        if settled(found, tokens) or failed() or clock() >= deadline:
            return in_order(dump_dir, found)
        sleep(POLL_S)


def in_order(dump_dir: Path, found: list[dict[str, Any]]) -> list[Path]:
    """The folders of these lines of the index, in the order of their passes: writers finish in any."""
    return [dump_dir / f"req_{int(entry['n'])}" for entry in sorted(found, key=lambda e: int(e.get("pass", 0)))]


def settled(found: list[dict[str, Any]], tokens: int) -> bool:
    """Whether nothing more is to come, or nothing that comes could make it whole."""
    if any(entry.get("chunk", 0) is None for entry in found):
        return True
    return bool(found) and sum(int(entry.get("num_tokens", 0)) for entry in found) >= tokens


class NewLines:
    """Whole lines of a growing file of JSON objects, each given once. A file that got shorter is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def take(self) -> list[dict[str, Any]]:
        """The objects that came since the last time; a line that is none is passed over."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._offset:  # somebody emptied the folder
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    found.append(entry)
        return found

    def about(self, request_id: str) -> list[dict[str, Any]]:
        """Those of them about one request."""
        return [entry for entry in self.take() if entry.get("request_id") == request_id]


def errors_of(dump_dir: Path, request_id: str) -> Callable[[], bool]:
    """Tells, each time it is called, whether the recorder has newly reported a failure of this request."""
    tail = NewLines(dump_dir / "errors.jsonl")
    return lambda: bool(tail.about(request_id))
