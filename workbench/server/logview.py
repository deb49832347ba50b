"""A server's log for a person: its end, and what is added. A log is never loaded whole, and secrets are masked."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from workbench.server import log, state
from workbench.server.secrets import blot, secret_values
from workbench.supervision import signals

POLL_S = 0.2
BLOCK = 1 << 16


def find(name: str | None, *, previous: bool = False) -> tuple[Path, Callable[[], bool], tuple[str, ...]]:
    """The log of a server, a question whether it still runs, and its secrets, read from its process.

    A stopped server has no record but keeps its log.

    Raises:
        ServerError: there is no such server and no such log.
    """
    record = state.load(name) if name is not None else None
    folder = state.folder_of(name) if name is not None else None
    if record is None and (folder is None or not (folder / "server.log").exists()):
        record = state.find_record(name)
    place = record.folder if record is not None else folder
    assert place is not None
    path = place / ("server.previous.log" if previous else "server.log")
    pid = record.pid if record is not None and state.alive(record) else 0
    secrets = secret_values(signals.environment(pid), signals.command_line(pid)) if pid else ()
    return path, lambda: record is not None and state.alive(record), secrets


def show(path: Path, lines: int, alive: Callable[[], bool] | None = None, secrets: Sequence[str] = ()) -> Iterator[str]:
    """The last `lines` of a log; then, if `alive` is given, what is added for as long as it says so.

    Values in `secrets` are hidden wherever they turn up.
    """
    offset = _start_of(path, lines)
    reader = log.LogReader(path, offset)
    yield from (blot(line, secrets) for line in reader.lines())
    while alive is not None:
        goes_on = alive()
        yield from (blot(line, secrets) for line in reader.lines())
        if not goes_on:
            return
        time.sleep(POLL_S)


def _start_of(path: Path, lines: int) -> int:
    """Where the last `lines` begin: ever longer ends of the log are looked at until one holds enough."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        span = BLOCK
        while True:
            start = max(0, end - span)
            file.seek(start)
            parts = file.read(end - start).split(b"\n")
            if len(parts) > lines + 1 or start == 0:
                return end - len(b"\n".join(parts[-lines - 1 :]))
            span *= 4
