"""The command line's own manners: one line and a next step, documented exit codes, clean pipes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from patches.errors import PatchError
from workbench import cli, output
from workbench.errors import CheckFailed, HsbenchError, Missing, ServerDied, TimedOut
from workbench.exitcodes import ExitCode


def hsbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_every_command_once() -> None:
    done = hsbench("--help")
    assert done.returncode == 0
    for name, (_, said) in cli.COMMANDS.items():
        assert done.stdout.count(f"  {name} ") == 1
        assert said in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(name: str) -> None:
    assert hsbench(name, "--help").returncode == 0


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], ["probe", "--nosuch"], ["probe", "a", "b"]])
def test_a_bad_call(arguments: list[str]) -> None:
    done = hsbench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hsbench: " in done.stderr
    assert "next: hsbench" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HsbenchError("m", "n"), ExitCode.USAGE),
        (CheckFailed("m", "n"), ExitCode.CHECK_FAILED),
        (ServerDied("m", "n"), ExitCode.SERVER),
        (TimedOut("m", "n"), ExitCode.TIMEOUT),
        (PatchError("m", "n"), ExitCode.PATCH),
        (Missing("m", "n"), ExitCode.MISSING),
        (RuntimeError("m"), ExitCode.INTERNAL),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_errors_become_a_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: ExitCode,
    debug: bool,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli.root, "main", fail)
    assert cli.run(["probe", *(["--debug"] if debug else [])]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("Traceback" in shown.err) == (debug and code != ExitCode.INTERRUPTED)


def test_debug_after_two_dashes_belongs_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(cli.root, "main", lambda arguments, **_: seen.append(arguments))
    cli.run(["serve", "--debug", "--", "--debug"])
    assert seen == [["serve", "--", "--debug"]]


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.data_json({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m workbench.cli --help | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
