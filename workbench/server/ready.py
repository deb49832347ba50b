"""Waiting for a server: phases from its log, and at the end a real answer."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import ServerBroken, ServerDied, ServerError, TimedOut
from workbench.server import log, ports, processes, roster, state
from workbench.server.client import AnsweredWithError, SglangClient
from workbench.server.events import Judged, PhaseChanged, Ready
from workbench.server.state import ServerRecord
from workbench.supervision.milestones import LogFollower, Milestone
from workbench.supervision.target import of_record
from workbench.supervision.verdict import BROKEN, Limits, State, Verdict
from workbench.supervision.watch import Watch

POLL_S = 0.1
LOOK_S = 1.0
CONFIRM_S = {State.DEAD_CHILD: 15.0, State.STOPPED_CHILD: 15.0, State.PORT_TAKEN: 6.0}
"""How long a broken state must last before it is believed: SGLang looks for dead children every five seconds and
then ends by itself, with its reason in the log."""
QUIET_S = 60.0
"""How long an open port may stay without the log's last line before it is asked all the same: a server told
to log less never writes that line. Until then SGLang warms itself up, and a request would come in between."""


def wait_ready(
    record: ServerRecord, timeout: float, client: SglangClient | None = None, limits: Limits | None = None
) -> Iterator[PhaseChanged | Judged | Ready]:
    """Follow a start until the server has answered a request for one token. Never ends the server.

    Args:
        record: The server, as `start` returned it.
        timeout: Seconds from now.
        client: How to ask it; needed only when the server wants an API key.
        limits: How long may be silent what starts well.

    Yields:
        Each phase as the log shows it, each change of the verdict, and `Ready` at the end; the record on disk then
        says so too, and the start is remembered as a good one.

    Raises:
        ServerDied: the process ended; with its exit code if known and the last lines of its log.
        ServerBroken: it runs, but its state does not end by itself, such as HUNG_SPIN.
        RequestRefused: the server refuses the request for good.
        TimedOut: it did not answer in time; it still runs.
    """
    with client or SglangClient(record.url) as asked:
        waiting = _Waiting(record, time.monotonic() + timeout, asked, limits)
        yield PhaseChanged(log.FIRST_PHASE, waiting.seconds())
        with waiting.watch:
            yield from _follow(record, waiting)
        seconds = waiting.seconds()
        msgspec.structs.replace(record, ready_after=seconds).save()
        roster.note(record)
        waiting.watch.learn(seconds)
    yield Ready(seconds)


def _follow(record: ServerRecord, waiting: "_Waiting") -> Iterator[PhaseChanged | Judged]:
    while True:
        died = not state.alive(record)
        for milestone in waiting.new_milestones():
            yield PhaseChanged(milestone.phase, waiting.seconds())
        if died:
            raise _died(record, waiting)
        if waiting.may_ask() and waiting.answered():
            return
        verdict = waiting.new_verdict()
        if verdict is not None:
            yield Judged(str(verdict.state), f"{verdict.headline()}: {verdict.evidence[0]}")
        waiting.check_verdict()
        waiting.check_time()
        time.sleep(POLL_S)


class _Waiting:
    """What is known while one start is followed."""

    def __init__(self, record: ServerRecord, deadline: float, client: SglangClient, limits: Limits | None) -> None:
        self.record, self.deadline, self.client = record, deadline, client
        self.reader = LogFollower(Path(record.log), record.started)
        self.watch = Watch(of_record(record), limits, follower=self.reader, generate=False)
        self.verdict: Verdict | None = None
        self._open_since: float | None = None
        self._looked = float("-inf")
        self._state_since = 0.0
        self._question: _Question | None = None
        self._told = 0
        self._refusal = ""

    def seconds(self) -> float:
        """Since the process was started."""
        return max(0.0, time.time() - self.record.started)

    def new_milestones(self) -> list[Milestone]:
        """Phases entered since the last time, whoever read the log meanwhile."""
        self.reader.sample()
        told, self._told = self._told, len(self.reader.milestones)
        return self.reader.milestones[told:]

    def may_ask(self) -> bool:
        """Whether a request now would neither disturb the start nor be refused for sure."""
        if self._open_since is None:
            if self.reader.phase not in ("warm-up", "ready") and not self._port_is_open():
                return False
            self._open_since = time.monotonic()
        return self.reader.phase == "ready" or time.monotonic() - self._open_since > QUIET_S

    def _port_is_open(self) -> bool:
        return ports.accepts(self.record.host, self.record.port)

    def answered(self) -> bool:
        """Ask for one token, in a thread of its own so that the watching goes on; True once the answer came."""
        if self._question is None:
            left = max(1.0, self.deadline - time.monotonic())
            self._question = _Question(self.client, left)
        if not self._question.over:
            return False
        error, self._question = self._question.error, None
        if error is None:
            return True
        if not isinstance(error, ServerError | TimedOut) or _is_final(error):
            raise error
        self._refusal = str(error)
        return False

    def new_verdict(self) -> Verdict | None:
        """Look about once a second; the verdict if its state is another than before."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        before, self.verdict = self.verdict, self.watch.look().verdict
        if before is not None and before.state is self.verdict.state:
            return None
        self._state_since = now
        first = before is None and self.verdict.state is State.PROGRESSING
        return None if first else self.verdict

    def check_verdict(self) -> None:
        """Raise ServerBroken when the state cannot end by itself and has lasted."""
        verdict = self.verdict
        if verdict is None or verdict.state not in BROKEN:
            return
        if time.monotonic() - self._state_since < CONFIRM_S.get(verdict.state, 0.0):
            return
        raise ServerBroken(
            f"{self.record.name} is broken: {verdict.headline()}: {'; '.join(verdict.evidence)}",
            f"{verdict.next_step}; it still runs, log {self.record.log}",
            self.reader.hide("\n".join(log.tail(Path(self.record.log), 10))),
        )

    def check_time(self) -> None:
        if time.monotonic() < self.deadline:
            return
        name, path = self.record.name, self.record.log
        said = f"; it said: {self._refusal}" if self._refusal else ""
        raise TimedOut(
            f"{name} does not answer after {self.seconds():.0f} s, in phase {self.reader.phase!r}{said}",
            f"it still runs: hsbench stop {name}, or wait longer with --timeout; log {path}",
            self.reader.hide("\n".join(log.tail(Path(path), 10))),
        )


class _Question:
    """A request for one token, under way in a thread. Its id is none that the recorder keeps."""

    def __init__(self, client: SglangClient, timeout: float) -> None:
        self.over = False
        self.error: Exception | None = None
        self._client, self._timeout = client, timeout
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        try:
            self._client.generate([0], rid=f"ready-{time.time_ns()}", timeout=self._timeout)
        except Exception as error:
            self.error = error
        self.over = True


def _is_final(error: Exception) -> bool:
    """An answer that will stay the same. 503 means that it still starts."""
    return isinstance(error, AnsweredWithError) and error.status != 503


def _died(record: ServerRecord, waiting: _Waiting) -> ServerDied:
    lines = [waiting.reader.hide(line) for line in log.tail(Path(record.log))]
    why = log.reason(lines)
    code = processes.exit_code(record.pid)
    ended = "" if code is None else f" (exit code {code})"
    return ServerDied(
        f"{record.name} died in phase {waiting.reader.phase!r}{ended}{': ' + why if why else ''}",
        log.next_step(why, Path(record.log)),
        "\n".join(lines),
    )
