"""`rows_0-2000/data_N.ckpt`, as SpecForge's `scripts/prepare_hidden_states.py` writes it for eagle3.

The last state is after the final norm, so the server must record it there: `SGLANG_HS_DUMP_FINAL=post` or ``both``.
"""

from collections.abc import Sequence
from typing import Any, Literal

from workbench.extract.config import data_config
from workbench.extract.formats import row_of_sharded, shard_folder
from workbench.extract.index import IndexLine
from workbench.extract.record import Format, RunRecord


class SpecForge:
    """See the module."""

    name: Format = "specforge"
    final_norm: Literal["pre", "post"] = "post"
    arrow = False

    def file_of(self, index: int) -> str:
        return f"{shard_folder(index)}/data_{index}.ckpt"

    def index_of(self, file: str) -> int | None:
        return row_of_sharded(file, ".ckpt")

    def takes(self, file: str) -> bool:
        return file.endswith((".ckpt", ".ckpt.gz"))

    def side_files(self, record: RunRecord, lines: Sequence[IndexLine]) -> dict[str, Any]:
        dtype, aux = f"torch.{record.states.dtype}", len(record.states.after_block)
        schema = {
            "input_ids": {"dtype": "torch.long", "shape": "[seq_len]"},
            "loss_mask": {"dtype": "torch.long", "shape": "[seq_len]"},
            "aux_hidden_state": {"dtype": dtype, "shape": f"[1, seq_len, {aux} * hidden_size]"},
            "hidden_state": {"dtype": dtype, "shape": "[1, seq_len, hidden_size]"},
        }
        return {"data_config.json": data_config(record, lines, "post", "rows_*/data_{idx}.ckpt", schema)}
