"""`hidden_states/hs_N.safetensors` and an Arrow data set, as the trainer of speculators 0.9 reads them.

Its `--data-path` is the data set's folder; `hidden_states/` below it is where it looks by default. Rows without a file
(refused or quarantined ones) are empty in the Arrow data set: train with `--on-missing skip` when there are any.
"""

from collections.abc import Sequence
from typing import Any, Literal

from workbench.extract.config import data_config
from workbench.extract.index import IndexLine
from workbench.extract.record import Format, RunRecord

FOLDER = "hidden_states"


class Speculators:
    """See the module."""

    name: Format = "speculators"
    final_norm: Literal["pre", "post"] = "pre"
    arrow = True

    def file_of(self, index: int) -> str:
        return f"{FOLDER}/hs_{index}.safetensors"

    def index_of(self, file: str) -> int | None:
        digits = file.removeprefix(f"{FOLDER}/hs_").removesuffix(".safetensors")
        return int(digits) if digits.isdecimal() and self.file_of(int(digits)) == file else None

    def takes(self, file: str) -> bool:
        return file.startswith(f"{FOLDER}/hs_") and file.endswith(".safetensors")

    def side_files(self, record: RunRecord, lines: Sequence[IndexLine]) -> dict[str, Any]:
        tensors = len(record.states.after_block) + 1
        schema = {
            "token_ids": {"dtype": "torch.long", "shape": "[seq_len]"},
            "hidden_states": {"dtype": f"torch.{record.states.dtype}", "shape": f"[seq_len, {tensors}, hidden_size]"},
            "loss_mask": {"dtype": "torch.long", "shape": "[seq_len]"},
        }
        return {"data_config.json": data_config(record, lines, "pre", f"{FOLDER}/hs_{{idx}}.safetensors", schema)}
