"""A folder that looks like a model's: what is looked at before a server is started."""

import json
from pathlib import Path


def whole_weights() -> bytes:
    """A safetensors file of one tensor of four bytes."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def make_model(folder: Path, context: int) -> Path:
    """Write config.json, an empty tokenizer and one whole safetensors file of four bytes."""
    folder.mkdir()
    (folder / "tokenizer.json").touch()
    (folder / "model.safetensors").write_bytes(whole_weights())
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
    return folder
