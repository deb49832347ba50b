"""Starting, following and stopping real processes; only SGLang itself is replaced by a small program."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from workbench.errors import RequestRefused, ServerDied, ServerError, TimedOut, UsageError
from workbench.server import ports, ready, state
from workbench.server.client import SglangClient
from workbench.server.engine import Engine
from workbench.server.events import Killing, PhaseChanged, Ready, Stopped, Stopping
from workbench.server.launch import plan, start, wait_ready
from workbench.server.specs import DumpSpec, LaunchSpec
from workbench.server.state import ServerRecord
from workbench.server.stop import stop
from workbench.server.survey import survey

FAKE = Path(__file__).with_name("fake_sglang.py")
Starter = Callable[..., ServerRecord]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An interpreter that runs the small program whatever module it is told to run."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    return Engine(str(python), "0.5.23", tmp_path, "2.14.1", cuda=False, has_cpu_platform=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for record in list(state.all_records()):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.pid, signal.SIGKILL)


@pytest.fixture
def begin(engine: Engine) -> Starter:
    def starter(how: str = "good", name: str = "one", port: int = 0, **more: object) -> ServerRecord:
        env = {"FAKE": how}
        spec = msgspec.structs.replace(LaunchSpec(model="/m", name=name, port=port, env=env), **more)
        return start(plan(spec, engine))

    return starter


def session_of(record: ServerRecord) -> list[int]:
    """Independent of the code under test: what `ps` says runs in the session."""
    listed = subprocess.run(["ps", "-eo", "pid=,sid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, sid, stat in rows if int(sid) == record.pid and not stat.startswith("Z")]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_start_shows_its_phases_and_ends_with_a_real_answer(begin: Starter) -> None:
    record = begin()
    events = list(wait_ready(record, 30))
    phases = [event.phase for event in events if isinstance(event, PhaseChanged)]
    assert phases == ["import", "start workers", "load weights", "kv cache", "warm-up", "ready"]
    assert isinstance(events[-1], Ready)
    saved = state.load("one")
    assert saved is not None
    assert saved.ready_after == events[-1].seconds
    assert '"POST /generate' in Path(record.log).read_text()


def test_a_server_that_logs_less_is_asked_all_the_same(begin: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "QUIET_S", 0.3)
    assert isinstance(list(wait_ready(begin("quiet"), 30))[-1], Ready)


def test_the_server_is_detached_and_sees_no_leaks(begin: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "/from/the/shell")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    record = begin()
    list(wait_ready(record, 30))
    assert os.getsid(record.pid) == os.getpgid(record.pid) == record.pid
    with SglangClient(record.url) as client:
        seen = client.model_info()
    assert "SGLANG_HS_DUMP_DIR" not in seen["environ"]
    assert "SGLANG_USE_CPU_ENGINE" not in seen["environ"]
    assert seen["environ"]["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert seen["environ"]["PYTHONUNBUFFERED"] == "1"
    assert seen["environ"]["SGLANG_PLATFORM"] == "hsbench_cpu"
    assert Path(seen["cwd"]) == record.folder
    assert os.readlink(f"/proc/{record.pid}/fd/0") == "/dev/null"


def test_what_the_recorder_is_told(begin: Starter, tmp_path: Path) -> None:
    dump = DumpSpec(str(tmp_path / "dumps"), (2, 15), "both", record_all=True)
    record = begin(dump=dump)
    list(wait_ready(record, 30))
    with SglangClient(record.url) as client:
        environ = client.model_info()["environ"]
    told = {name: value for name, value in environ.items() if name.startswith("SGLANG_HS_")}
    assert told == {
        "SGLANG_HS_DUMP_DIR": str(tmp_path / "dumps"),
        "SGLANG_HS_DUMP_BLOCKS": "2,15",
        "SGLANG_HS_DUMP_FINAL": "both",
        "SGLANG_HS_DUMP_ALL": "1",
    }


def test_a_server_that_dies_says_why_and_keeps_secrets(begin: Starter) -> None:
    record = begin("die", flags=("--api-key", "planted-key-1"))
    with pytest.raises(ServerDied) as caught:
        list(wait_ready(record, 30))
    error = caught.value
    assert "exit code 7" in error.message
    assert "not enough" in error.message
    assert "'kv cache'" in error.message
    assert "Load weight end" in error.details
    assert "api_key='***'" in error.details
    assert "'api_key': '***'" in error.details
    assert not session_of(record)


def test_a_server_with_an_api_key(begin: Starter) -> None:
    record = begin(flags=("--api-key", "planted-key-5"))
    with pytest.raises(RequestRefused) as caught:
        list(wait_ready(record, 30))
    assert "API key" in caught.value.next_step
    events = list(wait_ready(record, 30, SglangClient(record.url, api_key="planted-key-5")))
    assert isinstance(events[-1], Ready)


def test_the_record_on_disk_holds_no_secret(begin: Starter) -> None:
    flags = ("--api-key", "planted-key-2", "--admin-api-key=planted-key-3", "--log-level", "info")
    record = begin(flags=flags, env={"HF_TOKEN": "planted-key-4", "FAKE": "silent"})
    kept = (record.folder / "job.json").read_text()
    assert "planted" not in kept
    assert json.loads(kept)["argv"][-5:] == ["--api-key", "***", "--admin-api-key=***", "--log-level", "info"]
    wait_until(lambda: "planted-key-2" in Path(f"/proc/{record.pid}/cmdline").read_text())
    assert (record.folder / "server.log").stat().st_mode & 0o077 == 0


def test_a_server_that_never_answers_is_left_running(begin: Starter) -> None:
    record = begin("silent")
    with pytest.raises(TimedOut, match="does not answer"):
        list(wait_ready(record, 0.5))
    assert state.alive(record)


def test_stop_asks_first_and_leaves_nothing(begin: Starter) -> None:
    record = begin()
    list(wait_ready(record, 30))
    assert len(session_of(record)) == 3
    events = list(stop(record))
    assert [type(event) for event in events] == [Stopping, Stopped]
    assert not session_of(record)
    assert state.load("one") is None
    assert Path(record.log).exists()


def test_stop_kills_what_ignores_it(begin: Starter) -> None:
    record = begin("stubborn")
    list(wait_ready(record, 30))
    events = []
    for event in stop(record, grace_s=0.3):
        events.append(event)
        states = [seen.state for seen in survey()]
        assert states == ([] if isinstance(event, Stopped) else ["stopping"]), "an ordered end is no death"
    assert [type(event) for event in events] == [Stopping, Killing, Stopped]
    assert not session_of(record)


@pytest.mark.parametrize("how", ["good", "stubborn"])
def test_children_of_a_killed_server_are_seen_and_stopped(begin: Starter, how: str) -> None:
    record = begin(how)
    list(wait_ready(record, 30))
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not state.alive(record))
    [seen] = survey()
    assert seen.state == "dead"
    assert sorted(seen.pids) == sorted(session_of(record))
    assert len(seen.pids) == 2
    with pytest.raises(ServerError, match="died and left processes"):
        begin()
    list(stop(record, grace_s=0.3))
    assert not session_of(record)
    assert list(survey()) == []


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_number_given_on_to_another_process_is_never_touched(
    begin: Starter, stranger: "subprocess.Popen[bytes]"
) -> None:
    record = begin("silent")
    list(stop(record, grace_s=0))
    posing = msgspec.structs.replace(record, pid=stranger.pid, since_boot=record.since_boot - 60)
    posing.save()
    assert not state.alive(posing)
    [seen] = survey()
    assert (seen.state, seen.pids) == ("dead", ())
    assert [type(event) for event in stop(posing)] == [Stopped]
    posing.save()
    assert state.alive(begin())
    assert stranger.poll() is None


def test_a_taken_name_is_refused_with_its_owner(begin: Starter) -> None:
    first = begin()
    with pytest.raises(ServerError) as caught:
        begin()
    assert f"process {first.pid}" in caught.value.message
    assert first.url in caught.value.message


def test_the_log_before_is_kept_once(begin: Starter) -> None:
    record = begin("die")
    with pytest.raises(ServerDied):
        list(wait_ready(record, 30))
    begin()
    assert "ValueError" in (record.folder / "server.previous.log").read_text()


def test_a_busy_port_is_replaced_and_named(begin: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        busy = holder.getsockname()[1]
        record = begin(port=busy)
        assert record.port != busy
        assert f"port {busy} is not free, process {os.getpid()} " in record.port_note
        assert f"using {record.port}" in record.port_note
        list(wait_ready(record, 30))


def test_two_servers_never_get_the_same_port(begin: Starter) -> None:
    first = begin("silent", "one", 0)
    second = begin("silent", "two", first.port)
    assert not [c for c in psutil.Process(first.pid).net_connections() if c.laddr.port == first.port]
    assert second.port != first.port


def test_the_server_outlives_the_process_that_started_it(engine: Engine) -> None:
    code = (
        "import sys, msgspec\nfrom pathlib import Path\n"
        "from workbench.server.engine import Engine\nfrom workbench.server.launch import *\n"
        "engine = Engine(sys.argv[1], '0', Path('/'), '0', False, True)\n"
        "start(plan(LaunchSpec(model='/m', name='one', port=0), engine))\n"
    )
    subprocess.run([sys.executable, "-c", code, engine.python], check=True)
    record = state.load("one")
    assert record is not None
    assert isinstance(list(wait_ready(record, 30))[-1], Ready)
    [seen] = survey()
    assert (seen.state, len(seen.pids)) == ("ready", 3)
    list(stop(record))
    assert not session_of(record)


def test_a_server_that_falls_silent_is_said_to_be(begin: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.server.survey.ASK_TIMEOUT_S", 0.5)
    record = begin()
    assert [seen.state for seen in survey()] in (["starting"], ["ready"]), "it may have been quick"
    list(wait_ready(record, 30))
    os.kill(record.pid, signal.SIGSTOP)
    assert [seen.state for seen in survey()] == ["silent"]
    os.kill(record.pid, signal.SIGCONT)
    assert [seen.state for seen in survey()] == ["ready"]


def test_finding_a_record(begin: Starter) -> None:
    with pytest.raises(ServerError, match="no server was started"):
        state.find_record(None)
    first = begin("silent", "one")
    assert state.find_record(None) == first
    with pytest.raises(ServerError, match="no server is named 'two'"):
        state.find_record("two")
    begin("silent", "two")
    with pytest.raises(UsageError, match="one, two"):
        state.find_record(None)
    with pytest.raises(UsageError):
        state.folder_of("../out")


def test_half_a_record_is_none(begin: Starter) -> None:
    record = begin("silent")
    whole = (record.folder / "job.json").read_bytes()
    (record.folder / "job.json").write_bytes(whole[:50])
    assert state.load("one") is None
    assert list(state.all_records()) == []
    (record.folder / "job.json").write_bytes(whole)
    assert state.load("one") == record


def test_a_promised_port_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = ports.choose("127.0.0.1", 0, [])
    assert 30000 < first < 32768
    other = next(port for port in range(first + 1, 32768) if ports.is_free("127.0.0.1", port))
    monkeypatch.setattr(ports, "FREE_PORTS", range(first, other + 1, other - first))
    for _ in range(20):
        assert ports.choose("127.0.0.1", 0, {first})[0] == other
    with pytest.raises(ServerError, match="no free port"):
        ports.choose("127.0.0.1", 0, {first, other})
