"""What goes on when the app is left: servers, extractions and other tasks are processes of their own."""

from collections.abc import Iterable

from workbench.extract.job.events import ENDS
from workbench.extract.job.roster import KnownJob
from workbench.server.survey import ServerStatus
from workbench.tui.services import TaskView


def staying(servers: Iterable[ServerStatus], tasks: Iterable[TaskView], jobs: Iterable[KnownJob]) -> list[str]:
    """A line for each thing that keeps running."""
    lines = [f"server {one.server.name} at {one.server.url}, {one.state}" for one in servers if one.state != "dead"]
    going = (one for one in jobs if one.pid is not None and one.state not in ENDS)
    lines += [f"extraction {one.folder}, {one.written} of {one.rows}" for one in going]
    lines += [f"hsbench {' '.join(one.task.argv)}"[:90] for one in tasks if one.state == "running"]
    return lines
