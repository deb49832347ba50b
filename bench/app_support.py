"""What the measurements of the app share: one that draws without a terminal, over servers that are made up."""

import time
from collections.abc import Sequence
from typing import Any

from workbench.server.state import ServerRecord
from workbench.server.survey import ServerStatus
from workbench.tui.app import WorkbenchApp
from workbench.tui.config import Config
from workbench.tui.services import Services, Surroundings, source_of

NOBODY = 1 << 22
"""Higher than any process's number."""


class Fixed:
    """A source that sees the same again and again."""

    every_s = 1.5

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def collect(self) -> Any:
        """The same."""
        return self.seen

    def close(self) -> None:
        """Nothing is held."""


class PaintedApp(WorkbenchApp):
    """Without a terminal an app does not compose what it would write; this one does, since that is part of the work."""

    painted = 0
    _painting = False

    @property
    def is_headless(self) -> bool:
        """While something is drawn, it is drawn as in a terminal; what is written goes nowhere."""
        return not self._painting

    def _display(self, screen: Any, renderable: Any) -> None:
        self._painting = True
        super()._display(screen, renderable)
        self._painting = False
        self.painted += renderable is not None and not self._batch_count


def app_over(servers: Sequence[ServerStatus], mode: str = "server", **sources: Any) -> PaintedApp:
    """An app that opens in a mode and knows these servers; `sources` take the place of the modes' own."""
    around = Surroundings(tuple(servers), ())
    services = Services(source=lambda name: sources.get(name) or source_of(name), surroundings=lambda: Fixed(around))
    made: type[PaintedApp] = type("PaintedApp", (PaintedApp,), {"DEFAULT_MODE": mode})
    return made(Config(), services)


def status_of(log: str, pid: int = NOBODY, since_boot: float = 1.0, state: str = "dead") -> ServerStatus:
    """A server by its log and its process."""
    record = ServerRecord(
        name="bench",
        pid=pid,
        since_boot=since_boot,
        create_time=time.time(),
        argv=("python", "-m", "sglang.launch_server"),
        env={},
        url="http://127.0.0.1:1",
        host="127.0.0.1",
        port=1,
        model="",
        python="python",
        engine_version="0",
        device="cpu",
        log=log,
        started=time.time(),
    )
    return ServerStatus(state=state, seconds=0.0, pids=(pid,), server=record)
