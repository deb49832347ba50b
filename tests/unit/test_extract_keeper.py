"""Which server a job takes: the one that runs, the one that ran, or one that is asked for now."""

import os
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from workbench.errors import UsageError
from workbench.extract.job.files import JobFiles
from workbench.extract.job.keeper import Keeper, _but_port
from workbench.extract.job.settings import ExtractSettings
from workbench.server import processes
from workbench.server.specs import DumpSpec
from workbench.server.state import ServerRecord


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def record(tmp_path: Path, *flags: str, alive: bool = True, **changes: Any) -> ServerRecord:
    """A server of ours; this process stands for one that runs."""
    me = psutil.Process()
    own = ("python", "-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "30017")
    whole = {
        "name": "default",
        "pid": os.getpid(),
        "since_boot": processes.since_boot(me) if alive else -5.0,
        "create_time": 0.0,
        "argv": (*own, *flags),
        "env": {},
        "url": "http://127.0.0.1:1",
        "host": "127.0.0.1",
        "port": 1,
        "model": "/m",
        "python": "here",
        "engine_version": "0",
        "device": "cpu",
        "log": str(tmp_path / "log"),
        "dump": DumpSpec(str(tmp_path / "dumps"), route="patch"),
        "started": 0.0,
        "ready_after": 1.0,
    }
    made = ServerRecord(**{**whole, **changes})
    made.save()
    return made


def keeper(tmp_path: Path, **settings: Any) -> Keeper:
    wanted = ExtractSettings(data="d", out=str(tmp_path / "out"), **settings)
    return Keeper(wanted, JobFiles(wanted.folder))


def test_flags_that_the_running_server_lacks_are_refused_and_secrets_not_shown(tmp_path: Path) -> None:
    record(tmp_path, "--tp-size", "2", "--api-key", "***")
    with pytest.raises(UsageError, match=r"was started without --mem-fraction-static 0\.7") as refused:
        list(keeper(tmp_path, flags=("--tp-size", "2", "--mem-fraction-static", "0.7")).open())
    assert "hsbench stop default" in refused.value.next_step
    with pytest.raises(UsageError) as refused:
        list(keeper(tmp_path, flags=("--x", "--api-key", "TOPSECRET")).open())
    assert "TOPSECRET" not in refused.value.message


def test_a_server_that_is_gone_is_not_started_again_against_what_is_asked(tmp_path: Path) -> None:
    record(tmp_path, alive=False, dump=DumpSpec("/d", (1, 2), route="patch"))
    with pytest.raises(UsageError, match="has the blocks"):
        list(keeper(tmp_path, layers=(1, 3)).open())


def test_without_a_server_or_a_model_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server named 'default' runs, and no model is named"):
        list(keeper(tmp_path).open())


def test_a_server_on_another_port_is_the_same(tmp_path: Path) -> None:
    one = record(tmp_path, "--tp-size", "2")
    other = msgspec.structs.replace(one, argv=tuple(word.replace("30017", "30099") for word in one.argv))
    assert _but_port(one) == _but_port(other)
    assert "--tp-size" in _but_port(one)
