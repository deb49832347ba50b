"""`hsbench stop`: end servers and check that nothing is left of them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from workbench import output
from workbench.commands.params import Seconds

if TYPE_CHECKING:
    from workbench.server.events import ServerEvent


@click.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Stop every server that hsbench started.")
@click.option("--orphans", is_flag=True, help="End what dead servers of hsbench left behind; never anything else.")
@click.option("--grace", type=Seconds(min=0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
def stop(name: str | None, *, every: bool, orphans: bool, grace: float) -> None:
    """Stop the server NAME, or the only one there is.

    SGLang is asked to end first; what still runs after the grace is killed. Then it is checked that no
    process is left, the port is free, and no GPU memory is held.
    """
    from workbench.errors import UsageError
    from workbench.server import state
    from workbench.server.stop import stop as stop_server
    from workbench.server.stop import stop_orphans

    if (name is not None) + every + orphans > 1:
        raise UsageError("NAME, --all and --orphans exclude each other", "hsbench stop --help")
    if orphans:
        events = list(_narrated(stop_orphans(grace)))
        if not events:
            output.narrate("no orphans of hsbench's servers; hsbench doctor lists those of others")
        return
    records = list(state.all_records()) if every else [state.find_record(name)]
    if not records:
        output.narrate("no server to stop")
    for record in records:
        for _ in _narrated(stop_server(record, grace)):
            pass


def _narrated(events: "Iterable[ServerEvent]") -> "Iterator[ServerEvent]":
    from workbench.server.events import describe

    for event in events:
        output.narrate(describe(event))
        yield event
