"""`hsbench job`: the detached jobs of this machine."""

from typing import TYPE_CHECKING

import click

from workbench import output
from workbench.errors import UsageError

if TYPE_CHECKING:
    from workbench.extract.job.files import JobFiles


@click.group()
def job() -> None:
    """List, pause, continue and stop extractions."""


@job.command()
@click.argument("folder", metavar="DIR|URL")
def pause(folder: str) -> None:
    """Send nothing more until hsbench job continue; what is under way is finished."""
    files = _running(folder)
    files.pause.touch()
    output.narrate(f"paused; hsbench job continue {folder} goes on")


@job.command(name="continue")
@click.argument("folder", metavar="DIR|URL")
def go_on(folder: str) -> None:
    """Go on after hsbench job pause."""
    files = _running(folder)
    files.pause.unlink(missing_ok=True)
    output.narrate("it goes on")


@job.command()
@click.argument("folder", metavar="DIR|URL")
def stop(folder: str) -> None:
    """End a job in order; hsbench extract --resume DIR goes on."""
    from workbench.extract.job import detach

    if not detach.stop(_running(folder)):
        output.narrate("it had ended already")
        return
    output.narrate(f"stopped; hsbench extract --resume {folder} goes on")


@job.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a job.")
def list_jobs(as_json: bool) -> None:
    """Show every extraction that was started here and whose folder is still there."""
    from workbench.extract.job.roster import known_jobs
    from workbench.render.job import jobs_text

    jobs = list(known_jobs())
    if as_json:
        for one in jobs:
            output.data_json(one)
    else:
        output.data(jobs_text(jobs))


def _running(folder: str) -> "JobFiles":
    from workbench.extract.job.files import JobFiles
    from workbench.storage.address import local_folder

    files = JobFiles(local_folder(folder))
    if files.load() is None:
        raise UsageError(f"there was no job in {folder}", "hsbench job list shows those there are")
    if files.running() is None:
        raise UsageError(f"no job runs in {folder}", f"hsbench extract --resume {folder} goes on with it")
    return files
