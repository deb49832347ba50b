"""What the tests of the app share: an app with fake services at its seams, and waiting for conditions."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from textual.pilot import Pilot

from workbench.server.specs import DumpSpec
from workbench.server.state import ServerRecord
from workbench.server.survey import ServerStatus
from workbench.tasks.store import Task
from workbench.tui.app import WorkbenchApp
from workbench.tui.config import Config
from workbench.tui.services import Services, Surroundings, TaskView, source_of
from workbench.tui.source import Source

HOSTILE = "[/red] [bold]x[/] \x1b[31m [rank0] \u202e 🚀 'quote' \\"
"""Text that breaks whatever reads it as markup, or lets it steer the terminal."""
NOW = 1_790_000_000.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test of the app; a hang fails it."""
    asyncio.run(asyncio.wait_for(coroutine, 60))


async def until(pilot: Pilot[Any], condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Let the app go on until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        await pilot.pause(0.02)
    await pilot.pause()


class Given:
    """A source that hands out what it is given; `now` may be changed."""

    every_s = 0.05

    def __init__(self, snapshot: Any) -> None:
        self.now = snapshot
        self.looks = 0
        self.closed = False

    def collect(self) -> Any:
        self.looks += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def close(self) -> None:
        self.closed = True


class FakeApp(WorkbenchApp):
    """An app that starts no command, and remembers which it was asked for."""

    def __init__(self, config: Config, services: Services, mode: str) -> None:
        self.started: list[tuple[str, ...]] = []
        self.DEFAULT_MODE = mode
        super().__init__(config, services._replace(start=self._start))

    def _start(self, argv: Sequence[str]) -> Task:
        self.started.append(tuple(argv))
        return task(*argv, name=f"task-{len(self.started)}")


def app_with(
    mode: str,
    source: Source | None = None,
    servers: Sequence[ServerStatus] = (),
    tasks: Sequence[TaskView] = (),
    config: Config | None = None,
) -> FakeApp:
    """An app that opens in `mode`, with this source (or the mode's real one); the other modes see their real ones."""
    around = Given(Surroundings(tuple(servers), tuple(tasks)))
    services = Services(
        source=lambda name: source if source is not None and name == mode else source_of(name),
        surroundings=lambda: around,
    )
    return FakeApp(config or Config(), services, mode)


def task(*argv: str, name: str = "20260921-101500-0001", pid: int = 2**22 + 1, started: float = NOW) -> Task:
    """A task whose process does not exist."""
    return Task(id=name, argv=argv, pid=pid, since_boot=1.0, started=started)


def record(name: str = "demo", **changes: Any) -> ServerRecord:
    """A server's record whose process does not exist."""
    values: dict[str, Any] = {
        "name": name,
        "pid": 2**22 + 2,
        "since_boot": 1.0,
        "create_time": NOW,
        "argv": ("python", "-m", "sglang.launch_server", "--model-path", "/models/demo", "--port", "30017"),
        "env": {},
        "url": "http://127.0.0.1:30017",
        "host": "127.0.0.1",
        "port": 30017,
        "model": "/models/demo",
        "python": "/usr/bin/python3",
        "engine_version": "0.5.23",
        "device": "cpu",
        "log": f"/nowhere/{name}/server.log",
        "dump": DumpSpec(f"/nowhere/{name}/dumps", (2, 15, 27), route="plugin"),
        "started": NOW,
        "ready_after": 21.5,
    }
    return ServerRecord(**{**values, **changes})


def status(name: str = "demo", state: str = "ready", **changes: Any) -> ServerStatus:
    """A server in some state."""
    values: dict[str, Any] = {"seconds": 131.0, "pids": (1000, 1001), "server": record(name)}
    return ServerStatus(state=state, **{**values, **changes})


def screen_text(app: WorkbenchApp) -> str:
    """What is on the screen, line by line, without colours."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
