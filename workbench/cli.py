"""The command line: a click group that loads a command's module only when that command runs."""

import errno
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from workbench import __version__, output
from workbench.errors import HsbenchError, Missing, PatchRefused, UsageError
from workbench.exitcodes import ExitCode

COMMANDS = {
    "bench": ("workbench.commands.bench", "Measure how fast a server answers, and what the figures are worth."),
    "doctor": ("workbench.commands.doctor", "Examine this machine, or diagnose one server."),
    "job": ("workbench.commands.job", "List, pause, continue and stop extractions."),
    "layers": ("workbench.commands.layers", "Say which blocks a list of layer ids means."),
    "logs": ("workbench.commands.logs", "Show the log of a server."),
    "model": ("workbench.commands.model", "Make the small demo model from its package."),
    "patch": ("workbench.commands.patch", "Apply, check, show and revert the patch of the engine."),
    "plan": ("workbench.commands.plan", "Say what an extraction costs on one machine and on many."),
    "probe": ("workbench.commands.probe", "Capture the hidden states of one prompt and check them."),
    "restart": ("workbench.commands.restart", "Stop a server and start it again as it was."),
    "serve": ("workbench.commands.serve", "Start an SGLang server and wait until it answers."),
    "status": ("workbench.commands.status", "Say which servers run and what they are."),
    "stop": ("workbench.commands.stop", "Stop a server and check that nothing is left of it."),
    "extract": ("workbench.commands.extract", "Make training data from a data set."),
    "verify": ("workbench.commands.verify", "Check a data set of hidden states."),
    "watch": ("workbench.commands.watch", "Show how far an extraction is, and how fast."),
}
"""Command name → (module that defines it under the same name, one line for `hsbench --help`)."""


class LazyGroup(click.Group):
    """Names its commands without importing them, so that `--help` loads nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hsbench")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--readonly", is_flag=True, help="The app: look, and start, end or change nothing.")
@click.option("--ascii", "ascii_only", is_flag=True, help="The app: draw with ASCII only.")
@click.option("--theme", metavar="NAME", help="The app: its colours.")
@click.option("--no-mouse", is_flag=True, help="The app: leave the mouse to the terminal.")
@click.option("--web", is_flag=True, help="The app in a browser of this machine (needs textual-serve).")
@click.option("--web-port", type=click.IntRange(1, 65535), default=8017, show_default=True, help="For --web.")
@click.pass_context
def root(context: click.Context, /, debug: bool, **app: Any) -> int | None:
    """Get hidden states out of SGLang, and know that they are right.

    Without a command the app opens in the terminal.
    """
    if context.invoked_subcommand is None:
        from workbench.commands.app import open_app

        return open_app(**app)
    given = [name for name in app if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise UsageError("the app's options do not go with a command", "hsbench --help")
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a code of `ExitCode`."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Every error becomes one line and a next step."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    arguments = [a for number, a in enumerate(arguments) if a != "--debug" or number > end]
    try:
        result: Any = root.main(arguments, prog_name="hsbench", standalone_mode=False)
        return int(result or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        output.show_help(error.format_message())
        return ExitCode.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context else "hsbench --help"
        return _report(UsageError(error.format_message(), hint), debug)
    except (click.Abort, KeyboardInterrupt):
        output.complain("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.OK
    except Exception as error:
        return _report(_for_user(error), debug)


def _for_user(error: Exception) -> HsbenchError:
    from patches.errors import NoTree, PatchError

    if isinstance(error, HsbenchError):
        return error
    if isinstance(error, NoTree):
        return Missing(error.message, error.next_step)
    if isinstance(error, PatchError):
        return PatchRefused.of(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return Missing(f"no space left on the device: {error.filename or 'the output'}", "make room, then run it again")
    return _Defect(f"defect in hsbench: {type(error).__name__}: {error}", "run it again with --debug, report it")


def _report(error: HsbenchError, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    output.complain(error.message, error.next_step, error.details)
    return int(error.exit_code)


class _Defect(HsbenchError):
    exit_code = ExitCode.INTERNAL


if __name__ == "__main__":
    main()
