"""Watching a job of ours. Expected rates come from arithmetic on the events, which are made by hand."""

from pathlib import Path

import pytest

from tests.unit.watch_support import T0, job_file, make_job, picture, preflight, tell
from workbench.errors import UsageError
from workbench.extract.job.events import Ended, JobEvent, Progress, Slow, Told
from workbench.extract.watch.own import Known, OwnRun, take, view
from workbench.extract.watch.view import HISTORY, RunView

OUT = Path("/out")


def seen(*events: JobEvent, now: float | None = None, alive: bool = True, started: float = T0) -> RunView:
    known = Known()
    for event in events:
        known = take(known, event)
    return view(known, job_file(OUT, started, alive), alive, events[-1].time if now is None else now, str(OUT))


def steady(start: int, end: int, rate: int, *, before: int = 0, step: int = 10) -> list[JobEvent]:
    """Pictures from `start` to `end` seconds of work at `rate` tokens a second, after `before` tokens."""
    return [picture(s, before + rate * (s - start)) for s in range(start, end + 1, step)]


def test_rates_now_and_on_average_and_what_follows_from_them() -> None:
    found = seen(preflight(plain_tok_s=3000.0), *steady(0, 30, 1000), *steady(40, 60, 2000, before=50_000))
    assert found.tok_s_now == pytest.approx((90_000 - 30_000) / 30)
    assert found.tok_s_avg == pytest.approx(90_000 / 60)
    assert found.bytes_s_now == pytest.approx(60_000 * 1000 / 30)
    assert found.bytes_s_avg == pytest.approx(90_000 * 1000 / 60)
    assert found.samples_s_avg == pytest.approx(900 / 60)
    assert found.plain_share == pytest.approx(1500 / 3000)
    assert found.eta_s == pytest.approx((1e6 - 90_000) / 1500)
    assert (found.state, found.written, found.rows, found.share) == ("running", 900, 1000, 0.9)
    assert found.estimated == ()


def test_a_pause_is_in_no_rate() -> None:
    work = steady(0, 40, 100, step=5)
    pause = [picture(40, 4000, 40 + s, state="paused", why="the disk is full") for s in range(1, 600)]
    waiting = seen(*work, *pause)
    assert (waiting.state, waiting.why) == ("paused", "the disk is full")
    assert waiting.tok_s_now is None
    assert waiting.eta_s is None
    assert waiting.tok_s_avg == pytest.approx(100)
    again = seen(*work, *pause, *[picture(s, 4000 + 300 * (s - 40), 600 + s) for s in range(45, 71, 5)])
    assert again.tok_s_now == pytest.approx(300)
    assert again.tok_s_avg == pytest.approx((4000 + 300 * 30) / 70)
    assert all(rate in (pytest.approx(100), pytest.approx(300)) for _, rate in again.history)


def test_a_pause_does_not_grow_what_is_kept() -> None:
    known = Known()
    for number in range(5000):
        known = take(known, picture(40, 4000, 40 + number, state="paused"))
    assert len(known.window) <= 2


@pytest.mark.parametrize("told", [True, False], ids=["with a preflight", "without"])
def test_a_new_start_begins_its_own_series(told: bool) -> None:
    first = steady(0, 100, 1000)
    between: list[JobEvent] = [preflight(time=T0 + 150)] if told else []
    second = [picture(s, 100_000 + 500 * s, 200 + s, tokens_here=500 * s, samples_here=5 * s) for s in (0, 10, 20)]
    found = seen(*first, *between, *second)
    assert found.tok_s_now == pytest.approx(500)
    assert found.tok_s_avg == pytest.approx(500)
    assert found.tokens == 110_000


def test_a_start_that_has_no_counts_yet_leaves_the_earlier_ones() -> None:
    begun = Progress(time=T0 + 31, state="preflight")
    old = (picture(10, 1000), Ended(time=T0 + 20, state="stopped", message="by hand"))
    found = seen(*old, begun, now=T0 + 300, started=T0 + 30)
    assert (found.state, found.why, found.rows, found.written, found.tok_s_avg) == ("preflight", "", 1000, 10, None)
    first = seen(begun)
    assert (first.state, first.rows, first.written) == ("preflight", None, 0)


def test_before_the_first_picture() -> None:
    found = seen(preflight(done=20))
    assert (found.state, found.rows, found.written, found.tok_s_avg) == ("preflight", 1000, 20, None)
    assert found.estimated == ("written",)


def test_tokens_expected_of_some_rows_only_are_an_estimate() -> None:
    found = seen(preflight(looked_at=100), picture(10, 1000))
    assert found.estimated == ("tokens_expected", "eta_s")


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_an_end_is_told_with_its_next_step(state: str) -> None:
    end = Ended(time=T0 + 20, state=state, message="why", next_step="do this")  # type: ignore[arg-type]
    found = seen(picture(10, 1000), end, alive=False)
    assert (found.state, found.why, found.next_step, found.over) == (state, "why", "do this", True)
    assert found.eta_s is None


def test_a_job_whose_process_is_gone_without_an_end_was_killed() -> None:
    found = seen(picture(10, 1000), alive=False)
    assert found.state == "killed"
    assert found.next_step == "hsbench extract --resume /out"
    assert found.tok_s_now is None
    assert found.over


def test_an_end_of_an_earlier_start_is_none_of_this_one() -> None:
    old = (picture(10, 1000), Ended(time=T0 + 20, state="stopped", message="by hand"))
    assert seen(*old, started=T0 + 30).state == "preflight"
    assert seen(*old, started=T0 + 30, alive=False).state == "killed"
    assert seen(*old, preflight(time=T0 + 31), picture(1, 100, wall=33), started=T0 + 30).state == "running"


def test_a_job_that_says_nothing_is_said_to() -> None:
    found = seen(picture(10, 1000), now=T0 + 10 + 45)
    assert (found.state, found.why, found.tok_s_now) == ("running", "the job told nothing for 45 s", None)


def test_only_the_last_warnings_and_errors_are_shown() -> None:
    notes = [Told(time=T0, text=f"note {n}") for n in range(9)]
    warnings = [Told(time=T0, text=f"bad {n}", level="warning", index=n) for n in range(9)]
    slow = (Slow(7, 2048, 9.5),)
    found = seen(*warnings, *notes, picture(1, 100, slowest=slow, restarts=2, retries=3, dump_n=17, waiting_bytes=5))
    assert [told.text for told in found.messages] == [f"bad {n}" for n in range(4, 9)]
    assert (found.slowest, found.restarts, found.retries, found.dump_n, found.waiting_bytes) == (slow, 2, 3, 17, 5)


def test_the_history_is_bounded_and_in_seconds_of_work() -> None:
    found = seen(*steady(0, 10_000, 70, step=5))
    assert len(found.history) == HISTORY
    assert found.history[-1] == (T0 + 10_000, pytest.approx(70))


def test_only_new_events_are_read_and_half_a_line_waits(tmp_path: Path) -> None:
    files = make_job(tmp_path, [Told(time=T0, text="once", level="error"), preflight(), picture(10, 1000)])
    run = OwnRun(tmp_path)
    assert run.look().tokens == 1000
    tell(files, picture(20, 3000))
    with open(files.events, "ab") as file:
        file.write(b'{"type":"Progress","time":')
    assert run.look().tokens == 3000
    tell(files, picture(30, 4000))  # ends the half line first, as a start after a kill does
    found = run.look()
    assert (found.tokens, len(found.messages)) == (4000, 1)
    files.job.unlink()
    with pytest.raises(UsageError, match="gone"):
        run.look()


def test_a_look_at_a_long_run_reads_the_end_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_job(tmp_path, [picture(s, 100 * s) for s in range(3000)])
    whole = files.events.read_bytes()
    files.events.write_bytes(b"\0" * (len(whole) - 100_000) + b"\n" + whole[-99_999:])  # all but the end is unreadable
    found = OwnRun(tmp_path).look()
    assert found.tokens == 100 * 2999
    assert found.tok_s_avg == pytest.approx(100)


def test_an_end_is_told_from_that_of_another_start_by_its_number_when_the_clock_was_set_back() -> None:
    early = Ended(time=T0 - 3600, state="done", message="all", start=1)
    assert seen(picture(10, 1000), early, alive=False).state == "done"
    other = Ended(time=T0 + 20, state="done", message="all", start=7)
    assert seen(picture(10, 1000), other, alive=False).state == "killed"
