"""A small data set from a real SGLang: written, read back, and verified against the same server and transformers."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probes.convert import file_crc32
from tests.engine.conftest import LAYERS, Command
from workbench.extract.dataset import Dataset, DatasetSettings
from workbench.extract.pool import WorkerPool
from workbench.extract.record import Engine, RunRecord, States
from workbench.extract.sample import Refused
from workbench.extract.writer import DatasetWriter
from workbench.probe.capture import capture
from workbench.probe.session import Target
from workbench.server.client import SglangClient

pytestmark = pytest.mark.engine

WORDS = ("ships", "lighthouses", "blue books", "keepers", "storms", "harbours", "ropes", "sails", "whales")


@pytest.fixture(scope="module")
def data(hsbench: Command, server: str, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine conversations captured one by one, the last row refused."""
    folder = tmp_path_factory.mktemp("extract")
    chats = [
        [_turn("user", f"Say something of {word}."), _turn("assistant", f"Some {word} are old.")] for word in WORDS
    ]
    rows = [{"messages": chat} for chat in [*chats, [_turn("user", "Nobody answers.")]]]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = Target(url=server, dump_dir=str(hsbench.home / "dumps"), python=sys.executable)
    states = States(after_block=LAYERS, num_blocks=30, hidden_size=576)
    with WorkerPool(sys.executable, 1) as pool, SglangClient(server) as client:
        with pool.borrow() as worker:
            settings = DatasetSettings(path=str(folder / "chats.jsonl"), model=str(demo_model))
            source = Dataset.open(settings, worker)
            samples = list(source.samples(range(source.rows)))
        engine = Engine(model=str(demo_model))
        record = RunRecord(format="speculators-v1", states=states, source=source.source(), engine=engine)
        writer = DatasetWriter(folder / "out", record, pool)
        for one in samples:
            if isinstance(one, Refused):
                writer.refuse(one)
                continue
            got = capture(target, client, one.input_ids, timeout_s=120)
            assert writer.write(one, Path(got.folder)).status == "written"
            assert not Path(got.folder).exists()
        writer.finalise()
        writer.close()
    return folder / "out"


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_it_is_green_against_the_server_and_transformers(hsbench: Command, server: str, data: Path) -> None:
    report = hsbench.json("verify", str(data), "--all", "--server", server, "--reference", "--deep", "3")
    assert (report["verdict"], report["checked"]) == ("ok", len(WORDS))
    assert {check["name"]: check["outcome"] for check in report["checks"]} == dict.fromkeys(
        [check["name"] for check in report["checks"]], "ok"
    )
    names = {check["name"] for check in report["checks"]}
    assert {"norm", "statistics", "source", "server", "log-probabilities", "reference"} <= names


def test_one_block_too_few_is_told_by_the_server(
    hsbench: Command, server: str, data: Path, reference_states: Callable[[list[int]], dict[str, Any]]
) -> None:
    path = data / "rows_0-2000/data_4.pt"
    held = torch.load(path, weights_only=True)
    held["hidden_states"][1] = reference_states(held["input_ids"].tolist())["14"].to(torch.bfloat16)
    torch.save(held, path)
    nbytes, crc = file_crc32(path)
    lines = [json.loads(line) for line in (data / "index.jsonl").read_text().splitlines()]
    lines[4].update(nbytes=nbytes, crc32=crc)
    (data / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert hsbench("verify", str(data), "--all").returncode == 0
    done = hsbench("verify", str(data), "--all", "--server", server, "--deep", "9", "--json")
    assert done.returncode == 1
    failed = {c["name"]: c["detail"] for c in json.loads(done.stdout)["checks"] if c["outcome"] == "failed"}
    assert set(failed) == {"server"}
    assert "data_4.pt: aux 1 (block 15) is" in failed["server"]
