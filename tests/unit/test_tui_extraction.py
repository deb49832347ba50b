"""The extraction mode: runs found and attached, what is shown of one, what is asked of the commands, one sample."""

import math
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from textual.pilot import Pilot
from textual.widgets import Input

from probes import calls, samplefile, stats
from tests.unit.extract_support import LocalWorker, build, sample, states_of, write_both
from tests.unit.tui_records import run_view
from tests.unit.tui_support import HOSTILE, FakeApp, Given, app_with, run, screen_text, task, until
from tests.unit.watch_support import foreign_rows, job_file, make_job, picture, preflight, tell
from workbench.errors import UsageError
from workbench.extract.index import IndexLine
from workbench.extract.job import roster
from workbench.extract.job.events import Ended, Slow, Told
from workbench.extract.job.files import JobFiles
from workbench.extract.record import Format, load_record
from workbench.extract.watch.view import RunView
from workbench.extract.writer import DatasetWriter
from workbench.tui import sampleview
from workbench.tui.config import AppSettings, Config
from workbench.tui.sampleview import Samples, SampleView, find_line
from workbench.tui.screens.extraction import ExtractionScreen
from workbench.tui.services import Surroundings, TaskView
from workbench.tui.sources.extraction import Attached, Book, Detail, ExtractionSource, RunRow, Snapshot, load_book
from workbench.tui.widgets.extraction_facts import facts, lines_of
from workbench.tui.widgets.extraction_sample import SampleScreen, tokens_text
from workbench.tui.widgets.extraction_troubles import troubles, troubles_text
from workbench.tui.widgets.table import RowTable


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def running(out: Path, **changes: Any) -> JobFiles:
    """A job of this process, at 40 % of 1,000 rows; told just now."""
    now = time.time()
    events = [picture(second, 1000 * second, time=now - 40 + second, **changes) for second in range(1, 41)]
    files = make_job(out, [preflight(time=now - 50), *events], started=now - 60)
    roster.note(out)
    return files


def ended(out: Path, state: Any = "done", alive: bool = False) -> JobFiles:
    now = time.time()
    told = Ended(time=now - 5, state=state, message="all 5 rows", start=1)
    files = make_job(out, [preflight(time=now - 9, rows=5), picture(5, 500, time=now - 6, rows=5), told], alive)
    roster.note(out)
    return files


def rows(snapshot: Snapshot) -> dict[str, RunRow]:
    return {Path(row.folder).name: row for row in snapshot.runs}


# The source


def test_the_list_has_every_run_and_says_what_became_of_the_lost(data: Path) -> None:
    running(data / "first")
    ended(data / "second")
    ended(data / "moved")
    (data / "moved").rename(data / "elsewhere")
    damaged = ended(data / "damaged")
    damaged.job.write_text("{")
    found = ExtractionSource().collect()
    assert [Path(row.folder).name for row in found.runs] == ["first", "second", "damaged", "moved"]
    by_name = rows(found)
    assert (by_name["first"].running, by_name["first"].written, by_name["first"].rows) == (True, 400, 1000)
    assert (by_name["second"].running, by_name["second"].state) == (False, "done")
    assert by_name["moved"].kind == "lost"
    assert "gone" in by_name["moved"].problem
    assert "cannot be read" in by_name["damaged"].problem


def test_the_list_is_looked_at_seldom_and_only_changed_jobs_are_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = running(data / "one")
    ended(data / "two")
    read: list[str] = []
    look = roster.look

    def counted(files: JobFiles) -> Any:
        read.append(files.out.name)
        return look(files)

    monkeypatch.setattr(roster, "look", counted)
    clock = Clock()
    source = ExtractionSource(clock)
    source.collect()
    assert sorted(read) == ["one", "two"]
    clock.now += 1
    tell(files, picture(41, 41_000))
    source.collect()
    assert len(read) == 2, "not within 5 s"
    clock.now += 5
    assert rows(source.collect())["one"].written == 410
    assert read[2:] == ["one"], "two did not change"


def test_a_run_is_followed_and_its_rates_are_of_its_counters(data: Path) -> None:
    files = running(data / "run")
    source = ExtractionSource()
    detail = source.collect().detail
    assert detail is not None
    assert detail.view is not None
    assert (detail.running, detail.pausing, detail.view.tok_s_now) == (True, False, 1000.0)
    tell(files, picture(41, 43_000, time=time.time()), Told(time=time.time(), text="slow disk", level="warning"))
    files.pause.touch()
    again = source.collect().detail
    assert again is not None
    assert again.view is not None
    assert (again.pausing, again.view.tokens, [told.text for told in again.view.messages]) == (
        True,
        43_000,
        ["slow disk"],
    )


def test_a_moved_run_and_one_of_another_machine_say_so(data: Path) -> None:
    ended(data / "old")
    (data / "old").rename(data / "new")
    roster.note(data / "new")
    away = make_job(data / "away", [picture(5, 500)], alive=False)
    roster.note(data / "away")
    clock = Clock()
    source = ExtractionSource(clock)
    source.chosen = str(data / "new")
    detail = source.collect().detail
    assert detail is not None
    assert str(data / "old") in detail.remark
    source.chosen = str(data / "away")
    first = source.collect().detail
    assert first is not None
    assert first.remark == "", "it may just have been killed"
    tell(away, picture(6, 600))
    clock.now += 10
    second = source.collect().detail
    assert second is not None
    assert "another machine" in second.remark


def test_attached_runs_are_looked_at_remembered_and_forgotten(data: Path) -> None:
    foreign_rows(data / "theirs", 30, size=100)
    source = ExtractionSource()
    source.attach(str(data / "theirs"))
    found = source.collect()
    assert found.said is not None
    assert found.said.folder == str(data / "theirs")
    assert found.detail is not None
    assert found.detail.view is not None
    assert (found.detail.view.kind, found.detail.view.written) == ("foreign", 30)
    later = ExtractionSource().collect()
    assert [(row.folder, row.kind, row.attached) for row in later.runs] == [(str(data / "theirs"), "foreign", True)]
    source.forget(str(data / "theirs"))
    assert source.collect().runs == ()
    assert load_book().attached == ()


def test_what_is_no_run_is_not_attached_and_a_damaged_book_is_an_empty_one(data: Path, tmp_path: Path) -> None:
    source = ExtractionSource()
    source.attach(str(data))
    found = source.collect()
    assert found.said is not None
    assert (found.said.folder, found.runs) == ("", ())
    assert "no run in" in found.said.message
    (tmp_path / "state" / "hsbench").mkdir(parents=True, exist_ok=True)
    (tmp_path / "state" / "hsbench" / "runs.json").write_text('{"attached": [')
    assert load_book() == Book()


def test_a_lost_run_can_be_hidden_until_it_is_there_again(data: Path) -> None:
    ended(data / "run")
    (data / "run").rename(data / "away")
    source = ExtractionSource()
    assert len(source.collect().runs) == 1
    source.forget(str(data / "run"))
    assert source.collect().runs == ()
    (data / "away").rename(data / "run")
    source.relist()
    assert len(source.collect().runs) == 1


def test_a_folder_that_vanishes_is_a_reason_not_an_error(data: Path) -> None:
    files = running(data / "run")
    source = ExtractionSource()
    source.collect()
    shutil.rmtree(files.folder)
    half = source.collect().detail
    assert half is not None
    assert half.view is None
    assert half.problem
    shutil.rmtree(data / "run")
    gone = source.collect().detail
    assert gone is not None
    assert "gone" in gone.problem
    assert gone.next_step


def test_half_written_events_are_passed_over(data: Path) -> None:
    files = running(data / "run")
    with open(files.events, "ab") as file:
        file.write(b'\x00\xff{"type":"Progress","time":NaN}\n{"type":"Progress","ti')
    detail = ExtractionSource().collect().detail
    assert detail is not None
    assert detail.view is not None
    assert detail.view.written == 400


# Facts


def text_of(view: RunView, **changes: Any) -> str:
    return facts(Detail(folder=view.folder, view=view, **changes), 76).plain


def test_the_facts_mark_estimates_and_lower_bounds() -> None:
    view = run_view(
        rows=10_000,
        written=1213,
        tokens=2_100_000,
        tokens_expected=17_300_000.0,
        tok_s_now=38_900.0,
        tok_s_avg=37_200.0,
        plain_share=0.974,
        bytes_s_now=2.23e9,
        bytes_s_avg=2.1e9,
        eta_s=391.0,
        dump_n=1236,
        in_flight=23,
        waiting_bytes=3 << 30,
        high_water_bytes=48 << 30,
        quarantined=2,
        estimated=("tokens_expected", "eta_s"),
        at_least=("waiting_bytes",),
    )
    shown = text_of(view)
    for words in ("12.2 %", "ETA ~6 min 31 s", "1,213 / 10,000", "2 quarantined", "2.1 M / ~17.3 M", "req_1236"):
        assert words in shown, words
    for words in ("38.9k tok/s now", "37.2k avg", "97.4 % of plain prefill", "2.2 GB/s now", "≥ 3/48 GiB", "23 in"):
        assert words in shown, words


def test_the_facts_bear_any_number_and_none() -> None:
    assert "unknown number" in text_of(run_view())
    for bad in (math.nan, math.inf, -math.inf):
        numbers = dict.fromkeys(("tok_s_now", "tok_s_avg", "bytes_s_now", "bytes_s_avg", "plain_share"), bad)
        text_of(run_view(rows=5, eta_s=bad, tokens_expected=bad, **numbers))
        text_of(run_view(slowest=(Slow(1, 1, bad),), messages=(Told(time=bad, text=HOSTILE),)))


def test_lines_of_counts_wrapped_lines() -> None:
    from rich.text import Text

    assert lines_of(Text("a" * 10 + "\n\nbc"), 4) == 3 + 1 + 1


# What went wrong


def test_troubles_are_told_newest_first_with_the_rows_in_quarantine(data: Path) -> None:
    files = running(data / "run")
    tell(files, Told(time=1.0, text="a note"), Told(time=2.0, text=HOSTILE, level="error", index=7))
    tell(files, Told(time=3.0, text="again", level="warning"), Ended(time=4.0, state="failed", message="disk full"))
    place = data / "run.quarantine" / "sample_7"
    place.mkdir(parents=True)
    (place / "reason.json").write_text('{"index": 7, "reason": "aux_0 holds NaN"}')
    lines = [
        IndexLine(index=7, status="quarantined", reason="aux_0 holds NaN"),
        IndexLine(index=8, status="quarantined", reason="lost"),
        IndexLine(index=9, status="refused", reason="no token is trained on"),
        IndexLine(index=8, status="written", again=True),
    ]
    (data / "run" / "index.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b'{"i')
    found = troubles(data / "run")
    assert [getattr(one, "text", "end") for one in found.told] == ["end", "again", HOSTILE]
    assert found.quarantined == ((7, "aux_0 holds NaN"),)
    assert found.refused == ((9, "no token is trained on"),)
    assert "disk full" in troubles_text(found).plain


def test_troubles_of_a_long_run_are_read_from_its_end(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.tui.widgets import extraction_troubles

    monkeypatch.setattr(extraction_troubles, "EVENTS", 2000)
    files = running(data / "run")
    tell(files, *(Told(time=n, text=f"word {n}", level="error") for n in range(100)))
    found = troubles(data / "run")
    assert 0 < len(found.told) < 100
    assert getattr(found.told[0], "text", "") == "word 99"
    assert "only the last" in found.cut[0]
    assert troubles(data / "nothing").told == ()


# One sample


def index_of(folder: Path, numbers: Any) -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / "index.jsonl", "wb") as file:
        for place, number in enumerate(numbers):
            file.write(msgspec.json.encode(IndexLine(index=number, status="written", tokens=place + 1)) + b"\n")


@pytest.mark.parametrize("whole", [1 << 30, 4096])
def test_a_line_is_found_in_a_long_index_that_is_not_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    for name, size in (("WHOLE", whole), ("BLOCK", 512), ("AROUND", 8192)):
        monkeypatch.setattr(sampleview, name, size)
    order = [n for start in range(0, 20_000, 8) for n in reversed(range(start, start + 8))]  # as they happened to come
    index_of(data / "set", [*order, 5])
    for wanted in (0, 5, 7, 9_999, 10_000, 19_999):
        line, note = find_line(data / "set", wanted)
        assert line is not None, wanted
        assert (line.index, note) == (wanted, "")
        assert line.tokens == (20_001 if wanted == 5 else order.index(wanted) + 1), "the last line of a row counts"
    missing, why = find_line(data / "set", 20_000)
    assert missing is None
    assert why


def test_a_torn_last_line_and_no_index_are_no_line(data: Path) -> None:
    index_of(data / "set", [0, 1])
    with open(data / "set" / "index.jsonl", "ab") as file:
        file.write(b'{"index":1,"status":"writ')
    assert find_line(data / "set", 1)[0] is not None
    assert find_line(data / "nothing", 1) == (None, "there is no index")


def describe_sample(path: str, kind: str, tensors: int | None = None) -> dict[str, Any]:
    """The call as the worker would make it."""
    held = samplefile.load(Path(path), samplefile.as_kind(kind), tensors)
    mask = None if held.loss_mask is None else held.loss_mask.tolist()
    return {"ids": held.input_ids.tolist(), "mask": mask, "states": [stats.describe(state) for state in held.states]}


@pytest.mark.parametrize("kind", ["speculators-v1", "speculators", "specforge"])
def test_a_sample_of_each_format(data: Path, kind: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.CALLS, "describe_sample", calls.CALLS.get("describe_sample", describe_sample))
    folder = build(data / "set", kind)
    samples = Samples(folder, LocalWorker)
    view = samples.look(3)
    one = sample(3)
    assert (view.ids, view.mask, view.faults, view.line_note, view.notes) == (one.input_ids, one.loss_mask, (), "", ())
    assert view.line is not None
    assert view.line.tokens == len(one.input_ids)
    kept = states_of(one)
    expected = [*kept[:3], kept[4] if kind == "specforge" else kept[3]]
    assert [tensor.block for tensor in view.tensors] == [0, 1, 2, samples.record.states.num_blocks - 1]  # type: ignore[union-attr]
    for tensor, state in zip(view.tensors, expected, strict=True):
        wide = state.to(torch.float64)
        assert tensor.shape == tuple(state.shape)
        assert tensor.dtype == "bfloat16"
        assert (tensor.low, tensor.high) == (float(wide.min()), float(wide.max()))
        assert tensor.mean == pytest.approx(float(wide.mean()))
        assert sum(tensor.histogram) == state.numel()


def test_without_the_call_what_an_audit_tells_is_shown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(calls.CALLS, "describe_sample", raising=False)
    view = Samples(build(data / "set", "speculators"), LocalWorker).look(1)
    assert view.ids == sample(1).input_ids
    assert view.mask is None
    assert [tensor.histogram for tensor in view.tensors] == [()] * 4
    assert "no histogram" in view.notes[0]


def test_a_damaged_a_missing_and_another_tools_sample(data: Path) -> None:
    folder = build(data / "set", "speculators-v1")
    samples = Samples(folder, LocalWorker)
    path = folder / "rows_0-2000" / "data_2.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "unreadable" in samples.look(2).faults[0]
    assert "nbytes" in samples.look(2).line_note
    path.unlink()
    assert "there is no" in samples.look(2).notes[0]
    (folder / "hsbench.json").unlink()
    (folder / "index.jsonl").unlink()
    other = Samples(folder, LocalWorker).look(4)
    assert other.ids == sample(4).input_ids
    assert other.line_note == "there is no index"
    with pytest.raises(UsageError):
        Samples(data, LocalWorker)


def test_a_sample_in_quarantine_is_shown_by_its_dump(data: Path) -> None:
    folder = build(data / "set", "speculators-v1")
    with open(folder / "index.jsonl", "ab") as file:
        file.write(msgspec.json.encode(IndexLine(index=1, status="quarantined", reason="NaN")) + b"\n")
    bad = states_of(sample(1))
    bad[0][2, 3] = math.nan
    (data / "dumps").mkdir(exist_ok=True)
    dump = write_both(data / "dumps", sample(1), bad)
    shutil.copytree(dump, data / "set.quarantine" / "sample_1" / dump.name)
    view = Samples(folder, LocalWorker).look(1)
    assert view.line is not None
    assert view.line.status == "quarantined"
    assert view.ids == sample(1).input_ids
    assert view.tensors[0].bad == 1


def test_tokens_show_their_mask_without_colour(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.CALLS, "describe_sample", calls.CALLS.get("describe_sample", describe_sample))
    view = Samples(build(data / "set", "speculators-v1"), LocalWorker).look(0)
    ids = sample(0).input_ids
    head, tail = (" ".join(map(str, part)) + " " for part in (ids[:5], ids[5:]))
    assert tokens_text(view).plain == f"{head}⟦{tail}⟧"
    hostile = msgspec.structs.replace(view, pieces=(HOSTILE, *map(str, ids[1:])))
    assert "\x1b" not in tokens_text(hostile).plain


# The screen


async def shown(app: FakeApp, pilot: Pilot[Any]) -> ExtractionScreen:
    screen = app.screen
    assert isinstance(screen, ExtractionScreen)
    await until(pilot, lambda: screen.detail is not None)
    return screen


def test_the_mode_shows_a_run_and_its_keys_start_commands(data: Path) -> None:
    out = data / "run"
    files = running(out, dump_n=423, waiting_bytes=1 << 30, high_water_bytes=4 << 30)
    folder = str(out)

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(120, 40)) as pilot:
            screen = await shown(app, pilot)
            seen = screen_text(app)
            for words in ("run - speculators-v1", "40.0 %", "400 / 1,000", "req_423", "1/4 GiB", "tok/s"):
                assert words in seen, words
            await pilot.press("p")
            files.pause.touch()
            screen.poller.wake()
            await until(pilot, lambda: screen.detail is not None and screen.detail.pausing)
            await pilot.press("p", "x")
            await until(pilot, lambda: app.screen is not screen)
            await pilot.press("y")
            await pilot.press("v", "r")
            assert app.started == [
                ("job", "pause", folder),
                ("job", "continue", folder),
                ("job", "stop", folder),
                ("verify", folder, "--partial", "--json"),
            ], "a running job is not resumed"
            assert "resume" not in screen_text(app)
            files.save(job_file(out, started=time.time() - 60, alive=False))
            screen.poller.wake()
            await until(pilot, lambda: _sees(app, "killed") and _sees(app, "r resume"))

    run(go())


def test_an_ended_run_is_resumed_and_not_stopped(data: Path) -> None:
    ended(data / "run", "stopped")

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(120, 40)) as pilot:
            screen = await shown(app, pilot)
            assert [screen.check_action("do", (f"extraction.{verb}",)) for verb in ("stop", "pause", "resume")] == [
                False,
                False,
                True,
            ]
            await pilot.press("x", "p", "r")
            await until(pilot, lambda: app.started == [("extract", "--resume", str(data / "run"))])

    run(go())


def test_the_form_for_a_new_data_set_and_read_only(data: Path) -> None:
    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(110, 40)) as pilot:
            await until(pilot, lambda: "no run is known" in screen_text(app))
            await pilot.press("n")
            await until(pilot, lambda: app.screen.query("#field-1"))
            for number, words in enumerate(("d.jsonl", "out")):
                app.screen.query_one(f"#field-{number}", Input).value = words
            await pilot.press("ctrl+r")
            await until(pilot, lambda: app.started)
            assert app.started == [("extract", "d.jsonl", "--out", "out", "--format", "speculators-v1")]
        quiet = app_with("extraction", config=Config(app=AppSettings(readonly=True)))
        async with quiet.run_test(size=(110, 40)) as pilot:
            await until(pilot, lambda: "no run is known" in screen_text(quiet))
            await pilot.press("n")
            await until(pilot, lambda: isinstance(quiet.screen, ExtractionScreen))

    run(go())


def test_a_run_is_attached_by_its_folder_and_filtered(data: Path) -> None:
    foreign_rows(data / "theirs", 30, size=100)
    ended(data / "ours")

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(120, 40)) as pilot:
            screen = await shown(app, pilot)
            await pilot.press("o")
            await until(pilot, lambda: app.screen.query("#field-0"))
            app.screen.query_one("#field-0", Input).value = str(data / "theirs")
            await pilot.press("ctrl+r")
            await until(pilot, lambda: screen.detail is not None and screen.detail.folder == str(data / "theirs"))
            assert "no job of hsbench" in screen_text(app)
            screen.search("OURS")
            await pilot.pause()
            await until(pilot, lambda: screen.query_one(RowTable).keys() == [str(data / "ours")])
            screen.search("")
            await pilot.pause()
            await until(pilot, lambda: len(screen.query_one(RowTable).keys()) == 2)

    run(go())
    assert load_book().attached == (Attached(str(data / "theirs")),)


REPORT = (
    '{"folder":"F","format":"speculators-v1","samples":5,"checked":5,"tokens":60,"trained":30,"nbytes":9,'
    '"read_seconds":1.0,"seconds":2.0,"verdict":"failed","checks":[{"name":"files","outcome":"failed",'
    '"detail":"[/red] cut"}],"problems":[{"check":"files","message":"[/red] cut","file":"a"}],'
    '"tensors":[{"name":"aux_0","row_norm":2.5,"std":null}]}'
)


def test_an_audit_is_shown_when_it_ends_and_its_verdict_is_kept(data: Path) -> None:
    ended(data / "run")
    around = Given(Surroundings((), ()))

    async def go() -> None:
        app = app_with("extraction")
        app._poller.source = around
        async with app.run_test(size=(120, 40)) as pilot:
            screen = await shown(app, pilot)
            await pilot.press("v")
            await until(pilot, lambda: app.started == [("verify", str(data / "run"), "--json")])
            one = task(*app.started[0], name="task-1")
            one.folder.mkdir(parents=True)
            (one.folder / "out").write_text(REPORT + "\n")
            around.now = Surroundings((), (TaskView(one, "failed"),))
            await until(pilot, lambda: app.screen is not screen)
            assert "1 faults" in screen_text(app)
            assert "[/red] cut" in screen_text(app)
            await pilot.press("escape")
            await until(pilot, lambda: "faulty" in screen_text(app))
            await pilot.press("V")
            await until(pilot, lambda: app.screen is not screen)

    run(go())


def test_errors_open_in_a_text(data: Path) -> None:
    files = running(data / "run")
    tell(files, Told(time=2.0, text=HOSTILE, level="error", index=7))

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(120, 40)) as pilot:
            screen = await shown(app, pilot)
            await pilot.press("e")
            await until(pilot, lambda: app.screen is not screen)
            assert "row 7: [/red] [bold]x[/]" in screen_text(app)

    run(go())


def test_the_inspector_goes_from_sample_to_sample(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.CALLS, "describe_sample", calls.CALLS.get("describe_sample", describe_sample))
    monkeypatch.setattr(ExtractionScreen, "samples_of", lambda self, folder: Samples(Path(folder), LocalWorker))
    build(data / "run", "speculators-v1")
    ended(data / "run")

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(110, 34)) as pilot:
            await shown(app, pilot)
            await pilot.press("i")
            await until(pilot, lambda: isinstance(app.screen, SampleScreen) and app.screen.view is not None)
            screen = app.screen
            assert isinstance(screen, SampleScreen)

            async def at(number: int) -> None:
                await until(pilot, lambda: screen.view is not None and screen.view.index == number)

            await at(0)
            await pilot.press("right_square_bracket")
            await at(1)
            await pilot.press("left_square_bracket", "left_square_bracket")
            await at(0)
            await pilot.press("3", "enter")
            await at(3)
            assert "13 tokens, 7 trained on" in screen_text(app)
            assert "bfloat16" in screen_text(app)
            await pilot.press("9", "9", "enter")
            await at(4)
            screen.post_message(SampleScreen.Looked(SampleView(index=2)))
            await pilot.pause()
            await until(pilot, lambda: screen.view is not None)
            assert screen.view.index == 4, "an answer that came too late is not shown"
            await pilot.resize_terminal(80, 24)
            shutil.rmtree(data / "run")
            await pilot.press("left_square_bracket")
            await at(3)
            await pilot.press("2", "escape", "escape")
            await until(pilot, lambda: isinstance(app.screen, ExtractionScreen))

    run(go())


def _sees(app: FakeApp, words: str) -> bool:
    return words in screen_text(app)


def test_hostile_names_numbers_and_sizes(data: Path) -> None:
    name = "[/red] [bold]x[rank0]"
    view = run_view(
        folder=f"/data/{name}",
        why=HOSTILE,
        next_step=HOSTILE,
        rows=10,
        dump_dir=HOSTILE,
        tok_s_now=math.nan,
        eta_s=math.inf,
        history=tuple((float(n), math.nan if n % 2 else math.inf) for n in range(40)),
        messages=(Told(time=math.nan, text=HOSTILE, level="error", index=3),),
        slowest=(Slow(1, 2, math.nan),),
    )
    detail = Detail(folder=view.folder, view=view, job=job_file(data), running=True, remark=HOSTILE)
    run_row = RunRow(folder=view.folder, state="running", written=5, rows=10, running=True)
    source = Given(Snapshot(runs=(run_row,), detail=detail))
    source.chosen = ""  # type: ignore[attr-defined]

    async def go() -> None:
        for ascii_only in (False, True):
            source.now = Snapshot(runs=(run_row,), detail=detail)
            app = app_with("extraction", source, config=Config(app=AppSettings(ascii=ascii_only)))
            async with app.run_test(size=(160, 50)) as pilot:
                await until(pilot, partial(_sees, app, name))
                for number, size in enumerate(((80, 24), (110, 34), (20, 6), (160, 50))):
                    await pilot.resize_terminal(*size)
                    finite = tuple((float(n), float(n * number)) for n in range(30))
                    newer = msgspec.structs.replace(view, history=finite if number % 2 else view.history)
                    source.now = Snapshot(runs=(run_row,), detail=msgspec.structs.replace(detail, view=newer))
                    await pilot.pause(0.1)
                await until(pilot, partial(_sees, app, name))
                assert "\x1b" not in screen_text(app)
                if ascii_only:
                    assert all(ord(c) < 128 for c in screen_text(app)), screen_text(app)
                source.now = Snapshot(runs=(RunRow(folder=view.folder, kind="lost", problem=HOSTILE),))
                await pilot.pause(0.1)

    run(go())


def test_the_folder_and_the_state_folder_are_deleted_under_it(data: Path, tmp_path: Path) -> None:
    running(data / "run")

    async def go() -> None:
        app = app_with("extraction")
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await shown(app, pilot)
            shutil.rmtree(data / "run")
            screen.poller.wake()
            await until(pilot, lambda: screen.detail is not None and bool(screen.detail.problem))
            assert "lost" in screen_text(app)
            shutil.rmtree(tmp_path / "state")
            screen.runs.relist()
            screen.poller.wake()
            await until(pilot, lambda: "no run is known" in screen_text(app))

    run(go())


def test_a_look_costs_the_same_for_any_number_of_samples(data: Path) -> None:
    """Bytes read at a look, not time: of the list's tail and of what was appended."""
    read: dict[int, int] = {}
    for count in (1000, 10_000):
        now = time.time()
        files = make_job(data / str(count), [preflight(time=now)], started=now - 1)
        line = msgspec.json.encode(picture(5, 500, time=now)) + b"\n"
        with open(files.events, "ab") as file:
            file.write(line * count)
        source = ExtractionSource()
        source.chosen = str(files.out)
        roster.note(files.out)
        source.collect()
        before = _bytes_read()
        source.collect()
        read[count] = _bytes_read() - before
    assert abs(read[10_000] - read[1000]) < 10_000
    assert read[10_000] < 100_000


def _bytes_read() -> int:
    facts = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
    return int(next(line for line in facts if line.startswith("rchar")).split()[1])


def test_the_writer_and_the_inspector_agree_where_a_bad_sample_goes(data: Path) -> None:
    from tests.unit.extract_support import local_pool, run_record

    (data / "dumps").mkdir()
    bad = states_of(sample(0))
    bad[0][2, 3] = math.nan
    with local_pool() as pool:
        writer = DatasetWriter(data / "set", run_record("speculators-v1", 1), pool)
        line = writer.write(sample(0), write_both(data / "dumps", sample(0), bad))
        writer.close()
    assert line.status == "quarantined"
    view = Samples(data / "set", LocalWorker).look(0)
    assert load_record(data / "set") is not None
    assert view.tensors[0].bad == 1
    assert troubles(data / "set").quarantined[0][0] == 0
