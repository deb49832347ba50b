"""Apply, status and revert on copies of both releases: every state, and a crash at every step."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patches import manage
from patches.errors import PatchError
from patches.manage import State, apply, revert, status
from patches.manifest import Manifest
from patches.tree import Tree
from tests.trees import LLAMA, NEW, OLD, copy_of, snapshot

RECORDER = Path(manage.__file__).parent / "recorder"


class Crash(BaseException):
    """The process dies here: nothing that tidies up after an Exception runs."""


def llama(tree: Tree) -> Path:
    return tree.root / LLAMA


def manifest_of(tree: Tree) -> dict[str, Any]:
    loaded = json.loads((tree.root / "_hs" / "manifest.json").read_bytes())
    assert isinstance(loaded, dict)
    return loaded


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_apply_adds_the_recorder_and_edits_one_file(tree: Tree) -> None:
    before = snapshot(tree.root)
    done = apply(tree)
    after = snapshot(tree.root)
    assert (done.changed, done.was, done.files) == (True, State.CLEAN, (LLAMA,))
    assert {path for path in before if before[path] != after[path]} == {LLAMA}
    assert all(path == "_hs" or path.startswith("_hs/") for path in after.keys() - before.keys())
    for module in RECORDER.glob("*.py"):
        assert after[f"_hs/recorder/{module.name}"][1] == module.read_bytes()
    assert after[f"_hs/original/{LLAMA}"] == before[LLAMA]
    assert after[LLAMA][0] == before[LLAMA][0]


def test_the_manifest_says_what_was_done(tree: Tree) -> None:
    original = llama(tree).read_bytes()
    apply(tree)
    made = manifest_of(tree)
    assert made["files"][LLAMA] == {
        "before": sha256(original),
        "after": sha256(llama(tree).read_bytes()),
        "families": ["llama"],
    }
    assert made["package"]["recorder/store.py"] == sha256((RECORDER / "store.py").read_bytes())
    assert (made["schema"], made["route"], made["state"]) == (1, "patch", "applied")
    assert made["sglang"] == tree.version
    assert made["families"] == ["llama"]


def test_the_manifest_is_the_same_for_the_same_tree(releases: dict[str, Path], tmp_path: Path) -> None:
    made = []
    for place, mode in (("a", 0o644), ("b", 0o664)):
        tree = copy_of(releases[OLD], tmp_path / place, OLD)
        llama(tree).chmod(mode)
        os.utime(llama(tree), (1, len(made)))
        apply(tree)
        made.append((tree.root / "_hs" / "manifest.json").read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o444])
def test_revert_restores_bytes_and_modes(tree: Tree, mode: int) -> None:
    llama(tree).chmod(mode)
    before = snapshot(tree.root)
    apply(tree)
    assert llama(tree).stat().st_mode & 0o777 == mode
    done = revert(tree)
    assert (done.changed, done.restored, done.saved) == (True, (LLAMA,), ())
    assert snapshot(tree.root) == before
    assert status(tree).state is State.CLEAN


def test_revert_of_a_clean_tree_changes_nothing(tree: Tree) -> None:
    before = snapshot(tree.root)
    done = revert(tree)
    assert (done.changed, done.was, done.restored) == (False, State.CLEAN, ())
    assert snapshot(tree.root) == before


def test_a_second_apply_changes_nothing(tree: Tree) -> None:
    apply(tree)
    before, inode = snapshot(tree.root), llama(tree).stat().st_ino
    done = apply(tree)
    assert (done.changed, done.was, done.files) == (False, State.APPLIED, (LLAMA,))
    assert snapshot(tree.root) == before
    assert llama(tree).stat().st_ino == inode


def test_other_names_of_the_file_keep_their_bytes(tree: Tree, tmp_path: Path) -> None:
    """A package cache that hard-links its files must not be patched with the tree."""
    os.link(llama(tree), cached := tmp_path / "cached.py")
    original = cached.read_bytes()
    apply(tree)
    assert cached.read_bytes() == original


def test_compiled_leftovers_go(tree: Tree) -> None:
    cache = llama(tree).parent / "__pycache__"
    cache.mkdir()
    for moment in (apply, revert):
        (cache / "llama.cpython-311.pyc").touch()
        (cache / "llama4.cpython-311.pyc").touch()
        moment(tree)
        assert [path.name for path in cache.iterdir()] == ["llama4.cpython-311.pyc"]


# An older hsbench's patch.


@pytest.mark.parametrize("what", ["hsbench", "codemods", "recorder"])
def test_an_older_patch_is_replaced(tree: Tree, what: str) -> None:
    before = snapshot(tree.root)
    apply(tree)
    fresh = snapshot(tree.root)
    made = manifest_of(tree)
    if what == "recorder":
        older = b"# an older recorder\n"
        (tree.root / "_hs" / "recorder" / "store.py").write_bytes(older)
        made["package"]["recorder/store.py"] = sha256(older)
    else:
        made[what] = "0.0.1"
    (tree.root / "_hs" / "manifest.json").write_text(json.dumps(made))
    assert (status(tree).state, status(tree).outdated) == (State.APPLIED, True)
    assert apply(tree).changed
    assert snapshot(tree.root) == fresh
    assert not status(tree).outdated
    revert(tree)
    assert snapshot(tree.root) == before


def test_an_older_patch_stays_when_the_new_one_is_refused(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(tree)
    made = manifest_of(tree)
    (tree.root / "_hs" / "manifest.json").write_text(json.dumps({**made, "hsbench": "0.0.1"}))
    before = snapshot(tree.root)

    def refuse(*_: Any) -> bytes:
        raise PatchError("not known")

    monkeypatch.setattr(manage, "edit", refuse)
    with pytest.raises(PatchError, match="not known"):
        apply(tree)
    assert snapshot(tree.root) == before


# Crashes.

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


MODULES = len(list(RECORDER.glob("*.py"))) + 1
STEPS = [
    pytest.param(apply, SEAMS[0], 3, False, id="apply-before-replace"),  # _hs/, llama.py, manifest
    pytest.param(apply, SEAMS[0], 3, True, id="apply-after-replace"),
    pytest.param(apply, SEAMS[1], MODULES + 4, False, id="apply-chmod"),  # original, 2 manifests, llama.py
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
def test_a_crash_at_any_step_is_mended(
    ends: Ends, act: Any, seam: tuple[Any, str], steps: int, late: bool
) -> None:
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
def test_a_full_disk_leaves_nothing_behind(
    releases: dict[str, Path], tmp_path: Path, seam: tuple[Any, str]
) -> None:
    before = snapshot(releases[NEW] / "sglang")
    places = iter(range(100))

    def make() -> Tree:
        return copy_of(releases[NEW], tmp_path / f"at{next(places)}", NEW)

    failed = outcomes(apply, make, seam, OSError(errno.ENOSPC, "No space left on device"), late=False)
    assert len(failed) >= 3
    assert all(snapshot(tree.root) == before for tree in failed)


def test_a_read_only_tree_is_one_clear_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    before = snapshot(tree.root)
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PatchError, match=r"cannot change .*_hs\.building.*: Read-only file system") as caught:
        apply(tree)
    assert "--target" in caught.value.next_step
    assert snapshot(tree.root) == before


def _apply_in_child(root: Path, version: str) -> bool:
    return apply(Tree(root, version, None)).changed


def test_two_at_once_make_one_patch(tree: Tree) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        changed = pool.starmap(_apply_in_child, [(tree.root, tree.version)] * 3)
    assert sorted(changed) == [False, False, True]
    assert status(tree).state is State.APPLIED


# States that others have brought about.


def test_a_damaged_recorder_is_incomplete_and_mended(tree: Tree) -> None:
    apply(tree)
    fresh = snapshot(tree.root)
    (tree.root / "_hs" / "recorder" / "store.py").write_text("broken")
    now = status(tree)
    assert now.state is State.INCOMPLETE
    assert "recorder/store.py" in now.reason
    assert apply(tree).changed
    assert snapshot(tree.root) == fresh


def test_a_restored_file_is_incomplete(tree: Tree) -> None:
    original = llama(tree).read_bytes()
    apply(tree)
    llama(tree).write_bytes(original)
    assert status(tree).state is State.INCOMPLETE
    assert apply(tree).changed
    assert status(tree).state is State.APPLIED


@pytest.mark.parametrize("then", [apply, revert])
def test_another_release_over_the_patch_is_stale(
    releases: dict[str, Path], tree: Tree, tmp_path: Path, then: Any
) -> None:
    apply(tree)
    (other,) = [name for name in releases if name != tree.version]
    shutil.copytree(releases[other], tree.root.parent, dirs_exist_ok=True)
    upgraded = Tree(tree.root, other, None)
    assert status(upgraded).state is State.STALE
    expected = copy_of(releases[other], tmp_path / "expected", other)
    if then is apply:
        apply(expected)
    assert then(upgraded).changed
    assert snapshot(tree.root) == snapshot(expected.root)


def edited_after_apply(tree: Tree) -> bytes:
    apply(tree)
    edited = llama(tree).read_bytes() + b"# a note of mine\n"
    llama(tree).write_bytes(edited)
    return edited


@pytest.mark.parametrize("act", [apply, revert])
def test_a_file_edited_after_apply_is_left_alone(tree: Tree, act: Any) -> None:
    edited_after_apply(tree)
    before = snapshot(tree.root)
    assert status(tree).state is State.FOREIGN
    with pytest.raises(PatchError, match=LLAMA) as caught:
        act(tree)
    assert "--force" in caught.value.next_step
    assert snapshot(tree.root) == before


def test_force_restores_and_keeps_a_copy(tree: Tree) -> None:
    before = snapshot(tree.root)
    (tree.root / f"{LLAMA}.hs-saved").write_text("an earlier one")
    edited = edited_after_apply(tree)
    done = revert(tree, force=True)
    assert done.saved == (f"{LLAMA}.hs-saved2",)
    assert (tree.root / done.saved[0]).read_bytes() == edited
    after = snapshot(tree.root)
    assert {path: after[path] for path in before} == before
    assert status(tree).state is State.CLEAN


@pytest.mark.parametrize("version", ["9.9.9", "unknown"])
def test_force_refuses_the_originals_of_another_release(tree: Tree, version: str) -> None:
    edited_after_apply(tree)
    before = snapshot(tree.root)
    with pytest.raises(PatchError, match="not safe"):
        revert(Tree(tree.root, version, None), force=True)
    assert snapshot(tree.root) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_original_is_never_restored(tree: Tree, force: bool) -> None:
    edited_after_apply(tree) if force else apply(tree)
    (tree.root / "_hs" / "original" / LLAMA).write_text("not it")
    before = snapshot(tree.root)
    with pytest.raises(PatchError, match=r"original kept in .* is missing or damaged"):
        revert(tree, force)
    assert snapshot(tree.root) == before


def test_marks_without_a_manifest_are_foreign(tree: Tree) -> None:
    apply(tree)
    shutil.rmtree(tree.root / "_hs")
    assert status(tree).state is State.FOREIGN
    for act in (apply, revert, lambda tree: revert(tree, force=True)):
        with pytest.raises(PatchError, match=f"{LLAMA} carries _hs_ lines") as caught:
            act(tree)
        assert "reinstall" in caught.value.next_step


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "holds no manifest"), ("{", "damaged"), ("[]", "damaged"), ('{"schema": 99}', "schema 99")],
)
def test_a_folder_that_is_not_ours_is_foreign(tree: Tree, content: str | None, says: str) -> None:
    (tree.root / "_hs").mkdir()
    if content is not None:
        (tree.root / "_hs" / "manifest.json").write_text(content)
    before = snapshot(tree.root)
    assert status(tree).state is State.FOREIGN
    with pytest.raises(PatchError, match=says):
        apply(tree)
    assert snapshot(tree.root) == before


# Trees that cannot be patched.


def test_a_missing_file_is_named(tree: Tree) -> None:
    llama(tree).unlink()
    with pytest.raises(PatchError, match=f"{LLAMA}: there is no such file"):
        apply(tree)
    assert status(tree).state is State.CLEAN


@pytest.mark.parametrize("linked", ["srt", "srt/models", LLAMA])
def test_a_symbolic_link_inside_is_refused(tree: Tree, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tree.root / linked).rename(elsewhere)
    (tree.root / linked).symlink_to(elsewhere)
    before = snapshot(tmp_path)
    with pytest.raises(PatchError, match=f"{linked} is a symbolic link to {elsewhere}"):
        apply(tree)
    assert snapshot(tmp_path) == before


def test_crlf_leaves_the_tree_alone(tree: Tree) -> None:
    llama(tree).write_bytes(llama(tree).read_bytes().replace(b"\n", b"\r\n"))
    before = snapshot(tree.root)
    with pytest.raises(PatchError, match="carriage returns"):
        apply(tree)
    assert snapshot(tree.root) == before


def test_a_manifest_survives_its_own_format(tree: Tree) -> None:
    apply(tree)
    written = (tree.root / "_hs" / "manifest.json").read_bytes()
    assert Manifest.from_bytes(written).to_bytes() == written
