"""`data_config.json`: version 2.0 of speculators (`config_generator.py` at v0.4.0), and beside it what that lacks.

The extra part, `hsbench`, says what the tensors are: blocks, places of capture, side of the final norm, engine, patch.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from workbench.extract.index import IndexLine
from workbench.extract.record import RunRecord

VERSION = "2.0"


def data_config(
    record: RunRecord, lines: Sequence[IndexLine], norm: Literal["pre", "post"], pattern: str, schema: dict[str, Any]
) -> dict[str, Any]:
    """The whole file. `layer_ids` counts as speculators 0.3 and 0.4 do: blocks by their outputs, the last one too."""
    states, engine, source = record.states, record.engine, record.source
    layers = [*states.after_block, states.num_blocks - 1]
    blocks = ", ".join(map(str, states.after_block))
    return {
        "version": VERSION,
        "generated_at": datetime.fromtimestamp(record.created, UTC).isoformat(),
        "speculators_version": engine.versions.get("speculators"),
        "reproducibility": {
            "command": record.command,
            "package_versions": {name: engine.versions.get(name) for name in _PACKAGES},
            "gpu": engine.gpu,
        },
        "model": {
            "target_model_path": engine.model,
            "tensor_parallel_size": engine.tp_size,
            "gpu_memory_utilization": None,
            "hidden_size": states.hidden_size,
        },
        "data": {
            "train_data_path": source.path,
            "seq_length": source.max_seq_len,
            "max_samples": source.rows,
            "num_samples": len(lines),
            "seed": None,
            "chat_template_note": f"loss mask: {source.mask}",
        },
        "hidden_states": {
            "layer_ids": layers,
            "description": f"outputs of blocks {blocks} (residual stream, no norm), then the output of the last block "
            f"{layers[-1]}, {'before' if norm == 'pre' else 'after'} the final norm",
        },
        "generation": {"cache_dir": None},
        "format": {"file_pattern": pattern, "schema": schema},
        "hsbench": _ours(record, lines, norm),
    }


_PACKAGES = ("torch", "sglang", "vllm", "transformers", "speculators")


def _ours(record: RunRecord, lines: Sequence[IndexLine], norm: str) -> dict[str, Any]:
    states, engine = record.states, record.engine
    return {
        "version": record.hsbench_version,
        "format": record.format,
        "after_block": list(states.after_block),
        "captured_entering": list(states.captured_entering),
        "final_after_block": states.num_blocks - 1,
        "final_norm": norm,
        "num_blocks": states.num_blocks,
        "dtype": states.dtype,
        "sglang_version": engine.sglang_version,
        "patch_hash": engine.patch_hash,
        "nccl_env": engine.nccl_env,
        "server_flags": list(engine.flags),
        "fingerprint": record.source.fingerprint,
        "shard": list(record.shard),
        "tokens": sum(line.tokens for line in lines),
        "trained_tokens": sum(line.trained for line in lines),
    }
