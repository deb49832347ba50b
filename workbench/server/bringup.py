"""Having a server: prepare, start, and wait until it answers."""

from collections.abc import Iterator

from workbench.errors import ServerDied
from workbench.server import launch
from workbench.server.client import SglangClient
from workbench.server.events import ServerEvent, Started
from workbench.server.prepare import prepare
from workbench.server.ready import wait_ready
from workbench.server.specs import LaunchSpec
from workbench.server.stop import stop


def bring_up(spec: LaunchSpec, timeout: float) -> Iterator[ServerEvent]:
    """Do all it takes to have this server, and wait until it answers.

    Args:
        spec: What is asked for; the model `demo` is made if need be.
        timeout: Seconds for the server's start, without the making of the model.

    Yields:
        Notes, `Started` with the server's record, phases, and `Ready` at the end.

    Raises:
        HsbenchError: whatever stands in the way. A server that died leaves no process and no record
            behind, but its log; one that did not answer in time keeps running.
    """
    plan = yield from prepare(spec)
    record = launch.start(plan)
    yield Started(record)
    try:
        yield from wait_ready(record, timeout, SglangClient(record.url, api_key=plan.api_key))
    except ServerDied:
        for _ in stop(record, grace_s=0):
            pass
        raise
