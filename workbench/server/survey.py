"""The state of every server that hsbench started, as it is now."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import HsbenchError
from workbench.server import processes, roster, state
from workbench.server.client import SglangClient
from workbench.server.log import LogReader
from workbench.server.state import ServerRecord
from workbench.supervision.target import of_record

ASK_TIMEOUT_S = 3.0
STOP_S = 120.0
"""A stop that was ordered longer ago has failed."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server.

    `state` is `starting`, `ready`, `stopping` (its stop was ordered), `silent` (runs, was ready, does not answer),
    `broken` (runs, but some of the processes that it was ready with are gone) or `dead`.
    """

    state: str
    seconds: float
    """Since the start."""
    pids: tuple[int, ...]
    """All processes of the server; of a dead one, those that it left behind."""
    server: ServerRecord
    phase: str | None = None
    """Of a start, by its log."""
    lost: tuple[str, ...] = ()
    """Ranks and workers that have ended, as `name (pid)`."""


def survey() -> Iterator[ServerStatus]:
    """Look at each server in turn. It ends and starts nothing.

    Whoever started a server may have been killed before it got ready. Then nobody wrote down that it did, nor of
    which processes it consists; so that is done here when it is first seen to be ready.
    """
    for record in state.all_records():
        family = processes.family(record.pid, record.since_boot)
        lost = roster.lost(record)
        now = _state(record, lost)
        if now == "ready" and roster.known(record) is None:
            roster.note(record)
        yield ServerStatus(
            state=now,
            seconds=time.time() - record.started,
            pids=tuple(sorted(process.pid for process in family)),
            server=record,
            phase=_phase(record) if now == "starting" else None,
            lost=lost,
        )


def _state(record: ServerRecord, lost: tuple[str, ...]) -> str:
    if record.stopping is not None and time.time() - record.stopping < STOP_S:
        return "stopping"
    if not state.alive(record):
        return "dead"
    if lost:
        return "broken"
    if record.ready_after is None:
        return "ready" if _is_healthy(record) else "starting"
    try:
        with SglangClient(record.url, timeout=ASK_TIMEOUT_S) as client:
            client.ping()
    except HsbenchError:
        return "silent"
    return "ready"


def _is_healthy(record: ServerRecord) -> bool:
    """SGLang answers 503 here until it has warmed itself up; then it generates a token before it answers."""
    key = of_record(record).api_key
    try:
        with SglangClient(record.url, timeout=ASK_TIMEOUT_S, api_key=key) as client:
            return client.health() == 200
    except HsbenchError:
        return False


def _phase(record: ServerRecord) -> str:
    reader = LogReader(Path(record.log))
    for _ in reader.new_phases():
        pass
    return reader.phase
