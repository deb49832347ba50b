"""Watching a run: looks at it until it is over. Ours by what its job tells, others by their files."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from workbench.extract.watch.view import RunView


class Run(Protocol):
    """Something to look at."""

    step_s: float
    """Seconds between two looks, at most."""

    def look(self) -> RunView:
        """Look once."""


def run_in(place: str | Path, dump_dir: Path | None = None) -> Run:
    """The run whose data set is in a folder or at a URL. `dump_dir` is only needed for runs without a job.

    Raises:
        UsageError: there is none.
    """
    from workbench.extract.job.files import JobFiles
    from workbench.extract.watch.foreign import ForeignRun
    from workbench.extract.watch.own import OwnRun
    from workbench.extract.watch.shards import ShardsRun, is_sharded
    from workbench.storage.address import checked_url, is_url, local_folder

    folder = local_folder(place) if isinstance(place, str) else place
    if isinstance(place, str) and is_url(place):
        from workbench.storage.watch import StoreRun

        job = JobFiles(folder).load()  # what the job here tells is newer, and more
        here = job is not None and job.settings.store == checked_url(place)
        if not here or JobFiles(folder).running() is None:
            return StoreRun(place)
    if is_sharded(folder):
        return ShardsRun(folder)
    return ForeignRun(folder, dump_dir) if JobFiles(folder).load() is None else OwnRun(folder)


def looks(run: Run, every_s: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[RunView]:
    """A look every so many seconds, and the last one as soon as the run is over. Looks in between feed the rates."""
    view = run.look()
    yield view
    waited = 0.0
    while not view.over:
        step = min(run.step_s, every_s - waited)
        sleep(step)
        waited += step
        view = run.look()
        if view.over or waited >= every_s - 1e-6:
            waited = 0.0
            yield view
