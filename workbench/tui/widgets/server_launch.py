"""The form that starts a server."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from workbench.server.specs import DEFAULT_NAME, DEMO, ROUTES
from workbench.server.survey import ServerStatus
from workbench.tui.config import profiles_dir
from workbench.tui.modals.form import CommandForm, Field


def launch_form(servers: Sequence[ServerStatus]) -> CommandForm:
    """`hsbench serve` with its options."""
    models = (DEMO, *dict.fromkeys(status.server.model for status in servers))
    pythons = tuple(dict.fromkeys(status.server.python for status in servers))
    fields = (
        Field("model", "--model", hint="demo, a folder, or a Hub id", suggestions=models),
        Field("name", "--name", free_name([status.server.name for status in servers])),
        Field("profile", "--profile", hint="FILE.toml; what is given here wins", suggestions=profiles()),
        Field("device", "--device", choices=("", "cpu", "cuda")),
        Field("port", "--port", hint="30017 or the next free one; 0 is any"),
        Field("dump folder", "--dump-dir", hint="record hidden states there"),
        Field("blocks", "--layers", hint="2,15,27"),
        Field("recorder by", "--capture", choices=("", *(route for route in ROUTES if route != "auto"))),
        Field("chunked prefill", "--allow-chunked", switch=True),
        Field("correct flags", "--fix", switch=True),
        Field("python", "--python", hint="where SGLang lives; hsbench's own", suggestions=pythons),
        Field("SGLang's flags", hint="--tp-size 2", rest=True),
    )
    return CommandForm("Start a server", ("serve",), fields)


def profiles() -> tuple[str, ...]:
    """Profile files that may be meant, those of the user first."""
    found: list[str] = []
    for folder in (profiles_dir(), Path()):
        with contextlib.suppress(OSError):
            found += sorted(str(path) for path in folder.glob("*.toml"))
    return tuple(found)


def free_name(taken: Sequence[str]) -> str:
    """The usual name, or one that nobody bears."""
    names = (DEFAULT_NAME, *(f"server{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)
