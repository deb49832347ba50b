"""`hsbench serve`: start a server and wait until it answers."""

import os
from pathlib import Path
from typing import Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.server.specs import CAPTURE_HELP, DEFAULT_NAME, DEFAULT_PORT, DEMO, ROUTES, Capture, DumpSpec, LaunchSpec


@click.command(epilog="Flags after -- go to SGLang as they are: hsbench serve --model demo -- --tp-size 2")
@click.option("--model", metavar=f"PATH|{DEMO}", help=f"A model's folder; {DEMO} is a small one.")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="What to call the server.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 is any.")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives; default hsbench's own.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds.",
)
@click.option("--dump-dir", metavar="DIR", help="Record hidden states there; adds the flags that this needs.")
@click.option("--layers", metavar="2,15,27", help="Numbers of the blocks to record; default 2, N//2, N-3.")
@click.option("--final", type=click.Choice(["pre", "post", "both"]), help="Which side of the final norm; default pre.")
@click.option("--capture", type=click.Choice(ROUTES), default="auto", show_default=True, help=CAPTURE_HELP)
@click.option("--allow-chunked", is_flag=True, help="Put prompts together that prefill cuts into several passes.")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE.toml", help="Takes what is not given here.")
@click.option("--wait/--no-wait", default=True, help="Wait for a verdict; the default.")
@click.option("--silence", type=Seconds(min=1), default=60.0, show_default=True, help="Seconds that are long.")
@click.option("--fix", is_flag=True, help="Correct flags that would spoil a dump, instead of refusing them.")
@click.option("--dry-run", is_flag=True, help="Print the command and environment, and start nothing.")
@click.option("--explain", metavar="FLAG", help="Say whether the installed SGLang reads FLAG at all, and where.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SGLANG FLAGS]")
def serve(
    *,
    dump_dir: str | None,
    layers: str | None,
    final: str | None,
    capture: Capture,
    allow_chunked: bool,
    flags: tuple[str, ...],
    profile: Path | None,
    explain: str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Start an SGLang server, wait until it answers, and print its URL.

    The server runs on when this command ends, and when the terminal closes; hsbench stop ends it. The waiting ends
    with 0 when it answers, 3 when it died, 4 after --timeout, and 7 when its state cannot end by itself, such as
    HUNG_SPIN; then it is left running.
    """
    if explain is not None:
        output.data(_explained(explain, options["python"]))
        return
    how = {name: options.pop(name) for name in ("timeout", "wait", "silence")}
    wanted = _spec(profile, _given(options), _flags(flags), _dump(dump_dir, layers, final, capture, allow_chunked))
    if dry_run:
        _show_dry_run(wanted)
        return
    _start(wanted, **how)


def _start(wanted: LaunchSpec, *, timeout: float, wait: bool, silence: float) -> None:
    from workbench.server.bringup import bring_up
    from workbench.server.dryrun import described
    from workbench.server.events import Started, describe
    from workbench.supervision.verdict import Limits

    for change in described(wanted):
        output.narrate(change)
    limits = Limits(silence_s=silence, fresh_s=min(30.0, silence))
    url = ""
    try:
        for event in bring_up(wanted, timeout, limits, wait=wait):
            url = event.record.url if isinstance(event, Started) else url
            output.narrate(describe(event))
    except KeyboardInterrupt:
        if url:
            output.narrate(f"{wanted.name} goes on starting; hsbench stop {wanted.name} ends it")
        raise
    output.data(url)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line; the others are a profile's to decide."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }


def _spec(profile: Path | None, given: dict[str, Any], flags: tuple[str, ...], dump: DumpSpec | None) -> LaunchSpec:
    from workbench.server.profile import Profile, applied, read

    return applied(read(profile) if profile is not None else Profile(), given, flags, dump)


def _show_dry_run(wanted: LaunchSpec) -> None:
    from workbench.server.dryrun import dry_run

    would = dry_run(wanted)
    for note in would.notes:
        output.narrate(note)
    output.data(would.describe())


def _explained(flag: str, python: str | None) -> str:
    from workbench.server.engine import find_engine
    from workbench.server.explain import explain

    return explain(flag, find_engine(python)).describe()


def _flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    from workbench.errors import UsageError

    if flags and not flags[0].startswith("-"):
        raise UsageError(f"unexpected argument {flags[0]!r}", "SGLang's flags come after --")
    return flags


def _dump(
    folder: str | None, layers: str | None, final: str | None, capture: Capture, allow_chunked: bool
) -> DumpSpec | None:
    from workbench.errors import UsageError
    from workbench.probe.prompt import parse_layers

    if folder is None:
        if layers is not None or final is not None or capture != "auto" or allow_chunked:
            raise UsageError(
                "--layers, --final, --capture and --allow-chunked say what to record and how",
                "say where to with --dump-dir DIR",
            )
        return None
    return DumpSpec(
        os.path.abspath(folder), parse_layers(layers), final or "pre", route=capture, allow_chunked=allow_chunked
    )
