"""Every mode as a picture: what is drawn of known records, at the least size and at a large one.

The records are those of `tui_records`, the clock stands still, and nothing of this machine is shown, so that the
pictures are the same everywhere. After a wanted change ``pytest tests/unit/test_tui_snapshots.py -n 0
--snapshot-update`` makes them anew; look at them before they are committed.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.unit import tui_records as records
from tests.unit.tui_support import NOW, FakeApp, Given, app_with, record, screen_text, status, task, until
from workbench.extract.job import roster
from workbench.extract.job.roster import KnownJob
from workbench.tui.modals.form import CommandForm
from workbench.tui.modals.leave import Leave
from workbench.tui.modals.text import TextScreen
from workbench.tui.services import TaskView

SMALL, LARGE = (80, 24), (160, 50)
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x50"])
LOOKS = 2
"""Looks after the first picture, by which all sizes that depend on each other have settled."""
LOG = (
    "[2026-09-21 10:15:00] server_args=ServerArgs(model_path='/models/demo', tp_size=4)",
    *(f"[2026-09-21 10:15:{at:02} TP{at % 4}] Load weight begin. avail mem=78.{at} GB" for at in range(8, 12)),
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:41<00:00, 10.31s/it]",
    *(f"[2026-09-21 10:15:{at:02} TP{at % 4}] Load weight end. avail mem=18.{at} GB" for at in range(49, 53)),
    "[2026-09-21 10:15:53] WARNING: torch.compile is off",
    "[2026-09-21 10:15:54 TP0] Capture cuda graph begin. This can take up to several minutes.",
)

Compare = Callable[..., bool]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No clock, no time zone, no settings and no state of whoever runs the tests."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as still:
        still.setattr(time, "time", lambda: NOW)
        still.setattr(time, "localtime", lambda at=None: time.gmtime(NOW if at is None else at))
        yield


def pictured(
    compare: Compare,
    app: FakeApp,
    size: tuple[int, int],
    words: tuple[str, ...],
    then: Callable[[Pilot[Any]], Awaitable[None]] | None = None,
) -> bool:
    """Whether the app looks as it did, once these words are seen and its source was looked at some more times."""

    def seen() -> bool:
        return app.servers is not None and all(word in screen_text(app) for word in words)

    app._poller.source.every_s = 60.0  # the servers stay as they are

    async def settle(pilot: Pilot[Any]) -> None:
        await until(pilot, seen)
        if then is not None:
            await then(pilot)
        source = app.screen_stack[0].source  # type: ignore[attr-defined]
        looks = source.looks + LOOKS
        await until(pilot, lambda: source.looks >= looks)

    return compare(app, terminal_size=size, run_before=settle)


def given(snapshot: Any) -> Given:
    """A source that the Extraction mode may tell what is chosen."""
    source = Given(snapshot)
    source.chosen = ""  # type: ignore[attr-defined]
    return source


SERVERS = (status("demo"),)


def server_app(folder: Path) -> FakeApp:
    log = folder / "server.log"
    log.write_text("\n".join(LOG) + "\n")
    other = record("qwen", port=30018, url="http://127.0.0.1:30018")
    servers = (status("demo", "starting", phase="warm-up"), status("qwen", seconds=7300.0, server=other))
    return app_with("server", given(records.hung_at_all_reduce(str(log))), servers)


@SIZES
def test_server(size: tuple[int, int], tmp_path: Path, snap_compare: Compare) -> None:
    assert pictured(snap_compare, server_app(tmp_path), size, ("HUNG_SPIN", "Capture cuda graph", "217 lines"))


@SIZES
def test_patches(size: tuple[int, int], snap_compare: Compare) -> None:
    app = app_with("patches", given(records.patched()), SERVERS)
    assert pictured(snap_compare, app, size, ("applied", "import recorder as _hs_recorder", "llama"))


@SIZES
def test_probe(size: tuple[int, int], snap_compare: Compare) -> None:
    app = app_with("probe", given(records.probed()), SERVERS)
    assert pictured(snap_compare, app, size, ("aux_2", "wrong_block", "wrong block: 28", "to demo"))


@SIZES
def test_bench(size: tuple[int, int], snap_compare: Compare) -> None:
    app = app_with("bench", given(records.measured()), SERVERS)
    assert pictured(snap_compare, app, size, ("finished", "128->128 c=32", "% within x ms", "nccl-7c2f"))


@SIZES
def test_extraction(size: tuple[int, int], snap_compare: Compare) -> None:
    app = app_with("extraction", given(records.extracting()), SERVERS)
    assert pictured(snap_compare, app, size, ("12.0 %", "chat_v3", "NaN in", "tok/s"))


@SIZES
def test_machine(size: tuple[int, int], snap_compare: Compare) -> None:
    app = app_with("machine", given(records.at_work()), SERVERS)
    assert pictured(snap_compare, app, size, ("extraction", "killed", "118.5 tok/s"))


# Over a mode


def test_help(tmp_path: Path, snap_compare: Compare) -> None:
    async def ask(pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, TextScreen))

    assert pictured(snap_compare, server_app(tmp_path), SMALL, ("HUNG_SPIN", "Capture cuda graph"), ask)


def test_launch_form(tmp_path: Path, snap_compare: Compare) -> None:
    async def launch(pilot: Pilot[Any]) -> None:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(pilot.app.screen, CommandForm))
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False
        pilot.app.screen.query(Input).first().value = "demo"
        await until(pilot, lambda: "--model demo" in screen_text(pilot.app))  # type: ignore[arg-type]

    assert pictured(snap_compare, server_app(tmp_path), SMALL, ("HUNG_SPIN", "Capture cuda graph"), launch)


def test_leaving(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    job = KnownJob(folder="/data/sets/chat_v3", data="chat.jsonl", pid=4711, state="running", written=1197, rows=10_000)
    monkeypatch.setattr(roster, "known_jobs", lambda: iter([job]))
    bench = TaskView(task("bench", "--name", "demo", "--concurrency", "1,8,32"), "running")
    app = app_with("machine", given(records.at_work()), SERVERS, [bench])

    async def leave(pilot: Pilot[Any]) -> None:
        await pilot.press("q")
        await until(pilot, lambda: isinstance(pilot.app.screen, Leave))

    assert pictured(snap_compare, app, SMALL, ("extraction", "118.5 tok/s"), leave)
