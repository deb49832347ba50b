"""Waiting for the dump of one request id in a dump folder."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from workbench.probe.evidence import json_lines

POLL_S = 0.02


def wait_for_dump(
    dump_dir: Path,
    request_id: str,
    timeout_s: float,
    *,
    failed: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Path | None:
    """The finished dump folder of `request_id`, or None when it did not come in time or `failed()` says so.

    Reads only what was appended to `index.jsonl` since the last look.
    """
    deadline = clock() + timeout_s
    tail = _IndexTail(dump_dir / "index.jsonl")
    while True:
        number = tail.find(request_id)
        if number is not None:
            return dump_dir / f"req_{number}"
        if failed() or clock() >= deadline:
            return None
        sleep(POLL_S)


class _IndexTail:
    """Whole lines of an index file as it grows, each looked at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def find(self, request_id: str) -> int | None:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
                if entry["request_id"] == request_id:
                    return int(entry["n"])
            except (ValueError, KeyError, TypeError):
                continue
        return None


def has_error(dump_dir: Path, request_id: str) -> bool:
    """Whether the recorder has reported a failure of this request."""
    return any(line.get("request_id") == request_id for line in json_lines(dump_dir / "errors.jsonl"))
