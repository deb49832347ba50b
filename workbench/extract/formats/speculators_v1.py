"""`rows_0-2000/data_N.pt`, for the readers of speculators 0.3 to 0.7 (`--legacy-data` from 0.5 on).

Their reader (`speculators/train/data.py`) walks the folder, takes every file whose name ends in ``pt``, and looks for
`sample_lengths.json` beside the *first* file it finds: so each folder has a full copy, and so has the top.
"""

from collections.abc import Sequence
from typing import Any, Literal

from workbench.extract.config import data_config
from workbench.extract.formats import row_of_sharded, shard_folder
from workbench.extract.index import IndexLine
from workbench.extract.record import Format, RunRecord

LENGTHS_FILE = "sample_lengths.json"


class SpeculatorsV1:
    """See the module."""

    name: Format = "speculators-v1"
    final_norm: Literal["pre", "post"] = "pre"
    arrow = False

    def file_of(self, index: int) -> str:
        return f"{shard_folder(index)}/data_{index}.pt"

    def index_of(self, file: str) -> int | None:
        return row_of_sharded(file, ".pt")

    def takes(self, file: str) -> bool:
        return file.endswith("pt")

    def side_files(self, record: RunRecord, lines: Sequence[IndexLine]) -> dict[str, Any]:
        lengths = {str(line.index): line.tokens for line in lines}
        folders = sorted({shard_folder(line.index) for line in lines})
        schema = {
            "input_ids": {"dtype": "torch.long", "shape": "[seq_len]"},
            "hidden_states": {
                "dtype": f"list[torch.{record.states.dtype}]",
                "shape": "[seq_len, hidden_size]",
                "num_tensors": len(record.states.after_block) + 1,
            },
            "loss_mask": {"dtype": "torch.long", "shape": "[seq_len]"},
        }
        return {
            **{f"{folder}/{LENGTHS_FILE}": lengths for folder in folders},
            LENGTHS_FILE: lengths,
            "data_config.json": data_config(record, lines, "pre", "rows_*/data_{idx}.pt", schema),
        }
