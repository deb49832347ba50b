"""`hsbench serve`: start a server and wait until it answers."""

import os
from typing import Any

import click

from workbench import output
from workbench.server.specs import DEFAULT_NAME, DEFAULT_PORT, DEMO, DumpSpec, LaunchSpec


@click.command(epilog="Flags after -- go to SGLang as they are: hsbench serve --model demo -- --tp-size 2")
@click.option("--model", required=True, metavar=f"PATH|{DEMO}", help=f"A model's folder; {DEMO} is a small one.")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="What to call the server.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 is any.")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives; default hsbench's own.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds.",
)
@click.option("--dump-dir", metavar="DIR", help="Record hidden states there: patches the engine, adds flags.")
@click.option("--layers", metavar="2,15,27", help="Numbers of the blocks to record; default 2, N//2, N-3.")
@click.option("--final", type=click.Choice(["pre", "post", "both"]), help="Which side of the final norm; default pre.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SGLANG FLAGS]")
def serve(
    dump_dir: str | None,
    layers: str | None,
    final: str | None,
    flags: tuple[str, ...],
    timeout: float,
    **spec: Any,
) -> None:
    """Start an SGLang server, wait until it answers, and print its URL.

    The server runs on when this command ends, and when the terminal closes; hsbench stop ends it.
    """
    from workbench.server.bringup import bring_up
    from workbench.server.events import Started, describe

    wanted = LaunchSpec(flags=_flags(flags), dump=_dump(dump_dir, layers, final), **spec)
    url = ""
    try:
        for event in bring_up(wanted, timeout):
            url = event.record.url if isinstance(event, Started) else url
            output.narrate(describe(event))
    except KeyboardInterrupt:
        if url:
            output.narrate(f"{wanted.name} goes on starting; hsbench stop {wanted.name} ends it")
        raise
    output.data(url)


def _flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    from workbench.errors import UsageError

    if flags and not flags[0].startswith("-"):
        raise UsageError(f"unexpected argument {flags[0]!r}", "SGLang's flags come after --")
    return flags


def _dump(folder: str | None, layers: str | None, final: str | None) -> DumpSpec | None:
    from workbench.errors import UsageError
    from workbench.probe.prompt import parse_layers

    if folder is None:
        if layers is not None or final is not None:
            raise UsageError("--layers and --final say what to record", "say where to with --dump-dir DIR")
        return None
    return DumpSpec(os.path.abspath(folder), parse_layers(layers), final or "pre")
