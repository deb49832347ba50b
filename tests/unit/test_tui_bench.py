"""The Bench mode on real run folders: of the load generator against its known server, and of a sweep."""

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.widgets import ContentSwitcher, Input

from bench.load.known_server import KnownServer, Schedule
from bench.load.live import LIVE_FILE, Beat
from bench.load.runner import Point
from bench.load.session import measure
from bench.load.spec import BenchSettings, GoodputLimits, grid
from bench.load.store import RunFolder, new_run
from bench.sweep import roster
from bench.sweep.journal import Journal, Settings
from bench.sweep.records import Table
from bench.sweep.stats import Decision
from tests.unit.sweep_support import Machine, flag_variants, hash_of
from tests.unit.tui_support import HOSTILE, FakeApp, Given, app_with, run, screen_text, status, task, until
from workbench.tasks import store
from workbench.tui.config import AppSettings, Config
from workbench.tui.modals.confirm import Confirm
from workbench.tui.modals.form import CommandForm
from workbench.tui.modals.text import TextScreen
from workbench.tui.services import TaskView
from workbench.tui.source import Failed, look
from workbench.tui.sources import bench as source_module
from workbench.tui.sources.bench import (
    LIVE,
    BenchSource,
    Entry,
    RunDetail,
    Snapshot,
    SweepDetail,
    Unreadable,
    curves_of,
    read_sweep,
)
from workbench.tui.widgets.bench_sweep_words import change, sweep_notes, sweep_rows
from workbench.tui.widgets.bench_words import comparison_text, live_text, ms, notes_text, point_row, rate
from workbench.tui.widgets.table import RowTable

SIZES = [(80, 24), (110, 34), (160, 50)]
VARIANTS = flag_variants("slow", "quick", "hangs")
SWEEP = Settings(
    variants=VARIANTS,
    left_out=(("ll128", f"may corrupt data {HOSTILE}"),),
    server={"model": "/models/demo", "flags": HOSTILE, "sglang": "0.5.23"},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder with two runs, a whole sweep and one broken off."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(root))
        with KnownServer(Schedule(ttft=0.03, itl=0.003)) as server:
            for seed in (1, 2):
                work = grid([4], [12], [1, 3], requests=6)
                settings = BenchSettings(url=server.url, workloads=work, seed=seed, warm_up=None)
                measure(msgspec.structs.replace(settings, limits=GoodputLimits(ttft=9.0)), lambda _: None)
        gains = {"slow": -0.12, "quick": 0.10}
        list(
            Machine(gains=gains, noise=lambda start: 0.03 * (hash_of(start.key) % 11 - 5) / 5).drive(
                SWEEP, root / "elsewhere"
            )
        )
        roster.note(root / "elsewhere")
        other = msgspec.structs.replace(SWEEP, seed=1)
        events = Machine().drive(other, roster.default_folder(other))
        for _ in range(9):
            next(events)
        events.close()
        yield root


@pytest.fixture
def state(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, which may be damaged."""
    shutil.copytree(made / "hsbench", tmp_path / "state" / "hsbench")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hsbench" / "bench"


def runs(state: Path) -> list[RunFolder]:
    return [RunFolder(path) for path in sorted((state / "runs").iterdir())]


def seen(source: BenchSource) -> Snapshot:
    found = look(source)
    assert isinstance(found, Snapshot)
    return found


def going(state: Path, *beats: Beat, **changes: Any) -> RunFolder:
    """A run of this very process, which goes on."""
    new = new_run(BenchSettings(url="http://x", workloads=grid([4], [12], [1, 3]), seed=1), HOSTILE, {})
    folder = RunFolder.create(msgspec.structs.replace(new, **changes))
    (folder.path / LIVE_FILE).write_bytes(b"".join(msgspec.json.encode(beat) + b"\n" for beat in beats))
    return folder


def beat(at: float, **changes: Any) -> Beat:
    given = {"time": time.time() - 10 + at, "point": 0, "workload": "4->12 c=1", "phase": "measuring", "at": at}
    counts = {"asked": 10, "done": 4, "in_flight": 3, "tokens": 500, "tok_s": 120.5, "ttft": 0.031, "tpot": 0.003}
    return Beat(**{**given, **counts, **changes})


# The source


def test_the_list(state: Path) -> None:
    found = seen(BenchSource())
    told = [(entry.kind, entry.state, entry.done, entry.of) for entry in found.entries]
    assert sorted(told) == [
        ("run", "finished", 2, 2),
        ("run", "finished", 2, 2),
        ("sweep", "broken off", told[[one[1] for one in told].index("broken off")][2], 13),
        ("sweep", "finished", 20, 20),
    ]
    assert [entry.began for entry in found.entries] == sorted((e.began for e in found.entries), reverse=True)
    assert found.detail is not None
    assert found.detail.key == found.entries[0].key


def test_a_finished_run_and_its_curves(state: Path) -> None:
    source = BenchSource()
    source.selected, source.point = str(runs(state)[0].path), 1
    first, second = seen(source), seen(source)
    assert isinstance(first.detail, RunDetail)
    assert isinstance(second.detail, RunDetail)
    assert first.detail.curves is None, "the table is seen before the requests are read"
    curves = second.detail.curves
    assert curves is not None
    records = list(runs(state)[0].requests(1))
    assert [x for x, _ in curves.ttft] == pytest.approx(sorted(1000 * record.times[0] for record in records))
    assert curves.ttft[-1][1] == 100
    assert len(curves.itl) == 6 * 11
    width = second.detail.points[1].metrics.seconds / 60
    assert sum(value for _, value in curves.rate) * width == pytest.approx(6 * 12)
    assert source.every_s == 1.0


def test_of_a_long_point_every_so_manieth_request(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs(state)[0]
    point = folder.summary().points[1]
    monkeypatch.setattr(source_module, "MOST_TOKENS", 30)
    curves = curves_of(folder.path / "requests.jsonl", 1, point)
    assert curves.stride == 3
    assert len(curves.ttft) == 2
    assert sum(value for _, value in curves.rate) * point.metrics.seconds / 60 == pytest.approx(72)
    monkeypatch.setattr(source_module, "MOST_BYTES", 10)
    assert curves_of(folder.path / "requests.jsonl", 1, point).ttft == []
    assert curves_of(folder.path / "nowhere", 1, point).rate == []


def test_a_run_that_goes_on(state: Path) -> None:
    folder = going(state, beat(1.0), beat(2.0, tok_s=99.5))
    found = seen(BenchSource())
    assert (found.entries[0].state, found.entries[0].tok_s) == ("running", 99.5)
    assert isinstance(found.detail, RunDetail)
    assert found.detail.shown == LIVE
    assert [one.at for one in found.detail.beats] == [1.0, 2.0]
    assert found.entries[0].pids == (os.getpid(),)
    folder.break_off("why not")
    assert seen(BenchSource()).entries[0].state == "broken off"


def test_a_sweep(state: Path, made: Path) -> None:
    source = BenchSource()
    source.selected = str(made / "elsewhere")
    detail = seen(source).detail
    assert isinstance(detail, SweepDetail)
    assert {row.variant: row.verdict for row in detail.table.rows} == {
        "slow": "slower", "quick": "faster", "hangs": "hung"
    }  # fmt: skip
    assert detail.table.complete
    assert detail.tok_s["slow"] == pytest.approx(88, abs=3)
    rows = {row.key: row for row in sweep_rows(detail)}
    assert list(rows) == ["baseline", "slow", "quick", "hangs", "-ll128"]
    cells = [str(cell) for cell in rows["slow"].cells]
    assert cells[2].index("●") < cells[2].index("│")
    assert cells[3].startswith("-")
    assert "├" in cells[2]
    assert "slower" in cells[4]
    assert "HUNG_SPIN" in str(rows["hangs"].cells[2])
    assert "HUNG_SPIN" in sweep_notes(detail, "hangs").plain
    assert "may corrupt data [/red]" in sweep_notes(detail, "-ll128").plain
    assert "fresh starts" in sweep_notes(detail, "quick").plain


def test_a_sweep_that_goes_on(state: Path, tmp_path: Path) -> None:
    journal = Journal(roster.default_folder(SWEEP), SWEEP)
    roster.note(journal.folder)
    entry = seen(BenchSource()).entries[0]
    assert (entry.state, entry.done, entry.of) == ("running", 0, 13)
    assert entry.pids == (os.getpid(),)
    journal.close()
    assert seen(BenchSource()).entries[0].state == "broken off"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"points": [{"workload": 3}]}', b"\xff\xfe", b"[1e999]"])
def test_damaged_files_are_told(damage: bytes, state: Path, made: Path) -> None:
    run_folder, sweep = runs(state)[0].path, roster.default_folder(msgspec.structs.replace(SWEEP, seed=1))
    (run_folder / "summary.json").write_bytes(damage)
    (run_folder / "requests.jsonl").write_bytes(damage)
    (sweep / "starts.jsonl").write_bytes(damage + b"\n")
    source = BenchSource()
    states = {entry.key: entry.state for entry in seen(source).entries}
    assert states[str(run_folder)] == states[str(sweep)] == "unreadable"
    for key in (str(run_folder), str(sweep)):
        source.selected = key
        assert isinstance(seen(source).detail, Unreadable)


def test_a_speed_of_nothing_is_unreadable_and_no_crash(state: Path) -> None:
    path = roster.default_folder(msgspec.structs.replace(SWEEP, seed=1)) / "starts.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        if line.get("measured"):
            line["measured"]["decode_tok_s"] = 0.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "unreadable" in [entry.state for entry in seen(BenchSource()).entries]


def test_folders_that_vanish(state: Path) -> None:
    source = BenchSource()
    source.selected = str(runs(state)[0].path)
    seen(source)
    shutil.rmtree(runs(state)[0].path)
    assert seen(source).detail is not None
    shutil.rmtree(state)
    assert not [entry for entry in seen(source).entries if entry.kind == "run"]
    assert not isinstance(look(source), Failed)


# Words


def test_numbers_that_are_none() -> None:
    assert [rate(value) for value in (None, math.nan, math.inf, 331.84, 12345.6)] == ["-", "-", "-", "331.8", "12346"]
    assert [ms(value) for value in (None, math.nan, 0.0045, 0.052, 1.5)] == ["-", "-", "4.50", "52.0", "1500"]
    odd = [math.nan, math.inf, None]
    for value in odd:
        change(Decision(word="same", blocks=2, ratio=value, low=value, high=value))
        told = beat(1.0, tok_s=value, ttft=value, tpot=value)
        assert "nan" not in live_text(told, time.time(), True, 80).plain
    assert change(Decision(word="slower", blocks=3, ratio=0.877, low=0.871, high=0.883)) == "-12.3 ± 0.6 %"


def odd_point(state: Path) -> Point:
    """With a hostile note, no figures, and a client that was the limit."""
    point = runs(state)[0].summary().points[0]
    client = msgspec.structs.replace(point.client, limited=("loop lag",), lag_p99=math.nan, cpu_us_per_token=None)
    spread = msgspec.structs.replace(point.metrics.ttft, p50=math.nan, p99=math.inf)
    found = msgspec.structs.replace(
        point.metrics, batch_tok_s=None, whole_tok_s=math.nan, ttft=spread, tpot=None, itl=None, failed=3
    )
    return msgspec.structs.replace(point, client=client, metrics=found, notes=("CLIENT-LIMITED: loop lag", HOSTILE))


def test_a_limited_client_is_said_in_words(state: Path) -> None:
    point = odd_point(state)
    assert "✗ CLIENT-LIMITED" in str(point_row(0, point).cells[-1])
    assert "1 note" in str(point_row(0, point).cells[-1])
    assert "[/red] [bold]x" in notes_text(point).plain
    assert "\x1b" not in notes_text(point).plain


# The screen


def table(app: FakeApp, name: str) -> RowTable:
    return app.screen.query_one(f"#{name}", RowTable)


async def choose(app: FakeApp, pilot: Any, key: str) -> None:
    """Put the cursor on an entry and wait for its details."""
    await until(pilot, lambda: set(table(app, "entries").keys()) >= {key})
    table(app, "entries").choose(key)
    await until(pilot, lambda: app.screen.snapshot.detail.key == key)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", SIZES[::2])
def test_a_run_is_shown(size: tuple[int, int], state: Path) -> None:
    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=size) as pilot:
            await choose(app, pilot, str(runs(state)[1].path))
            await until(pilot, lambda: "TTFT" in str(app.screen.query_one("#latency").visual))
            text = screen_text(app)
            assert "4->12 c=1" in text
            assert "4->12 c=3" in text
            assert "finished" in text
            assert "% within x ms" in text
            assert "tok/s over seconds" in text
            app.screen.query_one("#points", RowTable).choose("1")
            await until(pilot, lambda: "4->12 c=3: tok/s" in screen_text(app))

    run(main())


@pytest.mark.parametrize("size", SIZES[:2])
def test_a_sweep_is_shown(size: tuple[int, int], made: Path, state: Path) -> None:
    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=size) as pilot:
            await choose(app, pilot, str(made / "elsewhere"))
            await until(pilot, lambda: "slower" in screen_text(app))
            text = screen_text(app)
            assert "├" in text
            assert "●" in text
            assert "✗ hung" in text
            table(app, "decisions").choose("hangs")
            await until(pilot, lambda: "HUNG_SPIN(first all-reduce)" in screen_text(app))

    run(main())


def test_a_run_goes_on_and_ends(state: Path) -> None:
    folder = going(state, *(beat(float(at), limited=("client CPU",)) for at in range(10)))

    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: "120.5 tok/s" in screen_text(app))
            text = screen_text(app)
            assert "4/10" in text
            assert "3 in flight" in text
            assert "CLIENT-LIMITED: client CPU" in text
            folder.break_off(HOSTILE)
            app.screen.poller.wake()  # type: ignore[attr-defined]
            await until(pilot, lambda: "broken off: [/red] [bold]x" in screen_text(app))

    run(main())


def test_marking_and_comparing(state: Path, made: Path) -> None:
    first, second = (str(folder.path) for folder in runs(state))

    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=(110, 34)) as pilot:
            await choose(app, pilot, first)
            await pilot.press("c")
            assert not isinstance(app.screen, TextScreen), "nothing is marked"
            await pilot.press("m")
            await until(pilot, lambda: app.screen.marked == first)  # type: ignore[attr-defined]
            await choose(app, pilot, str(made / "elsewhere"))
            await pilot.press("m", "c")
            assert app.screen.marked == first, "a sweep is not marked"  # type: ignore[attr-defined]
            await choose(app, pilot, second)
            await pilot.press("c")
            await until(pilot, lambda: isinstance(app.screen, TextScreen))
            text = screen_text(app)
            assert "batch tok/s" in text
            assert Path(first).name in text
            await pilot.press("escape")
            shutil.rmtree(first)
            await pilot.press("c")
            await until(pilot, lambda: not isinstance(app.screen, TextScreen))

    run(main())


def test_the_words_of_a_comparison(state: Path) -> None:
    first, second = (str(folder.path) for folder in runs(state))
    found = source_module.comparison_of(first, second)
    assert {one.workload for one in found.differences} == {"4->12 c=1", "4->12 c=3"}
    odd = msgspec.structs.replace(found.differences[0], ratio=math.nan, slower=math.nan, second=math.inf)
    text = comparison_text(msgspec.structs.replace(found, differences=(odd,), cautions=(HOSTILE,))).plain
    assert "[/red] [bold]x" in text
    assert "nan" not in text


def test_forms_start_commands(state: Path) -> None:
    async def main() -> None:
        app = app_with("bench", servers=[status("demo")])
        async with app.run_test(size=(110, 40)) as pilot:
            await pilot.press("b")
            await until(pilot, lambda: isinstance(app.screen, CommandForm))
            await pilot.press("ctrl+r")
            await until(pilot, lambda: app.started)
            expected = "bench --name demo --input-len 128 --output-len 128 --concurrency 1,8"
            assert app.started == [tuple(expected.split())]
            await pilot.press("w")
            await until(pilot, lambda: isinstance(app.screen, CommandForm))
            app.screen.query_one("#field-0", Input).value = "demo"
            app.screen.query_one("#field-17", Input).value = "--tp-size 2"
            await pilot.press("ctrl+r")
            await until(pilot, lambda: len(app.started) == 2)
            assert app.started[1] == tuple(
                ["bench", "sweep", "--model", "demo", "--blocks", "3", "--", "--tp-size", "2"]
            )

    run(main())


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_forms_name_only_options_that_exist(command: str) -> None:
    from workbench.commands.bench import bench
    from workbench.commands.sweep import sweep
    from workbench.tui.widgets.bench_forms import run_form, sweep_form

    known = {name for one in (bench if command == "bench" else sweep).params for name in one.opts}
    form = run_form(["demo"]) if command == "bench" else sweep_form()
    assert {field.flag for field in form.fields if field.flag} <= known


def test_stopping_asks_and_interrupts_the_right_task(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going(state, beat(1.0))
    other = TaskView(task("bench", "--url", "x", name="other"), "running")
    ours = TaskView(task("bench", "--url", "y", name="ours", pid=os.getpid()), "running")
    foreign = TaskView(task("probe", "hello", name="probe"), "running")
    ended: list[str] = []
    monkeypatch.setattr(store, "interrupt", lambda one: ended.append(one.id) or True)

    async def main() -> None:
        app = app_with("bench", tasks=[foreign, other, ours])
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: app.tasks and table(app, "entries").keys())
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "--url y" in screen_text(app)
            await pilot.press("y")
            await until(pilot, lambda: ended)
            assert ended == ["ours"]

    run(main())


def test_nothing_is_stopped_where_nothing_goes_on(state: Path) -> None:
    async def main() -> None:
        app = app_with("bench", tasks=[TaskView(task("bench"), "done")])
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: table(app, "entries").keys())
            await pilot.press("x")
            await pilot.pause()
            assert not isinstance(app.screen, Confirm)

    run(main())


def test_the_filter(state: Path) -> None:
    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app, "entries").keys()) == 4)
            await pilot.press("slash", *"sweep fin")
            await until(pilot, lambda: len(table(app, "entries").keys()) == 1)
            await pilot.press("escape")
            await until(pilot, lambda: len(table(app, "entries").keys()) == 4)

    run(main())


def hostile(state: Path) -> list[Snapshot]:
    """Snapshots with everything that may go wrong in a text or a number."""
    folder = runs(state)[0]
    sweep = read_sweep(roster.default_folder(msgspec.structs.replace(SWEEP, seed=1)))
    bad = Decision(word="faster", blocks=3, ratio=math.nan, low=math.inf, high=-math.inf)
    row = msgspec.structs.replace(
        sweep.table.rows[0], variant=HOSTILE, reason=HOSTILE, settings=HOSTILE, notes=(HOSTILE,), verdict=HOSTILE
    )
    rows = (row, msgspec.structs.replace(sweep.table.rows[1], decisions={"decode_tok_s": bad}))
    odd: Table = msgspec.structs.replace(sweep.table, rows=rows, drift=math.nan, baseline={HOSTILE: math.nan})
    settings = msgspec.structs.replace(folder.run().settings, url=HOSTILE, data=HOSTILE)
    about = msgspec.structs.replace(folder.run(), name=HOSTILE, model=HOSTILE, settings=settings, facts={"a": HOSTILE})
    beats = tuple(beat(float(n), workload=HOSTILE, tok_s=math.nan, ttft=math.inf, tpot=None) for n in range(5))
    curves = source_module.Curves(
        ttft=[(math.nan, 1.0), (1.0, math.inf)], itl=[(math.nan, math.nan)] * 9, rate=[(0.0, math.nan)], stride=3
    )
    point = odd_point(state)
    given = {"kind": "run", "name": HOSTILE, "began": math.nan, "about": HOSTILE}
    entries = tuple(Entry(key=f"k{n} {HOSTILE}", state=word, **given) for n, word in enumerate(("running", HOSTILE)))
    key = entries[0].key
    shown = {"key": key, "run": about}
    return [
        Snapshot(entries=entries, detail=RunDetail(state="running", beats=beats, points=(point,), **shown)),
        Snapshot(entries=entries, detail=RunDetail(state=HOSTILE, points=(point,), shown=0, curves=curves, **shown)),
        Snapshot(entries=entries[1:], detail=RunDetail(state="broken off", broken=HOSTILE, beats=beats, **shown)),
        Snapshot(
            entries=entries,
            detail=SweepDetail(
                key=key, state=HOSTILE, settings=SWEEP, table=odd, tok_s={HOSTILE: math.nan}, done=1, planned=0
            ),
        ),
        Snapshot(entries=entries, detail=Unreadable(key=key, why=HOSTILE)),
        Snapshot(entries=()),
    ]


@pytest.mark.parametrize("ascii", [False, True])
def test_hostile_texts_and_numbers_at_every_size(ascii: bool, state: Path) -> None:
    snapshots = hostile(state)
    source = Given(snapshots[0])
    source.every_s = 0.3

    async def main() -> None:
        app = app_with("bench", source=source, config=Config(app=AppSettings(ascii=ascii)))
        async with app.run_test(size=(110, 34)) as pilot:
            for size in [(80, 24)] if ascii else [(160, 50), (20, 5)]:
                await pilot.resize_terminal(*size)
                for snapshot in snapshots:
                    source.now = snapshot
                    app.screen.poller.wake()  # type: ignore[attr-defined]
                    await until(pilot, lambda now=snapshot: app.screen.snapshot is now)  # type: ignore[attr-defined, misc]
                    text = screen_text(app)
                    assert "\x1b" not in text
                    assert not ascii or text.replace("…", "").isascii()
                await pilot.press("down", "m")
            source.now = snapshots[0]
            await until(pilot, lambda: app.screen.snapshot is snapshots[0])  # type: ignore[attr-defined]
            assert app.screen.query_one(ContentSwitcher).current == "bench-run"

    run(main())


def test_the_state_folder_goes_away_under_it(state: Path) -> None:
    async def main() -> None:
        app = app_with("bench")
        async with app.run_test(size=(110, 34)) as pilot:
            await until(pilot, lambda: len(table(app, "entries").keys()) == 4)
            thread = threading.Thread(target=shutil.rmtree, args=(state,))
            thread.start()
            for size in SIZES:
                await pilot.resize_terminal(*size)
                app.screen.poller.wake()  # type: ignore[attr-defined]
                await pilot.pause(0.05)
            thread.join()
            app.screen.poller.wake()  # type: ignore[attr-defined]
            await until(pilot, lambda: "No run and no sweep" in screen_text(app))

    run(main())
