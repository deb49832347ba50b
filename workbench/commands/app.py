"""`hsbench` without a command: the app, in the terminal or in a browser of this machine."""

import sys

from workbench import output
from workbench.errors import Missing
from workbench.exitcodes import ExitCode


def open_app(*, readonly: bool, ascii_only: bool, theme: str | None, no_mouse: bool, web: bool, web_port: int) -> int:
    """Open the app; without a terminal, show which servers run and end as a wrong call."""
    words = [
        *(["--readonly"] if readonly else []),
        *(["--ascii"] if ascii_only else []),
        *(["--theme", theme] if theme else []),
    ]
    if web:
        return _serve(words, web_port)
    # Textual draws on stderr and reads stdin; stdout may go elsewhere.
    if not (sys.stdin.isatty() and sys.__stderr__ is not None and sys.__stderr__.isatty()):
        return _without_terminal()
    from workbench.tui.app import open_app as run
    from workbench.tui.config import AppSettings, load

    config = load()
    settings = AppSettings(
        theme=theme or config.app.theme,
        ascii=ascii_only or config.app.ascii,
        readonly=readonly or config.app.readonly,
        mouse=config.app.mouse and not no_mouse,
    )
    return run(type(config)(app=settings, keys=config.keys))


def _without_terminal() -> int:
    from workbench.commands.status import status

    status.main([], standalone_mode=False)
    output.complain("the app needs a terminal", "hsbench --help lists the commands, which need none")
    return ExitCode.USAGE


def _serve(words: list[str], port: int) -> int:
    """The app in a browser. Whoever reaches the port can do all that the user can: so only this machine may."""
    import shlex

    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise Missing("--web needs textual-serve", "pip install 'hsbench[web]'") from error
    output.narrate(f"http://localhost:{port} shows the app; Ctrl-C ends it")
    command = shlex.join([sys.executable, "-m", "workbench.cli", *words])
    Server(command, host="localhost", port=port, title="hsbench").serve()
    return ExitCode.OK
