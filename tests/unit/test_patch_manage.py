"""Apply, status and revert on copies of both releases: every state, and a crash at every step."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from patches import manage
from patches.errors import PatchError
from patches.manage import State, revert, status
from patches.manifest import Manifest
from patches.tree import Tree
from tests.trees import LLAMA, NEW, OLD, copy_of, snapshot
from tests.trees import apply_llama as apply

RECORDER = Path(manage.__file__).parent / "recorder"


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


def test_the_recorder_is_readable_whatever_the_umask(tree: Tree) -> None:
    was = os.umask(0o077)
    try:
        apply(tree)
    finally:
        os.umask(was)
    modes = {path: mode for path, (mode, _) in snapshot(tree.root).items() if path.startswith("_hs")}
    assert set(modes.values()) == {0o644, tree.root.stat().st_mode & 0o777}
    assert modes["_hs/recorder"] == tree.root.stat().st_mode & 0o777


def test_the_owner_stays(tree: Tree) -> None:
    if os.geteuid() == 0:
        os.chown(llama(tree), 1234, 5678)
    before = llama(tree).stat()
    for moment in (apply, revert):
        moment(tree)
        after = llama(tree).stat()
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


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


def test_an_older_patch_stays_when_the_new_one_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
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


# The system refuses, or others do the same.


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


@pytest.mark.parametrize(("was", "version"), [(NEW, "9.9.9"), (NEW, "unknown"), ("unknown", "unknown")])
def test_force_refuses_the_originals_of_another_release(tree: Tree, was: str, version: str) -> None:
    edited_after_apply(Tree(tree.root, was, None))
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
