"""`hsbench watch`: how far an extraction is, how fast it goes, and what is wrong with it."""

import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench import output
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workbench.extract.watch.view import RunView

TERMINAL_S, LINE_S = 2.0, 30.0
"""Seconds between two looks shown: in place on a terminal, and as lines."""


@click.command()
@click.argument("folder", metavar="DIR|URL")
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a look.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help=f"Seconds between looks [default: {TERMINAL_S:.0f} on a terminal, {LINE_S:.0f} elsewhere].",
)
@click.option(
    "--dump-dir",
    type=click.Path(path_type=Path),
    help="The folder of req_N of a run that is not a job of hsbench [default: searched].",
)
def watch(folder: str, *, once: bool, as_json: bool, every: float | None, dump_dir: Path | None) -> int:
    """Show the run whose data set is in DIR, until it is over. Ctrl-C ends the watching, not the run.

    At a URL, what is stored is shown, or all that the job tells if it runs on this machine.

    A run that is not a job of hsbench is watched through its files; what is estimated from them has a ~. It counts as
    over only if its side files tell how many rows there will be.

    Exit code 0 when the run is done, was stopped, or still goes on; 1 when it failed or its process is gone.
    """
    from workbench.extract.watch import looks, run_in
    from workbench.render.watch import on_terminal

    run = run_in(folder, dump_dir)
    in_place = on_terminal() and not as_json and not once
    views = looks(run, every or (TERMINAL_S if in_place else LINE_S))
    how = "json" if as_json else "block" if once else "in place" if in_place else "line"
    try:
        return _end(_show(itertools.islice(views, 1) if once else views, how))
    except KeyboardInterrupt:
        output.narrate(f"no longer watched; the run goes on, hsbench watch {folder} shows it again")
        return ExitCode.OK


def _show(views: "Iterable[RunView]", how: str) -> "RunView | None":
    """Show every look and return the last."""
    from workbench.render.watch import Screen, watch_line, watch_text

    view = None
    with Screen() if how == "in place" else contextlib.nullcontext() as screen:
        for view in views:
            if screen is not None:
                screen.show(view)
            elif how == "json":
                output.data_json(view)
            else:
                output.data(watch_text(view) if how == "block" else watch_line(view))
    return view


def _end(view: "RunView | None") -> int:
    """The exit code, and one line where it is not 0."""
    if view is None or view.state not in ("failed", "killed"):
        return ExitCode.OK
    from workbench.render.text import harmless

    output.complain(
        f"the run {'failed' if view.state == 'failed' else 'was killed'}: {harmless(view.why)}", view.next_step
    )
    return ExitCode.CHECK_FAILED
