"""`hsbench restart`: stop a server and start it again as it was."""

import click

from workbench import output
from workbench.commands.params import Seconds


@click.command()
@click.argument("name", required=False)
@click.option("--grace", type=Seconds(min=0), default=10.0, show_default=True, help="Seconds before SIGKILL.")
@click.option("--timeout", type=Seconds(min=0, min_open=True), default=900.0, show_default=True)
def restart(name: str | None, grace: float, timeout: float) -> None:
    """Stop the server NAME, or the only one there is, and start it with the same flags, environment and port.

    A dead server is started again too, unless it had secrets: those are kept nowhere.
    """
    from workbench.server import state
    from workbench.server.bringup import start_and_wait
    from workbench.server.events import describe
    from workbench.server.relaunch import plan_of
    from workbench.server.stop import stop

    record = state.find_record(name)
    plan = plan_of(record)
    for event in stop(record, grace):
        output.narrate(describe(event))
    for started in start_and_wait(plan, timeout):
        output.narrate(describe(started))
    again = state.find_record(record.name)
    output.data(again.url)
