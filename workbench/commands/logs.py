"""`hsbench logs`: the log of a server, secrets masked."""

import click

from workbench import output


@click.command()
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until Ctrl-C or the server's end.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="From the end.")
@click.option("--previous", is_flag=True, help="The log of the server of this name before.")
def logs(name: str | None, follow: bool, lines: int, previous: bool) -> None:
    """Show the log of the server NAME, or of the only one there is, also after its death."""
    from workbench.errors import ServerError, UsageError
    from workbench.server import logview

    if follow and previous:
        raise UsageError("--previous and --follow exclude each other", "a log that is over cannot be followed")
    path, alive, secrets = logview.find(name, previous=previous)
    if not path.exists():
        raise ServerError(f"there is no log at {path}", "hsbench status lists the servers")
    for line in logview.show(path, lines, alive if follow else None, secrets):
        output.data(line)
