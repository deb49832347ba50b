"""A data set that goes to an S3 server, with a real SGLang: connections cut, the job killed, gone on with elsewhere."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch

from tests.engine.conftest import Command
from tests.engine.human_eval import chats
from tests.unit.storage_support import KEYS, Cutter, check_recorded, moto, recorded, s3_environment
from workbench.storage.address import staging_folder
from workbench.storage.store import Store

pytestmark = pytest.mark.engine

ROWS = 30
URL = "s3://samples/run"
BATCHING = 0.03
"""What a state may differ by, relative to its size, when rows were batched in another way: bfloat16 has 8 bits."""


def wait_for(true: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 120
    while not true():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.05)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fetched(store: Store, name: str, folder: Path) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(store.read(name) or b"")
    return path


def test_a_run_to_s3_that_is_cut_and_killed_goes_on_on_another_machine(
    hsbench: Command, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, log = tmp_path / "chats.jsonl", tmp_path / "job.log"
    data.write_text("".join(json.dumps(row) + "\n" for row in chats(ROWS, 60)))
    some = ["--max-seq-len", "60", "--baseline", "0", "--min-free", "0.1", "--writers", "1"]
    plain = tmp_path / "plain"
    hsbench.ok("extract", str(data), "--out", str(plain), "--concurrency", "4", *some, "--foreground")
    with moto() as endpoint:
        for name, value in s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("samples")
        store = Store.open(URL)
        cutter = Cutter(endpoint)
        cutter.budget, cutter.cuts = 60_000, 4
        env = {**s3_environment(endpoint), "AWS_ENDPOINT_URL": cutter.url}
        first, second = staging_folder(URL, str(tmp_path / "one")), tmp_path / "two"
        command = [sys.executable, "-m", "workbench.cli", "extract", str(data), "--out", URL, *some, "--foreground"]
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [*command, "--concurrency", "1", "--staging", str(tmp_path / "one")],
                stdout=out,
                stderr=out,
                env={**hsbench.env, **env},
                cwd="/",
            )
        wait_for(lambda: lines_in(first / "index.jsonl") >= 3, process, log)
        (first / ".hsbench/pause").touch()
        wait_for(lambda: len(recorded(store)) >= 3, process, log)
        process.kill()
        process.wait()
        assert cutter.done > 0
        assert 3 <= check_recorded(store) < ROWS
        assert store.read("index.jsonl") is None
        told = hsbench.json("watch", URL, "--once", env=env)
        assert (told["state"], told["rows"]) == ("running", ROWS)
        done = hsbench("extract", "--resume", URL, "--staging", str(second), "--foreground", env=env)
        assert done.returncode == 0, done.stderr
        assert "rows are done" in done.stderr
        assert check_recorded(store) == ROWS
        audit = hsbench.json("verify", URL, "--all", "--workers", "1", env=env)
        assert (audit["verdict"], audit["checked"], audit["folder"]) == ("ok", ROWS, URL)
        compare(plain, store, tmp_path / "fetched")
        cutter.close()
    assert not list(second.rglob("*.pt"))
    for path in (path for place in (tmp_path, hsbench.home) for path in place.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in KEYS.values()), f"{path} holds a secret"


def compare(plain: Path, store: Store, folder: Path) -> None:
    """The same files, rows, ids and masks as in a folder; states as near as other batches make them."""
    held = {p.relative_to(plain).as_posix() for p in plain.rglob("*") if p.is_file() and ".hsbench" not in p.parts}
    assert {name for name in store.names() if not name.startswith("index/")} == held
    lines = {line["index"]: line for line in map(json.loads, (plain / "index.jsonl").read_text().splitlines())}
    stored = {line["index"]: line for line in map(json.loads, (store.read("index.jsonl") or b"").splitlines())}
    assert set(lines) == set(stored) == set(range(ROWS))
    for row, line in lines.items():
        assert (line["ids"], line["mask"], line["file"]) == tuple(stored[row][key] for key in ("ids", "mask", "file"))
        one = torch.load(plain / line["file"], weights_only=True)
        other = torch.load(fetched(store, line["file"], folder), weights_only=True)
        assert torch.equal(one["input_ids"], other["input_ids"])
        assert torch.equal(one["loss_mask"], other["loss_mask"])
        for x, y in zip(one["hidden_states"], other["hidden_states"], strict=True):
            assert float(((x.float() - y.float()).norm(dim=1) / x.float().norm(dim=1)).mean()) <= BATCHING
