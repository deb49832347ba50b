"""`hsbench extract --ray`: the options of a run on a Ray cluster, and what they come to."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.commands.params import Seconds
from workbench.errors import UsageError

if TYPE_CHECKING:
    from workbench.extract.job.files import Request
    from workbench.extract.job.run import Work
    from workbench.extract.job.settings import Cluster, ExtractSettings

SETTINGS = {"ray": "address", "servers": "servers", "gpus_per_server": "gpus", "shards": "shards", "lease": "lease_s"}
"""Option → field of `Cluster`."""


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, in the order of the help."""
    for option in reversed(
        (
            click.option("--ray", metavar="auto|ADDRESS", help="Do it on a Ray cluster, a shard at a time a server."),
            click.option("--servers", type=click.IntRange(1, 10_000), help="With --ray [default: as many as fit]."),
            click.option("--gpus-per-server", type=click.IntRange(0, 64), metavar="K", help="With --ray [default: 1]."),
            click.option("--shards", type=click.IntRange(1), metavar="M", help="With --ray [default: 4 a server]."),
            click.option("--no-merge", is_flag=True, help="With --ray: leave the shards as they are."),
            click.option("--lease", type=Seconds(min=2), metavar="S", hidden=True),
            click.option("--tied", is_flag=True, hidden=True, help="End when stdin does."),
        )
    ):
        command = option(command)
    return command


def taken(rest: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of a command's, with what was not given left out; a tied process is tied here."""
    if rest.pop("tied"):
        from workbench.cluster.tied import tie

        tie()
    given = {name: value for name in SETTINGS if (value := rest.pop(name)) is not None}
    if rest.pop("no_merge"):
        given["no_merge"] = True
    return given


def cluster_of(given: dict[str, Any], settings: "ExtractSettings", resume: bool) -> "Cluster | None":
    """The cluster that is asked for, or that the run to be gone on with is on; None for a run of one machine.

    Raises:
        UsageError: the options do not go together.
        Missing: Ray is not installed.
    """
    import msgspec

    from workbench.extract.job.files import JobFiles
    from workbench.extract.job.settings import Cluster

    job = JobFiles(settings.folder).load() if resume else None
    before = job.cluster if job is not None else None
    if before is None and resume and settings.store is not None:
        from workbench.cluster.far import cluster_at

        before = cluster_at(settings.store)
    if before is None and "ray" not in given:
        if given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{named} goes with --ray", "hsbench extract DATA --out DIR --model M --ray auto")
        return None
    _refuse_what_does_not_go(settings)
    if settings.store is None:
        _check_folder(settings.folder)
    from workbench.cluster.ray_crew import checked_address, load

    load()
    if "ray" in given:
        checked_address(given["ray"])
    changes = {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}
    if "no_merge" in given:
        changes["merge"] = False
    return msgspec.structs.replace(before or Cluster(address=""), **changes)


def _refuse_what_does_not_go(settings: "ExtractSettings") -> None:
    if settings.url is not None or settings.name != "default":
        raise UsageError("--ray starts servers of its own on the nodes", "leave --url and --name out")
    if settings.shard != (0, 1):
        raise UsageError("--ray cuts the data set by itself", "leave --shard out; --shards M says into how many")
    if settings.model is None:
        raise UsageError("--ray needs a model to serve", "give --model PATH")


def work_of(request: "Request") -> "Work":
    """What a start of this run does."""
    from workbench.cluster.driver import on
    from workbench.cluster.ray_crew import connect

    return on(connect)


def _check_folder(out: Path) -> None:
    """Raise UsageError before anything is written into a folder that is of something else."""
    from workbench.cluster.folder import refuse_other_use
    from workbench.extract.merge.journal import load_journal
    from workbench.extract.record import load_record

    if load_record(out) is None and load_journal(out) is None:
        refuse_other_use(out)
