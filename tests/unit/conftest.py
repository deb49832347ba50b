"""Fixtures shared by the unit tests."""

import sys
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def _the_app_draws_as_at_first() -> Iterator[None]:
    """An app sets how its process draws; the next test must not find that."""
    yield
    if "workbench.tui.glyphs" in sys.modules:
        from workbench.tui import glyphs

        glyphs.set_ascii(False)
    if "workbench.tui.asciilook" in sys.modules:
        from workbench.tui import asciilook

        asciilook.scroll_bars(False)
