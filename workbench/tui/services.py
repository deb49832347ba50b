"""What the app is made of besides its screens; a test hands in others."""

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workbench.server.survey import ServerStatus, survey
from workbench.tasks import store
from workbench.tasks.store import Task
from workbench.tui.source import Source


class TaskView(NamedTuple):
    """A task as it is now."""

    task: Task
    state: str
    """`running`, `done`, `failed` or `killed`."""


class Surroundings(NamedTuple):
    """What every mode shows."""

    servers: tuple[ServerStatus, ...]
    tasks: tuple[TaskView, ...]
    """The newest first."""


class SurroundingsSource:
    """Looks at servers and tasks."""

    every_s = 2.5
    """Each look asks each server, which writes a line into its log."""

    def collect(self) -> Surroundings:
        """One look; asks each server whether it answers."""
        return Surroundings(tuple(survey()), tuple(TaskView(task, task.state()) for task in store.all_tasks()))

    def close(self) -> None:
        """Nothing is held."""


def source_of(mode: str) -> Source:
    """The real source of a mode."""
    module = importlib.import_module(f"workbench.tui.sources.{mode}")
    source: Source = module.make()
    return source


class Services(NamedTuple):
    """Seams of the app."""

    source: Callable[[str], Source] = source_of
    surroundings: Callable[[], Source] = SurroundingsSource
    start: Callable[[Sequence[str]], Task] = store.start
