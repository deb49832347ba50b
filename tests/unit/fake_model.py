"""What the tests of commands serve instead of SGLang: a folder that looks like a model's, and a made-up engine."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from workbench.server.engine import Engine

FAKE_SGLANG = Path(__file__).with_name("fake_sglang.py")


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


def use_fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let `modules` find `fake_sglang.py` as their engine, with the state and the working folder in `tmp_path`."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_SGLANG} "$@"\n')
    python.chmod(0o755)
    engine = Engine(str(python), "0.5.23", tmp_path, "2.14.1", cuda=False, has_cpu_platform=True)
    for module in modules:
        monkeypatch.setattr(module, "find_engine", lambda python: engine)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
