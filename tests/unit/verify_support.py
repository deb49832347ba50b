"""What the tests of `verify` share: a finished data set, ways to damage it, and the audit's outcome."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from probes.convert import digest, file_crc32
from tests.unit.extract_support import LocalWorker, local_pool, run_record, states_of, write_both
from workbench.extract.audit.report import Progress, VerifyReport
from workbench.extract.audit.run import VerifyOptions, verify
from workbench.extract.dataset import Dataset, DatasetSettings
from workbench.extract.formats import layout
from workbench.extract.index import INDEX_FILE
from workbench.extract.record import Engine, Format
from workbench.extract.sample import Sample
from workbench.extract.writer import DatasetWriter


def write_source(folder: Path, samples: Sequence[Sample]) -> Path:
    path = folder / "source.jsonl"
    rows = [{"input_ids": list(one.input_ids), "loss_mask": list(one.loss_mask)} for one in samples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(
    folder: Path,
    kind: Format,
    samples: Sequence[Sample],
    states: Callable[[Sample], Any] = states_of,
    *,
    model: str = "/models/tiny",
) -> Path:
    """A finished data set with its source beside it."""
    folder.mkdir()
    source = Dataset.open(DatasetSettings(path=str(write_source(folder, samples))), LocalWorker("here")).source()
    with local_pool() as pool:
        record = run_record(kind, len(samples), source=source, engine=Engine(model=model))
        writer = DatasetWriter(folder / "out", record, pool)
        for one in samples:
            line = writer.write(one, write_both(folder / "dumps", one, states(one)))
            assert line.status == "written", line
        writer.finalise()
        writer.close()
    return folder / "out"


def audit(folder: Path, server: Any = None, **options: Any) -> VerifyReport:
    with local_pool() as pool:
        *events, report = verify(VerifyOptions(folder=folder, **options), pool, server)
    assert isinstance(report, VerifyReport)
    assert any(isinstance(event, Progress) for event in events)
    return report


def failed(report: VerifyReport) -> dict[str, str]:
    assert (report.verdict == "failed") == any(check.outcome == "failed" for check in report.checks)
    return {check.name: check.detail for check in report.checks if check.outcome == "failed"}


def file_of(folder: Path, row: int) -> Path:
    kind = json.loads((folder / "hsbench.json").read_text())["format"]
    return folder / layout(kind).file_of(row)


def set_line(folder: Path, row: int, **changes: Any) -> None:
    """Change a row's line in the index, as one would who hides a fault."""
    lines = [json.loads(line) for line in (folder / INDEX_FILE).read_text().splitlines()]
    for line in lines:
        if line["index"] == row:
            line.update(changes)
    (folder / INDEX_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def plant(folder: Path, row: int, change: Callable[[dict[str, Any]], None], *, digests: bool = False) -> None:
    """Change what a file holds and make size and checksum in the index fit; with `digests` ids and mask too."""
    path = file_of(folder, row)
    held: dict[str, Any] = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True, mmap=False)
    )
    change(held)
    if path.suffix == ".safetensors":
        save_file(held, path)
    else:
        torch.save(held, path)
    nbytes, crc = file_crc32(path)
    set_line(folder, row, nbytes=nbytes, crc32=crc)
    if digests:
        ids = held["token_ids"] if "token_ids" in held else held["input_ids"]
        set_line(folder, row, ids=digest(ids), mask=digest(held["loss_mask"]))
