"""Fixtures shared by the unit tests."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches import manage, plugin
from patches.codemods import edit
from tests.trees import release, releases, tree

__all__ = ["dump_dir", "release", "releases", "tree"]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process downloads SGLang's releases and edits them."""
    for item in items:
        if "releases" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("releases"))


@pytest.fixture(scope="session", autouse=True)
def _an_edit_of_the_same_source_is_made_once() -> Iterator[None]:
    """It is a pure function that takes seconds a file; the tests of the codemods call it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        kept = functools.cache(edit)
        for module in (manage, plugin):
            patch.setattr(module, "edit", kept)
        yield


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
