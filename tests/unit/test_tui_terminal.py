"""The app in a real terminal: how it opens, how it ends, and what it never draws."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.terminal import Terminal

APP = [sys.executable, "-m", "workbench.cli"]
COLOUR = re.compile(rb"\x1b\[[0-9;]*?\b(?:3[0-7]|4[0-7]|38;|48;|9[0-7])[0-9;]*m")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    places = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("STATE", "CACHE", "CONFIG")}
    return {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **places, "HOME": str(tmp_path)}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(env: dict[str, str], number: int, code: int) -> None:
    with Terminal(APP, env) as terminal:
        terminal.wait_for("no server")
        terminal.child.kill(number)
        assert terminal.exit_code() == code
        assert terminal.is_restored()


def test_ctrl_c_loses_nothing_and_q_leaves(env: dict[str, str]) -> None:
    with Terminal(APP, env, (80, 24)) as terminal:
        terminal.wait_for("no server")
        terminal.press("ctrl+c")
        terminal.look(0.3)
        assert terminal.child.isalive()
        terminal.press("q")
        assert terminal.exit_code() == 0
        assert terminal.is_restored()


def test_what_is_typed_ahead_reaches_the_mode_that_is_gone_to(env: dict[str, str]) -> None:
    with Terminal(APP, env, (100, 30)) as terminal:
        terminal.wait_for("no server")
        terminal.child.send("3p")
        terminal.look(2.0)
        terminal.press("Hello 16")
        terminal.wait_for("Hello 16")


def test_no_color_means_none(env: dict[str, str]) -> None:
    with Terminal(APP, {**env, "NO_COLOR": "1"}) as terminal:
        shown = terminal.wait_for("no server")
        assert "· no server" in shown
        terminal.press("q")
        terminal.exit_code()
        codes = {match[0] for match in COLOUR.finditer(terminal.sent)}
        grey = re.compile(rb"[34]8;2;(\d+);\1;\1")
        assert all(grey.search(code) or b"8;2" not in code for code in codes), codes


def test_ascii_leaves_ascii_nowhere(env: dict[str, str]) -> None:
    with Terminal([*APP, "--ascii"], env, (110, 34)) as terminal:
        terminal.wait_for("no server")
        for key in ("1", "2", "3", "4", "5", "6", "?"):
            terminal.press(key)
            shown = terminal.look(0.6)
            odd = sorted({character for character in shown if ord(character) > 126})
            assert not odd, f"{odd} in\n{shown}"


def test_it_survives_a_window_of_any_size(env: dict[str, str]) -> None:
    with Terminal(APP, env, (80, 24)) as terminal:
        terminal.wait_for("no server")
        for key, columns, lines in (("2", 10, 3), ("3", 200, 60), ("4", 1, 1), ("5", 40, 80), ("6", 80, 24)):
            terminal.press(key)
            terminal.resize(columns, lines)
            terminal.look(0.3)
        assert terminal.child.isalive()
        terminal.press("q")
        assert terminal.exit_code() == 0


def test_the_state_folder_may_vanish_under_it(env: dict[str, str], tmp_path: Path) -> None:
    with Terminal(APP, env, (100, 30)) as terminal:
        terminal.wait_for("no server")
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state").rmdir()
        (tmp_path / "state").write_text("a file in its place")
        for key in ("1", "2", "3", "4", "5", "6"):
            terminal.press(key)
            terminal.look(0.4)
        assert terminal.child.isalive()
        terminal.press("q")
        assert terminal.exit_code() == 0


def test_without_a_terminal_it_tells_the_status_and_ends_as_a_wrong_call(env: dict[str, str]) -> None:
    done = subprocess.run(APP, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert "no server was started by hsbench" in done.stderr
    assert "hsbench: the app needs a terminal" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_its_options_are_refused_with_a_command(env: dict[str, str]) -> None:
    done = subprocess.run([*APP, "--readonly", "status"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "do not go with a command" in done.stderr


def test_a_bad_config_file_is_one_line(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config" / "hsbench").mkdir(parents=True)
    (tmp_path / "config" / "hsbench" / "config.toml").write_text("[app]\nthem = 1\n")
    with Terminal(APP, env) as terminal:
        assert terminal.exit_code() == 2
        shown = terminal.look()
        assert "hsbench: the app's settings" in shown
        assert "Traceback" not in shown


def test_in_a_browser_only_of_this_machine(env: dict[str, str]) -> None:
    port = 18000 + os.getpid() % 1000
    command = [*APP, "--web", "--web-port", str(port)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            end, page = time.monotonic() + 30, None
            while page is None:
                assert time.monotonic() < end
                assert server.poll() is None, server.stderr and server.stderr.read()
                with contextlib.suppress(httpx.TransportError):
                    page = httpx.get(f"http://localhost:{port}/", timeout=5)
                time.sleep(0.1)
            assert page.status_code == 200
            assert "hsbench" in page.text
            listening = [c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"]
            assert listening
            assert set(listening) <= {"127.0.0.1", "::1"}
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=20)


def test_a_defect_is_one_line_in_a_terminal_given_back(env: dict[str, str], tmp_path: Path) -> None:
    broken = "import workbench.tui.app as app\ndef bad(self): raise RuntimeError('[/x] secret=' + 'no')\n"
    broken += "app.WorkbenchApp.do_help = bad\nfrom workbench import cli\ncli.main([])"
    with Terminal([sys.executable, "-c", broken], env) as terminal:
        terminal.wait_for("no server")
        terminal.press("?")
        assert terminal.exit_code() == 70
        assert terminal.is_restored()
        shown = terminal.look()
        assert "hsbench: defect in hsbench: RuntimeError: [/x] secret=no" in shown
        assert "Traceback" not in shown
        assert "locals" not in shown
