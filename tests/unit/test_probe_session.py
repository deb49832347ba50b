"""Which server a probe uses, and who stops it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from workbench.errors import HsbenchError, Missing, ServerDied, ServerError, UsageError
from workbench.probe import session
from workbench.probe.lease import Lease
from workbench.probe.options import ProbeOptions
from workbench.probe.prompt import Prompt
from workbench.probe.session import Target, check_folder, explained
from workbench.server.specs import DumpSpec
from workbench.server.state import ServerRecord

OPTIONS = ProbeOptions(prompt=Prompt(text="Hi"))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerRecord:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return ServerRecord(
        name="one", pid=1, since_boot=1.0, create_time=1.0, argv=(), env={}, url="http://127.0.0.1:1", host="127.0.0.1",
        port=1, model="/models/a", python=sys.executable, engine_version="0", device="cpu", log=str(tmp_path / "log"),
        dump=DumpSpec("/dumps", (2, 15), route="patch"), started=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model": "/models/b"}, "the model /models/a, not /models/b"),
        ({"model": "demo"}, "the model /models/a, not"),
        ({"device": "cuda"}, "the device cpu, not cuda"),
        ({"dump_dir": Path("/other")}, "the dump folder /dumps, not /other"),
        ({"layers": (2, 16)}, "the blocks 2,15, not 2,16"),
        ({"capture": "builtin"}, "the route patch, not builtin"),
        ({"python": "/bin/sh"}, "the interpreter"),
    ],
)
def test_options_that_contradict_the_running_server(record: ServerRecord, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        session.check_same(msgspec.structs.replace(OPTIONS, **asked), record)


def test_options_that_agree_or_say_nothing(record: ServerRecord) -> None:
    same = msgspec.structs.replace(
        OPTIONS, model="/models/a", device="cpu", layers=(2, 15), dump_dir=Path("/dumps"), python=sys.executable
    )
    refused = []
    for options in (OPTIONS, same):
        try:
            session.check_same(options, record)
        except UsageError as error:
            refused.append(error.message)
    assert refused == []


def test_a_server_that_records_nothing(record: ServerRecord) -> None:
    with pytest.raises(UsageError, match="records no hidden states"):
        session.check_same(OPTIONS, msgspec.structs.replace(record, dump=None))


def test_the_last_user_of_a_passing_server_stops_it(record: ServerRecord) -> None:
    with Lease(record) as first:
        first.mark_passing()
        with Lease(record) as second:
            pass
        assert not second.last
    assert first.last
    assert first.passing


def test_a_server_to_keep_is_stopped_by_nobody(record: ServerRecord) -> None:
    with Lease(record) as first:
        first.mark_passing()
        with Lease(record) as second:
            second.keep()
    assert first.last
    assert not first.passing


def test_the_mark_of_an_older_server_does_not_count(record: ServerRecord) -> None:
    with Lease(record) as lease:
        lease.mark_passing()
    with Lease(msgspec.structs.replace(record, pid=2)) as lease:
        assert not lease.passing


def test_a_lease_ends_with_its_process(record: ServerRecord) -> None:
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_SH); print(1, flush=True); "
        "time.sleep(60)"
    )
    with Lease(record) as lease:
        command = [sys.executable, "-c", code, str(record.folder / ".users")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            other.kill()
            other.wait()
    assert lease.last


def target(tmp_path: Path, **changes: Any) -> Target:
    return Target(url="http://x", dump_dir=str(tmp_path / "dumps"), python=sys.executable, **changes)


def test_a_dump_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="is gone"):
        check_folder(target(tmp_path))
    (tmp_path / "dumps").mkdir()
    check_folder(target(tmp_path))


def test_a_dump_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dumps").mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(Missing, match="cannot be written"):
        check_folder(target(tmp_path))


def test_a_death_is_told_from_a_broken_answer(tmp_path: Path, record: ServerRecord) -> None:
    Path(record.log).write_text("line one\nValueError: out of luck\n")
    broken: HsbenchError = ServerError("broke off")
    dead = explained(target(tmp_path, record=record), broken)
    assert isinstance(dead, ServerDied)
    assert "one died during the probe" in dead.message
    assert "out of luck" in dead.details
    assert explained(target(tmp_path), broken) is broken


def test_nothing_answers_at_the_url(record: ServerRecord) -> None:
    with pytest.raises(ServerError, match="no server answers"):
        session._foreign(OPTIONS, "http://127.0.0.1:9")
    with pytest.raises(HsbenchError):
        session._foreign(OPTIONS, "http://[")


def test_time_is_finite() -> None:
    from workbench.commands.params import Seconds

    for given in ("nan", "inf", "1e300", "-1"):
        with pytest.raises(Exception, match=r"seconds|range|valid"):
            Seconds(min=0).convert(given, None, None)
    assert Seconds(min=0).convert("2.5", None, None) == 2.5


def test_blocks_that_the_model_does_not_have() -> None:
    from workbench.models.folder import ModelFacts
    from workbench.server.prepare import _check_blocks

    facts = ModelFacts("/m", num_blocks=30)
    _check_blocks((2, 28), facts)
    _check_blocks((99,), ModelFacts("/m"))
    for blocks in ((29,), (2, 99)):
        with pytest.raises(UsageError, match="has blocks 0 to 29"):
            _check_blocks(blocks, facts)


def test_a_cut_safetensors_file_is_found_at_once(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from workbench.models.folder import check_model

    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.zeros(100), "b": torch.zeros(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_model(str(tmp_path), needs_tokenizer=False)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for cut in (whole[:-1], whole[:20], b"", whole + b"x"):
        (tmp_path / "model.safetensors").write_bytes(cut)
        with pytest.raises(Missing, match="not a whole safetensors"):
            check_model(str(tmp_path), needs_tokenizer=False)


def test_a_routed_model_is_judged_by_its_median_token() -> None:
    import torch

    from probes.model import States
    from probes.reference import judge

    torch.manual_seed(0)
    blocks = tuple(torch.randn(40, 16) for _ in range(4))
    astray = blocks[1].clone()
    astray[5:9] += torch.randn(4, 16)  # four tokens went to other experts
    claim = SimpleNamespace(after_block=1, norm=None)
    meta: Any = SimpleNamespace(num_blocks=4, tensors={"aux": claim})

    def verdict(routed: bool, tensor: Any) -> str:
        states = States(torch.randn(40, 16), blocks, blocks[3], torch.randn(40, 16), routed)
        return judge(states, {"aux": tensor}, meta)[0].verdict

    assert verdict(True, astray) == "ok"
    assert verdict(False, astray) == "no match"
    assert verdict(True, blocks[2]) == "wrong block"
    assert verdict(True, torch.randn(40, 16)) == "no match"
