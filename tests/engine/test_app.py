"""A whole session in a real terminal against the real engine: launch, probe, extract, leave, come back.

It keeps a state directory of its own, and starts its server by the app alone.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import Command
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

APP = [sys.executable, "-m", "workbench.cli"]
ROWS = 50


@pytest.fixture
def desk(hsbench: Command, demo_model: Path, tmp_path: Path) -> Iterator[Command]:
    """A state directory of its own; whatever was started in it is ended."""
    made = Command(hsbench.home)
    made.env = {**hsbench.env, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    yield made
    made("job", "stop", str(tmp_path / "states"))
    made.ok("stop", "--all")


def rows(path: Path) -> None:
    lines = [json.dumps({"input_ids": [100 + number, 200, 300, 400 + number]}) for number in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")


def fill(terminal: Terminal, values: dict[str, str]) -> None:
    """Type into the form that is open; Tab goes from field to field, in the order of the picture."""
    terminal.look(0.5)
    raise NotImplementedError(values)


def test_launch_probe_extract_leave_and_come_back(desk: Command, tmp_path: Path) -> None:
    rows(tmp_path / "rows.jsonl")
    with Terminal(APP, desk.env, (120, 40)) as terminal:
        terminal.wait_for("no server")
