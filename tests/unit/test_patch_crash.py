"""Apply and revert die, or fail, at each of their steps; the tree must be mendable, or as it was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patches import manage
from patches.errors import PatchError
from patches.manage import State, revert, status
from patches.tree import Tree
from tests.trees import LLAMA, NEW, copy_of, snapshot
from tests.trees import apply_llama as apply


class Crash(BaseException):
    """The process dies here: nothing that tidies up after an Exception runs."""


SEAMS = [(os, "replace"), (os, "chmod"), (shutil, "rmtree")]


def crash_at(
    monkeypatch: pytest.MonkeyPatch, seam: tuple[Any, str], number: int, error: BaseException, late: bool
) -> None:
    """Raise `error` at the call of this number, before it acts or, `late`, after."""
    real: Callable[..., Any] = getattr(*seam)
    calls = iter(range(number + 1))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        last = next(calls, None) == number
        if last and not late:
            raise error
        result = real(*args, **kwargs)
        if last:
            raise error
        return result

    monkeypatch.setattr(*seam, wrapped)


def outcomes(
    act: Callable[[Tree], Any],
    make: Callable[[], Tree],
    seam: tuple[Any, str],
    error: BaseException,
    late: bool,
) -> list[Tree]:
    """One tree for each call of the seam that `act` can die at."""
    left: list[Tree] = []
    for number in range(50):
        tree = make()
        with pytest.MonkeyPatch.context() as patched:
            crash_at(patched, seam, number, error, late)
            try:
                act(tree)
            except (Crash, PatchError):
                left.append(tree)
            else:
                return left
    raise AssertionError("never came to its end")


MODULES = len(list((Path(manage.__file__).parent / "recorder").glob("*.py"))) + 1
STEPS = [
    pytest.param(apply, SEAMS[0], 3, False, id="apply-before-replace"),  # _hs/, llama.py, manifest
    pytest.param(apply, SEAMS[0], 3, True, id="apply-after-replace"),
    pytest.param(apply, SEAMS[1], MODULES + 9, False, id="apply-chmod"),  # 3 in _hs/, its 5 folders, llama.py
    pytest.param(revert, SEAMS[0], 2, False, id="revert-before-replace"),  # llama.py, _hs/
    pytest.param(revert, SEAMS[0], 2, True, id="revert-after-replace"),
    pytest.param(revert, SEAMS[1], 1, False, id="revert-chmod"),
    pytest.param(revert, SEAMS[2], 1, False, id="revert-before-rmtree"),
    pytest.param(revert, SEAMS[2], 1, True, id="revert-after-rmtree"),
]


@dataclass(frozen=True)
class Ends:
    """What a tree is before and after a patch; the starting points of the crash tests."""

    clean: Tree
    patched: Tree


@pytest.fixture
def ends(releases: dict[str, Path], tmp_path: Path) -> Ends:
    clean = copy_of(releases[NEW], tmp_path / "clean", NEW)
    patched = copy_of(releases[NEW], tmp_path / "patched", NEW)
    apply(patched)
    return Ends(clean, patched)


@pytest.mark.parametrize(("act", "seam", "steps", "late"), STEPS)
def test_a_crash_at_any_step_is_mended(ends: Ends, act: Any, seam: tuple[Any, str], steps: int, late: bool) -> None:
    clean, patched = ends.clean, ends.patched
    start = clean if act is apply else patched
    places = iter(range(100))

    def make() -> Tree:
        return copy_of(start.root.parent, start.root.parents[1] / f"at{next(places)}", start.version)

    crashed = outcomes(act, make, seam, Crash(), late)
    assert len(crashed) == steps
    for tree in crashed:
        again = copy_of(tree.root.parent, tree.root.parent.with_suffix(".again"), tree.version)
        now = status(tree)
        assert now.state in (State.CLEAN, State.INCOMPLETE, State.APPLIED)
        if now.files[0].content == "patched":
            assert (tree.root / "_hs" / "recorder" / "__init__.py").is_file()
            assert (tree.root / "_hs" / "original" / LLAMA).is_file()
        apply(tree)
        assert snapshot(tree.root) == snapshot(patched.root)
        revert(again)
        assert snapshot(again.root) == snapshot(clean.root)


@pytest.mark.parametrize("seam", SEAMS[:2], ids=["replace", "chmod"])
def test_a_full_disk_leaves_nothing_behind(releases: dict[str, Path], tmp_path: Path, seam: tuple[Any, str]) -> None:
    before = snapshot(releases[NEW] / "sglang")
    places = iter(range(100))

    def make() -> Tree:
        return copy_of(releases[NEW], tmp_path / f"at{next(places)}", NEW)

    failed = outcomes(apply, make, seam, OSError(errno.ENOSPC, "No space left on device"), late=False)
    assert len(failed) >= 3
    assert all(snapshot(tree.root) == before for tree in failed)
