"""`hsbench serve`, `status` and `stop` from end to end, with a small program in SGLang's place."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.fake_model import make_model, use_fake_engine
from workbench import cli
from workbench.exitcodes import ExitCode
from workbench.server import prepare, ready, state

FAKE = Path(__file__).with_name("fake_sglang.py")
Run = Any


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", context=65536)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fake_engine(tmp_path, monkeypatch, prepare)
    yield
    cli.run(["stop", "--all", "--grace", "0"])


def test_serve_status_stop(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", "--model", str(model), "--port", "0", "--", "--tp", "2"]) == ExitCode.OK
    out, said = capsys.readouterr()
    record = state.load("default")
    assert record is not None
    assert out == f"{record.url}\n"
    assert record.argv[-2:] == ("--tp", "2")
    assert record.argv[record.argv.index("--max-total-tokens") + 1] == "65536"
    for word in ("load weights", "answers", record.log):
        assert word in said
    assert cli.run(["status", "--json"]) == ExitCode.OK
    [seen] = json.loads(capsys.readouterr().out)["servers"]
    assert (seen["state"], seen["server"]["name"]) == ("ready", "default")
    assert cli.run(["status"]) == ExitCode.OK
    assert record.url in capsys.readouterr().out
    assert cli.run(["stop"]) == ExitCode.OK
    assert "no process is left" in capsys.readouterr().err
    assert not state.alive(record)
    assert cli.run(["stop", "default"]) == ExitCode.SERVER


def test_a_server_that_dies_leaves_only_its_log(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "die")
    assert cli.run(["serve", "--model", str(model)]) == ExitCode.SERVER
    out, said = capsys.readouterr()
    assert out == ""
    assert "default died in phase 'kv cache' (exit code 7): ValueError: not enough memory" in said
    assert "planted" not in said
    assert list(state.all_records()) == []
    assert (state.folder_of("default") / "server.log").exists()


def test_a_server_that_is_late_keeps_running(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "silent")
    assert cli.run(["serve", "--model", str(model), "--timeout", "0.3"]) == ExitCode.TIMEOUT
    assert "it still runs: hsbench stop default" in capsys.readouterr().err
    [record] = state.all_records()
    assert state.alive(record)


def interrupt(seconds: float) -> None:
    signal.raise_signal(signal.SIGINT)


def test_giving_up_the_wait_leaves_the_server(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "silent")
    clock = SimpleNamespace(sleep=interrupt, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(ready, "time", clock)
    assert cli.run(["serve", "--model", str(model)]) == ExitCode.INTERRUPTED
    assert "goes on starting; hsbench stop default ends it" in capsys.readouterr().err
    [record] = state.all_records()
    assert state.alive(record)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", ExitCode.USAGE, "Missing option '--model'"),
        ("--model /none", ExitCode.MISSING, "the model /none does not exist"),
        ("--model model extra", ExitCode.USAGE, "unexpected argument 'extra'"),
        ("--model model -- --port 1", ExitCode.USAGE, "--port is set by hsbench"),
        ("--model model --name ../x", ExitCode.USAGE, "'../x' cannot be a server's name"),
        (
            "--model model --layers 2",
            ExitCode.USAGE,
            "--layers, --final, --capture and --allow-chunked say what to record",
        ),
        ("--model model --dump-dir D --layers x", ExitCode.USAGE, "--layers 'x'"),
        ("--model model --dump-dir /proc/x", ExitCode.USAGE, "cannot write into /proc/x"),
        ("--model model --device cuda", ExitCode.MISSING, "PYTHON sees no CUDA device"),
        ("--model model --dump-dir D -- --pp-size 2", ExitCode.USAGE, "--pp-size 2 spreads the blocks"),
    ],
)
@pytest.mark.usefixtures("model")
def test_errors_come_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, code: ExitCode, message: str
) -> None:
    assert cli.run(["serve", *arguments.split()]) == code
    out, said = capsys.readouterr()
    assert out == ""
    assert f"hsbench: {message.replace('PYTHON', str(tmp_path / 'python'))}" in said
    assert "next: " in said
    assert "Traceback" not in said
    assert list(state.all_records()) == []
    assert not (tmp_path / "D").exists()


def test_stop_names_what_it_cannot_choose_from(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert cli.run(["serve", "--model", str(model), "--port", "0", "--name", name]) == ExitCode.OK
    assert cli.run(["stop"]) == ExitCode.USAGE
    assert cli.run(["stop", "one", "--all"]) == ExitCode.USAGE
    capsys.readouterr()
    assert cli.run(["stop", "--all"]) == ExitCode.OK
    assert list(state.all_records()) == []
    assert cli.run(["status"]) == ExitCode.OK
    assert capsys.readouterr().out == ""
