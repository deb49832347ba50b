"""Waiting for a server: phases from its log, and at the end a real answer."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import ServerDied, ServerError, TimedOut
from workbench.server import log, ports, processes, state
from workbench.server.client import AnsweredWithError, SglangClient
from workbench.server.events import PhaseChanged, Ready
from workbench.server.state import ServerRecord

POLL_S = 0.1
QUIET_S = 10.0
"""How long an open port may stay without the log's last line before it is asked all the same: a server told
to log less never writes that line. Until then SGLang warms itself up, and a request would come in between."""


def wait_ready(
    record: ServerRecord, timeout: float, client: SglangClient | None = None
) -> Iterator[PhaseChanged | Ready]:
    """Follow a start until the server has answered a request for one token.

    Args:
        record: The server, as `start` returned it.
        timeout: Seconds from now.
        client: How to ask it; needed only when the server wants an API key.

    Yields:
        Each phase as the log shows it, and `Ready` at the end; the record on disk then says so too.

    Raises:
        ServerDied: the process ended; with its exit code if known and the last lines of its log.
        RequestRefused: the server refuses the request for good.
        TimedOut: it did not answer in time; it still runs.
    """
    waiting = _Waiting(record, time.monotonic() + timeout)
    yield PhaseChanged(log.FIRST_PHASE, waiting.seconds())
    with client or SglangClient(record.url) as asked:
        while True:
            died = not state.alive(record)
            for phase in waiting.reader.new_phases():
                yield PhaseChanged(phase, waiting.seconds())
            if died:
                raise _died(record, waiting)
            if waiting.may_ask() and waiting.answers(asked):
                break
            waiting.check_time()
            time.sleep(POLL_S)
    seconds = waiting.seconds()
    msgspec.structs.replace(record, ready_after=seconds).save()
    yield Ready(seconds)


class _Waiting:
    """What is known while one start is followed."""

    def __init__(self, record: ServerRecord, deadline: float) -> None:
        self.record = record
        self.deadline = deadline
        self.reader = log.LogReader(Path(record.log))
        self._open_since: float | None = None
        self._refusal = ""

    def seconds(self) -> float:
        """Since the process was started."""
        return max(0.0, time.time() - self.record.started)

    def may_ask(self) -> bool:
        """Whether a request now would neither disturb the start nor be refused for sure."""
        if self._open_since is None:
            if self.reader.phase not in ("warm-up", "ready") and not self._port_is_open():
                return False
            self._open_since = time.monotonic()
        return self.reader.phase == "ready" or time.monotonic() - self._open_since > QUIET_S

    def _port_is_open(self) -> bool:
        return ports.accepts(self.record.host, self.record.port)

    def answers(self, client: SglangClient) -> bool:
        """Ask for one token. The request's id is none that the recorder keeps."""
        try:
            client.generate([0], rid=f"ready-{time.time_ns()}", timeout=max(1.0, self.deadline - time.monotonic()))
        except AnsweredWithError as error:
            if error.status != 503:
                raise
            self._refusal = error.message
        except (ServerError, TimedOut) as error:
            self._refusal = error.message
        else:
            return True
        return False

    def check_time(self) -> None:
        if time.monotonic() < self.deadline:
            return
        name, path = self.record.name, self.record.log
        said = f"; it said: {self._refusal}" if self._refusal else ""
        raise TimedOut(
            f"{name} does not answer after {self.seconds():.0f} s, in phase {self.reader.phase!r}{said}",
            f"it still runs: hsbench stop {name}, or wait longer with --timeout; log {path}",
            "\n".join(log.tail(Path(path), 10)),
        )


def _died(record: ServerRecord, waiting: _Waiting) -> ServerDied:
    lines = log.tail(Path(record.log))
    why = log.reason(lines)
    code = processes.exit_code(record.pid)
    ended = "" if code is None else f" (exit code {code})"
    return ServerDied(
        f"{record.name} died in phase {waiting.reader.phase!r}{ended}{': ' + why if why else ''}",
        log.next_step(why, Path(record.log)),
        "\n".join(lines),
    )
