"""`hsbench stop`: end servers and check that nothing is left of them."""

import click

from workbench import output


@click.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Stop every server that hsbench started.")
@click.option("--grace", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
def stop(name: str | None, every: bool, grace: float) -> None:
    """Stop the server NAME, or the only one there is.

    SGLang is asked to end first; what still runs after the grace is killed. Then it is checked that no
    process is left and the port is free.
    """
    from workbench.errors import UsageError
    from workbench.server import state
    from workbench.server.events import describe
    from workbench.server.stop import stop as stop_server

    if every and name is not None:
        raise UsageError("NAME and --all exclude each other", "hsbench stop --help")
    records = list(state.all_records()) if every else [state.find_record(name)]
    if not records:
        output.narrate("no server to stop")
    for record in records:
        for event in stop_server(record, grace):
            output.narrate(describe(event))
