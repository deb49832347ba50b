"""Having a server: prepare, start, and wait until it answers."""

from collections.abc import Iterator

from workbench.errors import NotRecording, ServerDied
from workbench.server import launch, launches, proof
from workbench.server.client import SglangClient
from workbench.server.events import Note, ServerEvent, Started
from workbench.server.launch import Plan
from workbench.server.prepare import prepare
from workbench.server.ready import wait_ready
from workbench.server.specs import LaunchSpec
from workbench.server.stop import stop
from workbench.supervision.verdict import Limits


def bring_up(
    spec: LaunchSpec, timeout: float, limits: Limits | None = None, *, wait: bool = True
) -> Iterator[ServerEvent]:
    """Do all it takes to have this server, and wait until it answers.

    Args:
        spec: What is asked for; the model `demo` is made if need be.
        timeout: Seconds for the server's start, without the making of the model.
        limits: How long may be silent what starts well.
        wait: False returns as soon as the process exists.

    Yields:
        Notes, `Started` with the server's record, phases, and `Ready` at the end.

    Raises:
        HsbenchError: whatever stands in the way. A server that died, or that should record and does not,
            leaves no process and no record behind, but its log; one that did not answer in time, or that hangs,
            keeps running.
    """
    for left in launches.orphans():
        yield Note(left.describe())
    plan = yield from prepare(spec)
    yield from start_and_wait(plan, timeout, limits, wait=wait)


def start_and_wait(
    plan: Plan, timeout: float, limits: Limits | None = None, *, wait: bool = True
) -> Iterator[ServerEvent]:
    """The second half of `bring_up`, for a plan that is made already."""
    record = launch.start(plan)
    yield Started(record)
    if not wait:
        return
    try:
        yield from wait_ready(record, timeout, SglangClient(record.url, api_key=plan.api_key), limits)
        yield from proof.records(record)
    except (ServerDied, NotRecording):
        for _ in stop(record, grace_s=0):
            pass
        raise
