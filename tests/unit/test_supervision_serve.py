"""`serve`, `status`, `stop`, `logs`, `restart` and `doctor` from end to end, with a small program in SGLang's place."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.fake_model import make_model, use_fake_engine
from workbench import cli
from workbench.exitcodes import ExitCode
from workbench.server import dryrun, launches, prepare, roster, state
from workbench.server.state import ServerRecord
from workbench.supervision import known_good

FAKE = Path(__file__).with_name("fake_sglang.py")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", context=8192)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fake_engine(tmp_path, monkeypatch, prepare, dryrun)
    yield
    for launch in launches.launches():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launch.pid, signal.SIGKILL)


def record_of(name: str = "default") -> ServerRecord:
    found = state.load(name)
    assert found is not None
    return found


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def session_of(session: int) -> list[int]:
    """Independent of the code under test: what `ps` says runs in the session."""
    listed = subprocess.run(["ps", "-eo", "pid=,sid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, sid, stat in rows if int(sid) == session and not stat.startswith("Z")]


def serve(model: Path, *arguments: str) -> int:
    return cli.run(["serve", "--model", str(model), "--port", "0", *arguments])


def test_a_good_start_is_learnt_and_told_of_in_the_next(model: Path, capsys: Capture) -> None:
    assert serve(model) == ExitCode.OK
    record = record_of()
    known = known_good.load(record.model, record.engine_version, record.argv)
    assert known is not None
    assert [m.phase for m in known.starts[0].milestones] == [
        "start workers",
        "load weights",
        "kv cache",
        "warm-up",
        "ready",
    ]
    assert known.lines == 5
    assert known.starts[0].seconds == record.ready_after
    capsys.readouterr()
    code = cli.run(["doctor", "--name", "default", "--seconds", "4", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {
        *("schema", "verdict", "phase", "confidence", "evidence", "against", "next_step", "lines", "lines_known_good")
    }
    assert (said["schema"], said["lines"], said["lines_known_good"]) == (1, 5, 5)
    assert said["verdict"] in ("READY", "READY_UNVERIFIED", "ZOMBIE_READY")
    assert code in (ExitCode.OK, ExitCode.UNSETTLED, ExitCode.BROKEN)


def test_the_wait_ends_with_the_verdict_and_leaves_the_server(
    model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "spin")
    assert serve(model, "--silence", "4") == ExitCode.BROKEN
    said = capsys.readouterr().err
    assert "default is broken: HUNG_SPIN(kv cache)" in said
    assert "spin (fake_sglang.py:" in said
    assert "the log has 3 lines" in said
    assert "planted" not in said
    record = record_of()
    assert state.alive(record)
    assert cli.run(["stop"]) == ExitCode.OK
    assert not session_of(record.pid)


def test_no_wait_returns_at_once(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "silent")
    assert serve(model, "--no-wait") == ExitCode.OK
    record = record_of()
    assert capsys.readouterr().out == f"{record.url}\n"
    wait_until(lambda: "Load weight end" in Path(record.log).read_text())
    assert cli.run(["status", "--json"]) == ExitCode.OK
    [seen] = json.loads(capsys.readouterr().out)["servers"]
    assert (seen["state"], seen["phase"]) == ("starting", "kv cache")


def test_a_killed_front_end_leaves_a_server_whose_status_is_true(model: Path, capsys: Capture, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom workbench import cli\nfrom workbench.server import prepare\n"
        "from workbench.server.engine import Engine\n"
        "engine = Engine(sys.argv[1], '0.5.23', Path('/'), '0', False, True)\n"
        "prepare.find_engine = lambda python: engine\n"
        "cli.run(['serve', '--model', sys.argv[2], '--port', '0'])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "python"), str(model)]
    with subprocess.Popen(command, env={**os.environ, "FAKE": "slow"}, stderr=subprocess.DEVNULL) as front_end:
        wait_until(lambda: state.load("default") is not None)
        front_end.kill()
    record = record_of()
    assert record.ready_after is None

    def seen() -> str:
        assert cli.run(["status", "--json"]) == ExitCode.OK
        return str(json.loads(capsys.readouterr().out)["servers"][0]["state"])

    wait_until(lambda: seen() == "ready")
    assert cli.run(["stop"]) == ExitCode.OK
    assert not session_of(record.pid)


def test_a_killed_child_is_named_by_status(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "ranks")
    assert serve(model) == ExitCode.OK
    record = record_of()
    known = roster.known(record)
    assert known is not None
    assert len(known.members) == 2
    os.kill(known.members[0].pid, signal.SIGKILL)
    wait_until(lambda: len(roster.lost(record)) == 1)
    capsys.readouterr()
    assert cli.run(["status", "--json"]) == ExitCode.OK
    out, said = capsys.readouterr()
    [seen] = json.loads(out)["servers"]
    assert seen["state"] == "broken"
    assert str(known.members[0].pid) in seen["lost"][0]
    assert "has lost sglang::schedul" in said
    assert cli.run(["doctor", "--name", "default", "--seconds", "2", "--json"]) == ExitCode.BROKEN
    assert json.loads(capsys.readouterr().out)["verdict"] == "DEAD_CHILD"
    assert cli.run(["stop"]) == ExitCode.OK
    assert not session_of(record.pid)


def test_orphans_of_ours_are_cleaned_and_no_others(
    model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "ranks")
    assert serve(model) == ExitCode.OK
    record = record_of()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: not state.alive(record))
        (record.folder / "job.json").unlink()
        assert len(session_of(record.pid)) == 2
        cli.run(["doctor"])
        assert "ours, left by default" in " ".join(capsys.readouterr().out.split())
        cli.run(["status"])
        assert "left by the dead server default: " in capsys.readouterr().err
        assert cli.run(["stop", "--orphans", "--grace", "1"]) == ExitCode.OK
        assert not session_of(record.pid)
        assert stranger.poll() is None
        stranger.kill()
    capsys.readouterr()
    assert cli.run(["stop", "--orphans"]) == ExitCode.OK
    assert "no orphans" in capsys.readouterr().err


def test_a_port_that_was_asked_for_is_refused_with_its_owner(model: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        assert cli.run(["serve", "--model", str(model), "--port", str(port)]) == ExitCode.SERVER
    assert f"port {port} is held by process {os.getpid()} " in capsys.readouterr().err
    assert state.load("default") is None


def test_restart_brings_back_the_same_server_with_its_secrets(model: Path, capsys: Capture) -> None:
    assert serve(model, "--", "--api-key", "planted-key-7", "--tp", "2") == ExitCode.OK
    before = record_of()
    assert cli.run(["restart"]) == ExitCode.OK
    after = record_of()
    assert (after.argv, after.port, after.model) == (before.argv, before.port, before.model)
    assert after.pid != before.pid
    assert not session_of(before.pid)
    assert "planted-key-7" in Path(f"/proc/{after.pid}/cmdline").read_text()
    os.kill(after.pid, signal.SIGKILL)
    wait_until(lambda: not state.alive(after))
    assert cli.run(["restart"]) == ExitCode.USAGE
    out, said = capsys.readouterr()
    assert "was started with secrets, which are not kept" in said
    assert "planted" not in out + said


def test_logs_show_the_end_masked_and_follow_to_the_end(model: Path, capsys: Capture) -> None:
    assert serve(model) == ExitCode.OK
    capsys.readouterr()
    assert cli.run(["logs"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "'api_key': '***'" in out
    assert "ready to roll" in out
    assert cli.run(["logs", "-n", "2"]) == ExitCode.OK
    assert len(capsys.readouterr().out.splitlines()) == 2
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "workbench.cli", "logs", "-f", "-n", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follower:
        record = record_of()
        with open(record.log, "a", encoding="utf-8") as log:
            time.sleep(1)
            log.write("added later, HF_TOKEN=planted-8\n")
        assert follower.stdout is not None
        assert follower.stdout.readline() == "added later, HF_TOKEN=***\n"
        assert cli.run(["stop"]) == ExitCode.OK
        assert follower.wait(30) == 0
    assert cli.run(["logs", "default"]) == ExitCode.OK
    assert cli.run(["logs", "none"]) == ExitCode.SERVER


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_the_end_of_a_log_is_found_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    from workbench.server import logview

    monkeypatch.setattr(logview, "BLOCK", 16)
    path = tmp_path / "log"
    lines = [f"line {number} {'x' * (number % 7)}" for number in range(40)]
    path.write_text("\n".join(lines) + "\n")
    assert list(logview.show(path, size)) == (lines[-size:] if size else [])


def test_a_profile_says_all_and_the_command_line_wins(model: Path, tmp_path: Path, capsys: Capture) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        'model = "model"\nname = "trainer"\nport = 0\ntp = 2\nflags = ["--log-level", "debug"]\n'
        '[environment]\nNCCL_P2P_DISABLE = "1"\nHF_TOKEN = "planted-9"\n'
        '[dump]\ndir = "d"\nblocks = [2, 15]\nfinal = "both"\n'
    )
    assert cli.run(["serve", "--profile", str(profile), "--dry-run", "--port", "4711"]) == ExitCode.OK
    out = capsys.readouterr().out
    words = out.split()
    assert f"--model-path {model}" in out
    assert "--port 4711" in out
    assert "--tp-size 2 --log-level debug" in out
    assert "NCCL_P2P_DISABLE=1" in words
    assert f"SGLANG_HS_DUMP_DIR={tmp_path / 'd'}" in words
    assert "SGLANG_HS_DUMP_BLOCKS=2,15" in words
    assert "PYTHONUNBUFFERED=1" in words
    assert "planted" not in out
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp = 'two'", "tp: Expected `int`, got `str`"),
        ("modell = 'x'", "Object contains unknown field `modell`"),
        ("[dump]\nblocks = [2]", "dump: Object missing required field `dir`"),
        ("[dump]\ndir = 'd'\nblocks = [2, 'x']", "dump.blocks[1]: Expected `int`, got `str`"),
        ("port = 70000", "port: Expected `int` <= 65535"),
        ("[environment]\nA = 1", "environment[...]: Expected `str`, got `int`"),
        ("model = ", "is not TOML"),
    ],
)
def test_a_wrong_profile_is_one_line_that_names_the_key(
    tmp_path: Path, capsys: Capture, text: str, message: str
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(text)
    assert cli.run(["serve", "--profile", str(profile)]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert message in said
    assert "next: " in said
    assert len(said.splitlines()) == 2
    assert cli.run(["serve", "--profile", str(tmp_path / "none")]) == ExitCode.USAGE


def test_wrong_flags_are_named_and_fixed_when_asked(model: Path, tmp_path: Path, capsys: Capture) -> None:
    dump = ["--dump-dir", str(tmp_path / "d")]
    wrong = ["--", "--chunked-prefill-size", "2048", "--enable-two-batch-overlap", "--pp-size=2"]
    short = ["--", "--max-prefill-tokens", "1024"]
    for flags, name in ((wrong, "--chunked-prefill-size 2048"), (short, "--max-prefill-tokens 1024")):
        assert serve(model, "--dry-run", *dump, *flags) == ExitCode.USAGE
        assert name in capsys.readouterr().err
    assert serve(model, "--dry-run", "--fix", *dump, *wrong, *short[1:]) == ExitCode.OK
    out, said = capsys.readouterr()
    assert "--chunked-prefill-size -1" in out
    assert "--pp-size 1" in out
    assert "--max-prefill-tokens 8192" in out
    assert "--disable-prefill-cuda-graph" in out
    assert "two-batch" not in out
    assert "2048 cuts a prompt into several passes; made --chunked-prefill-size -1" in said
    assert "splits a pass in two; left out" in said


def test_no_secret_is_written_anywhere(model: Path, tmp_path: Path, capsys: Capture) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        f'model = "{model}"\nport = 0\nflags = ["--api-key", "planted-1", "--log-url=https://me:planted-2@h/?token=planted-3"]\n'
        '[environment]\nHF_TOKEN = "planted-4"\nFAKE = "ranks"\nDB_URL = "http://h/x?a=1&api_key=planted-5&b=2"\n'
    )
    assert cli.run(["serve", "--profile", str(profile)]) == ExitCode.OK
    record = record_of()
    cli.run(["status"])
    cli.run(["status", "--json"])
    cli.run(["logs"])
    bundle = tmp_path / "b.tar.gz"
    assert cli.run(["doctor", "--name", "default", "--seconds", "2", "--bundle", str(bundle)]) != ExitCode.INTERNAL
    cli.run(["doctor", "--json"])
    cli.run(["serve", "--profile", str(profile), "--dry-run"])
    cli.run(["serve", "--profile", str(profile)])
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not state.alive(record))
    cli.run(["stop"])
    out, said = capsys.readouterr()
    assert "planted" not in out + said
    with tarfile.open(bundle) as archive:
        names = {Path(entry.name).name for entry in archive}
        assert names == {
            *("log.txt", "machine.json", "process.json", "samples.jsonl", "servers.json", "stacks.txt", "verdict.json")
        }
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            assert b"planted" not in file.read(), entry.name
    assert bundle.stat().st_mode & 0o077 == 0
    written = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != "server.log"]
    assert len(written) >= 3
    for path in written:
        assert b"planted" not in path.read_bytes(), path
