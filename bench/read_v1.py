"""Does the reader of an old speculators release (0.3 to 0.7) load what `hsbench extract --format speculators-v1` wrote?

Usage, in an interpreter that has such a release: ``python -m bench.read_v1 DATASET``. Loads every sample and collates
packed batches, as its trainer does with ``--legacy-data``; prints what it saw. Exit code 1 when something does not fit.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Read the data set named on the command line."""
    folder = Path(sys.argv[1])
    data, collate = _reader(folder)
    config = json.loads((folder / "data_config.json").read_text())
    lengths = json.loads((folder / "sample_lengths.json").read_text())
    width, aux = config["model"]["hidden_size"], len(config["hsbench"]["after_block"])
    assert sorted(data.approx_lengths) == sorted(lengths.values()), "the lengths come from sample_lengths.json"
    tokens = trained = 0
    for number in range(len(data)):
        sample = data[number]
        rows = sample["input_ids"].shape[0]
        assert sample["hidden_states"].shape == (rows, aux * width), sample["hidden_states"].shape
        assert sample["verifier_last_hidden_states"].shape == (rows, width)
        assert sample["loss_mask"].shape == (rows,)
        tokens, trained = tokens + rows, trained + int(sample["loss_mask"].sum())
    batch = collate([data[number] for number in range(min(4, len(data)))])
    shapes = {key: tuple(value.shape) for key, value in batch.items()}
    version = importlib.metadata.version("speculators")
    print(f"speculators {version}: {len(data)} samples, {tokens} tokens, {trained} trained")
    print(f"one packed batch: {shapes}")
    whole = sum(lengths.values())
    assert len(data) == len(lengths), "every sample, and no other file"
    assert tokens in (whole, whole - len(data)), "0.4 and before shift ids against states, which costs a row a sample"
    return 0


def _reader(folder: Path) -> tuple[Any, Any]:
    """The data set and the collate function; `SampleFileDataset` has another name before 0.5."""
    from speculators.train import data

    kind = getattr(data, "SampleFileDataset", None) or data.Eagle3SampleFileDataset
    config = json.loads((folder / "data_config.json").read_text())
    wanted = {"max_len": 512, "hidden_size": config["model"]["hidden_size"]}
    known = inspect.signature(data.create_collate_fn).parameters
    collate = data.create_collate_fn(**{key: value for key, value in wanted.items() if key in known})
    return kind(max_len=512, datapath=str(folder)), collate


if __name__ == "__main__":
    sys.exit(main())
