"""Fixtures shared by the unit tests."""

from pathlib import Path

import pytest

from tests.trees import release, releases, tree

__all__ = ["dump_dir", "release", "releases", "tree"]


@pytest.fixture
def dump_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dump folder for a recorder that has not begun yet; it keeps the outputs of blocks 0, 2 and 4."""
    from patches import recorder

    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "dump"))
    monkeypatch.setenv("SGLANG_HS_DUMP_BLOCKS", "0,2,4")
    monkeypatch.delenv("SGLANG_HS_ROUTE", raising=False)
    for name, value in (("_started", False), ("_recorder", None), ("_route", None)):
        monkeypatch.setattr(recorder, name, value)
    return tmp_path / "dump"
