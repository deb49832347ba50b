"""The state of every server that hsbench started, as it is now."""

import time
from collections.abc import Iterator

import msgspec

from workbench.errors import HsbenchError
from workbench.server import processes, state
from workbench.server.client import SglangClient
from workbench.server.state import ServerRecord

ASK_TIMEOUT_S = 3.0


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `state` is `starting`, `ready`, `silent` (runs, was ready, does not answer) or `dead`."""

    state: str
    seconds: float
    """Since the start."""
    pids: tuple[int, ...]
    """All processes of the server; of a dead one, those that it left behind."""
    server: ServerRecord


def survey() -> Iterator[ServerStatus]:
    """Look at each server in turn. Changes nothing."""
    for record in state.all_records():
        family = processes.family(record.pid, record.since_boot)
        yield ServerStatus(
            state=_state(record),
            seconds=time.time() - record.started,
            pids=tuple(sorted(process.pid for process in family)),
            server=record,
        )


def _state(record: ServerRecord) -> str:
    if not state.alive(record):
        return "dead"
    if record.ready_after is None:
        return "starting"
    try:
        with SglangClient(record.url, timeout=ASK_TIMEOUT_S) as client:
            client.ping()
    except HsbenchError:
        return "silent"
    return "ready"
