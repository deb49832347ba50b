"""What the tests of extraction share: a worker in this process, a run, and samples from dumps of the real recorder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patches.recorder.passes import Slot
from patches.recorder.store import DumpStore
from probes import worker
from tests.unit.probes_support import BLOCKS, HIDDEN
from workbench.extract.pool import WorkerPool
from workbench.extract.record import Engine, Format, RunRecord, Source, States
from workbench.extract.sample import Sample
from workbench.extract.writer import DatasetWriter
from workbench.worker import Worker


class LocalWorker(Worker):
    """Answers through the worker's own code, JSON lines included, without a process."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.calls: list[str] = []

    def call(self, name: str, **arguments: Any) -> Any:
        self.calls.append(name)
        reply = worker.answer(json.dumps({"id": 1, "call": name, "args": arguments}).encode())
        return self._result(json.loads(json.dumps(reply)))

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass


def local_pool() -> WorkerPool:
    return WorkerPool("here", 1, LocalWorker)


STATES = States(after_block=(0, 1, 2), num_blocks=BLOCKS, hidden_size=HIDDEN)


def run_record(kind: Format, rows: int = 5, **changes: Any) -> RunRecord:
    source = Source(path="data.jsonl", fingerprint="f0", rows=rows, form="input_ids", mask="column")
    engine = Engine(
        model="/models/tiny",
        sglang_version="0.5.23",
        patch_hash="abc",
        flags=("--disable-radix-cache",),
        nccl_env={"NCCL_P2P_DISABLE": "1"},
        versions={"torch": "2.14.1"},
    )
    whole: dict[str, Any] = {"format": kind, "states": STATES, "source": source, "engine": engine, "created": 1e9}
    return RunRecord(**{**whole, **changes})


def sample(index: int, tokens: int | None = None) -> Sample:
    """Ids that differ from row to row; the second half is trained on."""
    tokens = tokens or 10 + index
    ids = tuple((7 * index + 3 * place + 1) % 251 for place in range(tokens))
    return Sample(index=index, input_ids=ids, loss_mask=tuple(int(place >= tokens // 2) for place in range(tokens)))


def states_of(one: Sample, count: int = 5) -> list[Tensor]:
    """Made-up states: three aux, pre-norm, post-norm; each of its own size, as in a real model."""
    generator = torch.Generator().manual_seed(1000 + one.index)
    scale = (2.0, 5.0, 9.0, 30.0, 1.0)
    rows = len(one.input_ids)
    return [(torch.randn(rows, HIDDEN, generator=generator) * scale[n]).to(torch.bfloat16) for n in range(count)]


def write_both(
    dump_dir: Path,
    one: Sample,
    tensors: Sequence[Tensor] | None = None,
    *,
    final: str = "both",
    **meta: Any,
) -> Path:
    """One dump by the recorder's own store: three aux, and the last state on one side of the norm or both."""
    tensors = tensors if tensors is not None else states_of(one)
    slots = [Slot(f"aux_{n}", n, n + 1, None) for n in range(3)]
    if final in ("pre", "both"):
        slots.append(Slot("final", BLOCKS - 1, None, "pre"))
    if final in ("post", "both"):
        slots.append(Slot("final_post" if final == "both" else "final", BLOCKS - 1, None, "post"))
    kept = [*tensors[:3], *(tensors[3:] if final == "both" else tensors[3:4] if final == "pre" else tensors[4:])]
    about = {
        "schema": 1,
        "request_id": f"hs-{one.index}",
        "forward_mode": "EXTEND",
        "token_ids": list(one.input_ids),
        "num_tokens": len(one.input_ids),
        "prefix_len": 0,
        "num_blocks": BLOCKS,
        "after_block": [0, 1, 2],
        "captured_entering": [1, 2, 3],
        "final_norm": "post" if final == "post" else "pre",
        "pass": {"index": 5, "requests": 1, "rows": len(one.input_ids), "row": 0},
        **meta,
    }
    before = {entry.name for entry in dump_dir.glob("req_*")}
    DumpStore(dump_dir).write(about["request_id"], [(s, t.clone()) for s, t in zip(slots, kept, strict=True)], about)
    (made,) = (entry for entry in dump_dir.glob("req_*") if entry.name not in before)
    return made


def build(folder: Path, kind: Format, rows: int = 5, **changes: Any) -> Path:
    """A finished data set of `rows` samples."""
    with local_pool() as pool:
        writer = DatasetWriter(folder, run_record(kind, rows, **changes), pool)
        for index in range(rows):
            line = writer.write(sample(index), write_both(folder.parent / "dumps", sample(index)))
            assert line.status == "written", line
        writer.finalise()
        writer.close()
    return folder
