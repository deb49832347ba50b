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
    tail = _Tail(dump_dir / "index.jsonl")
    found: list[dict[str, Any]] = []
    while True:
        new = [entry for entry in tail.find(request_id) if str(entry.get("n")).isdigit()]
        if new and not found:
            deadline = min(deadline, clock() + rest_s)
        found += new
        if _settled(found, tokens) or failed() or clock() >= deadline:
            found.sort(key=lambda entry: int(entry.get("pass", 0)))
            return [dump_dir / f"req_{int(entry['n'])}" for entry in found]
        sleep(POLL_S)


def _settled(found: list[dict[str, Any]], tokens: int) -> bool:
    """Whether nothing more is to come, or nothing that comes could make it whole."""
    if any(entry.get("chunk", 0) is None for entry in found):
        return True
    return bool(found) and sum(int(entry.get("num_tokens", 0)) for entry in found) >= tokens


class _Tail:
    """Whole lines of a file of JSON objects as it grows, each looked at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def find(self, request_id: str) -> list[dict[str, Any]]:
        """New lines about the request."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["request_id"] == request_id:
                    found.append(entry)
        return found


def errors_of(dump_dir: Path, request_id: str) -> Callable[[], bool]:
    """Tells, each time it is called, whether the recorder has newly reported a failure of this request."""
    tail = _Tail(dump_dir / "errors.jsonl")
    return lambda: bool(tail.find(request_id))
