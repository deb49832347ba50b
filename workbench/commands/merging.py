"""`hsbench extract --merge DIR`: one data set of the shards in DIR."""

from pathlib import Path
from typing import Any

import click

from workbench import output
from workbench.errors import UsageError

GOES_WITH = frozenset({"merge", "check", "python", "as_json"})
"""Options that a merge takes."""


def merged(target: str, check: bool, python: str | None, as_json: bool) -> int:
    """Merge, and tell it as a job tells what it does."""
    from workbench.extract.job.events import Ended
    from workbench.extract.merge import merge, merge_url
    from workbench.render.job import event_text
    from workbench.storage.address import checked_url, is_url

    _refuse_others()
    if is_url(target):
        target = checked_url(target)
        events = merge_url(target, check=check, python=python)
    else:
        events = merge(Path(target).expanduser(), check=check, python=python)
    for event in events:
        if as_json:
            output.data_json(event)
            continue
        for line in event_text(event).splitlines():
            output.narrate(line)
        if isinstance(event, Ended):
            output.narrate(f"  next: {event.next_step}")
            output.data(target)
    return 0


def _refuse_others() -> None:
    """Raise UsageError for options and arguments of other uses of `extract`."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    given: list[Any] = [
        name for name in context.params if name not in GOES_WITH and context.get_parameter_source(name) is typed
    ]
    given = [name for name in given if context.params[name] not in (None, ())]
    if given:
        named = ", ".join("DATA" if name == "data" else f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--merge DIR does not go with {named}", "hsbench extract --merge DIR [--check]")
