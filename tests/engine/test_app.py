"""A whole session in a real terminal against the real engine: launch, probe, extract, leave, come back.

It keeps a state directory of its own, and everything in it is started by the app.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import SLOW_START, Command
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

APP = [sys.executable, "-m", "workbench.cli"]
ROWS = 50


@pytest.fixture
def desk(hsbench: Command, demo_model: Path, tmp_path: Path) -> Iterator[Command]:
    """A state directory of its own; whatever was started in it is ended."""
    made = Command(hsbench.home, Path(hsbench.env["XDG_CACHE_HOME"]))
    made.env = {
        **hsbench.env,
        **SLOW_START,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    yield made
    made("job", "stop", str(tmp_path / "states"))
    made.ok("stop", "--all")


def fill(terminal: Terminal, *values: str) -> None:
    """Type into the fields of the form that is open, from the first one on, and run it."""
    for value in values:
        terminal.press(*([value] if value else []), "tab")
    terminal.press("ctrl+r")


def test_launch_probe_extract_leave_and_come_back(desk: Command, tmp_path: Path) -> None:
    lines = [json.dumps({"input_ids": [100 + number, 200, 300, 400 + number]}) for number in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    states = tmp_path / "states"
    with Terminal(APP, desk.env, (150, 45)) as terminal:
        terminal.wait_for("no server")
        terminal.press("l")
        terminal.wait_for("Start a server")
        terminal.look(2.0)
        fill(terminal, "demo", "", "", "", "", str(tmp_path / "dumps"))
        terminal.wait_for("default")
        terminal.wait_for("● ready", seconds=600)
        terminal.press("3")
        terminal.wait_for("History")
        terminal.press("p")
        terminal.look(2.0)
        terminal.press("Hello world")
        terminal.wait_for("Hello world")
        terminal.press("enter")
        terminal.wait_for("complete and finite", seconds=300)
        for words in ("aux_0", "aux_2", "pre-norm", "19556", "'Hello'", "[2, 576]"):
            terminal.wait_for(words)
        terminal.press("5")
        terminal.wait_for("no run is known here")
        terminal.press("n")
        terminal.wait_for("data *")
        terminal.look(2.0)
        fill(terminal, str(tmp_path / "rows.jsonl"), str(states), *[""] * 9, "0")  # without measuring a baseline
        terminal.wait_for("states")
        terminal.press("q")
        terminal.wait_for("These keep running")
        terminal.press("q")
        assert terminal.exit_code() == 0
        assert terminal.is_restored()
    with Terminal(APP, desk.env, (80, 24)) as terminal:
        terminal.wait_for("● ready")
        terminal.press("5")
        terminal.wait_for("● done", seconds=600)
        terminal.press("q")
        shown = terminal.wait_for("These keep running")
        assert "server default" in shown
        assert "extraction" not in shown
        terminal.press("q")
        assert terminal.exit_code() == 0
    verdict = desk.json("verify", str(states), "--all")
    assert verdict["verdict"] == "ok", verdict
    assert json.loads(desk.ok("watch", str(states), "--once", "--json"))["written"] == ROWS
