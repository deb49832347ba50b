"""`hsbench watch` from end to end, in this process and once on a real terminal."""

import functools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.watch_support import T0, foreign_rows, make_job, picture, preflight, tell
from workbench import cli
from workbench.exitcodes import ExitCode
from workbench.extract import watch
from workbench.extract.job.events import Ended, Slow, Told
from workbench.extract.watch.view import RunView
from workbench.render.charts import chart
from workbench.render.text import duration, harmless, room, short
from workbench.render.watch import watch_line

ROOT = Path(__file__).parents[2]
DONE = Ended(time=T0 + 60, state="done", message="1,000 samples")


def with_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    monkeypatch.setattr(watch, "looks", functools.partial(watch.looks, sleep=sleep))


def test_one_look_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_job(tmp_path, [preflight(), picture(10, 1000), DONE])
    assert cli.run(["watch", str(tmp_path), "--once", "--json"]) == ExitCode.OK
    out, said = capsys.readouterr()
    found = json.loads(out)
    assert (found["state"], found["written"], found["tok_s_avg"], said) == ("done", 10, 100.0, "")
    assert found.keys() == set(RunView.__struct_fields__)


def test_one_look_as_a_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(time=T0, text="bad \x1b[2J\rrow", level="error", index=7)
    make_job(tmp_path, [preflight(), told, picture(10, 1000, slowest=(Slow(3, 2048, 75.0),), dump_n=12), DONE])
    assert cli.run(["watch", str(tmp_path), "--once"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out
    for part in ("done: 1,000 samples", "1.0 %", "10/1,000 samples", "row 3: 1 min 15 s for 2,048", "req_12"):
        assert part in out
    assert "row 7: bad \\x1b[2J\\rrow" in out


def test_the_help_loads_nothing_heavy() -> None:
    code = "import sys, workbench.cli; workbench.cli.run(['watch', '--help']); print('LOADED', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Ctrl-C ends the\n  watching, not the run" in out
    assert not {"torch", "rich", "plotext", "psutil"} & set(out.rpartition("LOADED")[2].split())


def test_a_name_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_job(tmp_path / "[bold]x[/nothing]", [picture(10, 1000), DONE])
    assert cli.run(["watch", str(tmp_path / "[bold]x[/nothing]"), "--once"]) == ExitCode.OK
    assert "[bold]x[/nothing]" in capsys.readouterr().out


def test_it_ends_by_itself_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_job(tmp_path, [preflight(), picture(10, 1000)])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        tell(files, DONE if len(slept) == 75 else picture(10 + len(slept), 1000 + 100 * len(slept)))

    with_sleep(monkeypatch, sleep)
    assert cli.run(["watch", str(tmp_path)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # at 0, 30 and 60 seconds, and the end
    assert sum(slept) == 75
    assert lines[-1].startswith("done: 1,000 samples")


@pytest.mark.parametrize(
    ("state", "code"), [("failed", ExitCode.CHECK_FAILED), ("stopped", ExitCode.OK), ("done", ExitCode.OK)]
)
def test_the_exit_code_is_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, code: ExitCode
) -> None:
    end = Ended(time=T0 + 60, state=state, message="too bad", next_step="try it")  # type: ignore[arg-type]
    make_job(tmp_path, [picture(10, 1000), end], alive=False)
    assert cli.run(["watch", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert said == ("hsbench: the run failed: too bad\n  next: try it\n" if state == "failed" else "")


def test_a_killed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_job(tmp_path, [picture(10, 1000)], alive=False)
    assert cli.run(["watch", str(tmp_path)]) == ExitCode.CHECK_FAILED
    out, said = capsys.readouterr()
    assert out.startswith("killed: ")
    assert said.endswith(f"  next: hsbench extract --resume {tmp_path}\n")
    assert said.count("\n") == 2


def test_ctrl_c_ends_the_watching_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    foreign_rows(tmp_path, 3)
    with_sleep(monkeypatch, sleep)
    assert cli.run(["watch", str(tmp_path), "--every", "5"]) == ExitCode.OK
    out, said = capsys.readouterr()
    assert "3 samples" in out
    assert "the run goes on" in said


@pytest.mark.parametrize("name", ["empty", "none"])
def test_nothing_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.run(["watch", str(tmp_path / name)]) == ExitCode.USAGE
    out, said = capsys.readouterr()
    assert out == ""
    assert len(said.splitlines()) == 2
    assert "next: give the folder that --out named" in said


def test_the_line() -> None:
    gib = 1 << 30
    view = RunView(
        kind="own",
        folder="/out",
        time=T0,
        state="running",
        rows=10_000,
        written=1230,
        tokens=2_100_000,
        tok_s_now=38_100.0,
        tok_s_avg=36_900.0,
        plain_share=0.92,
        bytes_s_now=1.2e9,
        eta_s=4320.0,
        dump_n=1231,
        waiting_bytes=int(3.1 * gib),
        high_water_bytes=64 * gib,
        free_bytes=812 * gib,
        estimated=("eta_s",),
        at_least=("waiting_bytes",),
    )
    assert watch_line(view).replace(" | ", " · ").replace(">=", "≥") == (
        "12.3 % · 1,230/10,000 samples · 2.1 M tokens · 38.1k tok/s now, 36.9k avg (92 % of plain prefill) · "
        "1.2 GB/s · ETA ~1 h 12 min · req_1231 · waiting ≥ 3.1/64 GiB · disk 812 GiB free"
    )


def test_units() -> None:
    assert [short(n) for n in (0, 7.25, 999, 1000, 38_149, 999_999, 2.1e6, 3e12)] == [
        "0",
        "7.25",
        "999",
        "1.0k",
        "38.1k",
        "1.0M",
        "2.1M",
        "3.0T",
    ]
    assert [room(n) for n in (0, 1023, 1024, 1536 << 20, 812 << 30, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 GiB",
        "812 GiB",
        "5120 TiB",
    ]
    assert [duration(s) for s in (0, 59.4, 59.6, 3599, 3600, 360_000)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
        "100 h 00 min",
    ]
    assert harmless("a\x1b]0;x\x07\n\u202eb\udc80") == "a\\x1b]0;x\\x07\\n\\u202eb\\udc80"


def test_a_chart_needs_plotext_room_and_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [(0.0, 1.0), (1.0, 2.0)]
    assert chart(points, "rate", 59) == ""
    assert chart(points[:1], "rate", 80) == ""
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert chart(points, "rate", 80) == ""


def test_a_chart(tmp_path: Path) -> None:
    # In a process of its own: a number that plotext does not like would abort this one.
    code = (
        "from workbench.render.charts import chart\n"
        "print(chart([(0, 10.0), (1, float('nan')), (2, 30.0), (3, float('inf')), (4, 20.0)], 'rate', 70, 10))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 70
    assert lines[0].strip() == "rate"
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal(tmp_path: Path, colour: bool) -> None:
    make_job(tmp_path, [preflight(), *(picture(s, 100 * s) for s in range(0, 60, 5)), DONE])
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    if not colour:
        environment["NO_COLOR"] = "1"
    command = [sys.executable, "-m", "workbench.cli", "watch", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    shown = b""
    while piece := _read(leader):
        shown += piece
    os.close(leader)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    text = shown.decode()
    assert "100 tok/s avg" in text
    assert "━" in text
    assert ("\x1b[38;" in text) == colour


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # the other end is closed
        return b""
