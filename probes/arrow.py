"""The Arrow data set beside `hs_N.safetensors`: row N has the ids and the mask of file N.

`speculators.train.data.ArrowDataset` takes row numbers for file numbers, so a row without a file has to exist: it is
empty, and the trainer leaves it out with `--on-missing skip`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes.errors import DumpError, PackageMissing

STATE_FILE = "state.json"
INFO_FILE = "dataset_info.json"


def write_arrow(folder: str, files: dict[str, str], rows: int) -> dict[str, Any]:
    """Write `state.json`, `dataset_info.json` and the Arrow file of `rows` rows, replacing what is there.

    Args:
        folder: The data set's folder.
        files: Path below `folder` of each row's file, by the row's number; rows that are not named are empty.
        rows: Number of rows.

    The switch is the renaming of `state.json`, last: a reader sees the old data set or the new one.
    """
    library = datasets_library()
    target = Path(folder)
    features = library.Features(
        {name: library.Sequence(library.Value("int64")) for name in ("input_ids", "loss_mask")}
        | {"seq_len": library.Value("int64")}
    )
    building = Path(tempfile.mkdtemp(prefix=".arrow.", suffix=".tmp", dir=target))
    try:
        made = library.Dataset.from_generator(
            _rows,
            features=features,
            cache_dir=str(building / "cache"),
            gen_kwargs={"folder": folder, "files": dict(files), "rows": rows},
        )
        made.set_format(type="torch")
        made.save_to_disk(str(building / "made"))
        del made
        names = _publish(building / "made", target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return {"files": names, "rows": rows}


def _rows(folder: str, files: dict[str, str], rows: int) -> Iterator[dict[str, Any]]:
    for number in range(rows):
        file = files.get(str(number))
        ids, mask = _ids_and_mask(Path(folder) / file) if file else ([], [])
        yield {"input_ids": ids, "loss_mask": mask, "seq_len": len(ids)}


def _ids_and_mask(path: Path) -> tuple[list[int], list[int]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("token_ids").tolist(), file.get_tensor("loss_mask").tolist()
    except (OSError, SafetensorError) as error:
        raise DumpError(f"{path} cannot be read: {error}") from None


def _publish(made: Path, target: Path) -> list[str]:
    """Move the new files in under names of their own, `state.json` last, then drop the old Arrow files."""
    state = json.loads((made / STATE_FILE).read_text(encoding="utf-8"))
    number = 1 + max((int(p.name.split("-")[1]) for p in target.glob("data-*-of-*.arrow") if _ours(p)), default=-1)
    names = []
    for place, entry in enumerate(state["_data_files"]):
        name = f"data-{number + place:05d}-of-{len(state['_data_files']):05d}.arrow"
        _move(made / entry["filename"], target / name)
        entry["filename"] = name
        names.append(name)
    (made / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")
    for name in (INFO_FILE, STATE_FILE):
        _move(made / name, target / name)
    for old in target.glob("data-*-of-*.arrow"):
        if old.name not in names:
            old.unlink()
    return names


def _ours(path: Path) -> bool:
    return path.name.split("-")[1].isdigit()


def _move(source: Path, target: Path) -> None:
    with open(source, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(source, target)


def datasets_library() -> Any:
    """The `datasets` library, kept off the network and off the terminal."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import datasets
    except ImportError as error:
        raise PackageMissing(f"data sets need the package datasets: {error}", "install it beside the engine") from None
    datasets.disable_progress_bars()
    return datasets
