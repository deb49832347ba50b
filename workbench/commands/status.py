"""`hsbench status`: which servers run, and what they are."""

from typing import TYPE_CHECKING

import click

from workbench import output

if TYPE_CHECKING:
    from workbench.server.survey import ServerStatus


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: {schema, servers: [...]}.")
def status(as_json: bool) -> None:
    """List the servers that hsbench started.

    They are starting, ready, silent (run but do not answer), broken (processes are missing) or dead.
    """
    from workbench.server import launches
    from workbench.server.survey import survey

    found = list(survey())
    known = {one.server.pid for one in found}
    for orphans in (one for one in launches.orphans() if one.launch.pid not in known):
        output.narrate(orphans.describe())
    if as_json:
        output.data_json({"schema": 1, "servers": found})
    elif found:
        output.data(_table(found))
    else:
        output.narrate("no server was started by hsbench; hsbench serve --model demo starts one")
    for server in found:
        if server.state == "broken":
            lost = ", ".join(server.lost)
            output.narrate(f"{server.server.name} has lost {lost}; hsbench doctor --name {server.server.name}")
        if server.state == "dead":
            name, left = server.server.name, len(server.pids)
            output.narrate(f"{name} died, {left} processes of it are left; hsbench stop {name} clears it away")


def _table(found: "list[ServerStatus]") -> str:
    from workbench.render.text import columns, plain_table

    header = ["name", "state", "url", "pid", "device", "model", "records into", "for"]
    rows = [
        [
            status.server.name,
            f"{status.state}: {status.phase}" if status.phase else status.state,
            status.server.url,
            str(status.server.pid),
            status.server.device,
            status.server.model,
            status.server.dump.folder if status.server.dump else "-",
            _duration(status.seconds),
        ]
        for status in found
    ]
    return plain_table("", header, rows, left=7, width=columns())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
