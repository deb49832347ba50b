"""Apply and revert the source patch. Whatever moment either is killed at, the next call mends the tree.

Order of apply: the folder `_hs/` with the originals, the recorder and a manifest in state "applying" appears
at once by rename; then each edited file replaces its original; then the manifest says "applied". A patched
file therefore never stands without its original and the recorder that it imports. Revert goes backwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patches.codemods import FAMILIES, codemods_sha256, edit, loops_by_file
from patches.errors import PatchError
from patches.files import (
    mode_of,
    only_worker,
    remove,
    remove_compiled,
    replace_file,
    set_folder_modes,
    sha256,
    write_new,
)
from patches.manifest import (
    BUILDING,
    FOLDER,
    REMOVING,
    Edited,
    Manifest,
    hashes,
    hsbench_version,
    original_path,
    package_files,
    read_original,
)
from patches.show import Line, diff, grep
from patches.status import Content, FileState, State, Status, leftovers, status
from patches.tree import Tree, find_tree
from patches.verify import Verified, verify

__all__ = [
    "Applied",
    "Content",
    "FileState",
    "Line",
    "Reverted",
    "State",
    "Status",
    "Tree",
    "Verified",
    "apply",
    "diff",
    "find_tree",
    "grep",
    "revert",
    "status",
    "verify",
]


@dataclass(frozen=True)
class Applied:
    """`changed` is False when the tree already was as this hsbench makes it; `was` = its state before."""

    changed: bool
    was: State
    files: tuple[str, ...]


@dataclass(frozen=True)
class Reverted:
    """`restored` got their original bytes back; `saved` are copies kept of what --force replaced."""

    changed: bool
    was: State
    restored: tuple[str, ...]
    saved: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """Everything that apply will write, made before anything is written."""

    manifest: Manifest
    originals: dict[str, bytes]
    results: dict[str, bytes]
    package: dict[str, bytes]


def apply(tree: Tree, families: Iterable[str] = tuple(FAMILIES)) -> Applied:
    """Patch `tree` for these model families, or bring it to that state from another patch of ours.

    All of them or none: a PatchError leaves the tree as it was, or clean.
    """
    asked = set(families)
    wanted = tuple(name for name in FAMILIES if name in asked)
    with only_worker(tree.root):
        now = status(tree)
        if now.state is State.FOREIGN:
            raise _foreign(tree, now)
        if _is_done(now, wanted):
            _clear(tree)
            return Applied(False, now.state, tuple(file.path for file in now.files))
        plan = _plan(tree, now, wanted)
        _undo(tree, now, now.holding(Content.PATCHED))
        try:
            _publish(tree, plan)
        except OSError:
            half = status(tree)
            _undo(tree, half, half.holding(Content.PATCHED))
            raise
        return Applied(True, now.state, tuple(plan.results))


def revert(tree: Tree, force: bool = False) -> Reverted:
    """Restore the bytes and modes from before apply and remove `_hs/`.

    `force` also restores a file that was edited after apply, if that is safe: its original is intact and the
    tree still is the release that it came from. The edited file is kept beside it as `NAME.hs-saved`.
    """
    with only_worker(tree.root):
        now = status(tree)
        saved: tuple[str, ...] = ()
        if now.state is State.FOREIGN:
            if not force or now.manifest is None:
                raise _foreign(tree, now)
            saved = _save_foreign(tree, now, now.manifest)
        left = leftovers(tree)
        restored = now.holding(Content.PATCHED) + now.holding(Content.FOREIGN)
        _undo(tree, now, restored)
        return Reverted(now.state is not State.CLEAN or bool(left), now.state, restored, saved)


def _foreign(tree: Tree, now: Status) -> PatchError:
    if now.manifest is None:
        return PatchError(f"{tree.root}: {now.reason}", "reinstall this SGLang release to get its own files back")
    step = "see `hsbench patch diff`; `hsbench patch revert --force` restores the original and keeps a copy"
    return PatchError(f"{tree.root}: {now.reason}", step)


def _is_done(now: Status, families: tuple[str, ...]) -> bool:
    if now.manifest is None or now.state is not State.APPLIED or now.outdated:
        return False
    return set(now.manifest.families) == set(families)


def _plan(tree: Tree, now: Status, families: tuple[str, ...]) -> _Plan:
    """Edit every file in memory, starting from the originals. A file with nothing to edit is not touched."""
    originals, results, files = {}, {}, {}
    for path, loops in loops_by_file(families).items():
        source = _original(tree, now, path)
        result = edit(source, path, loops)
        if result == source:
            continue
        originals[path], results[path] = source, result
        needed_by = tuple(name for name in families if path in loops_by_file([name]))
        files[path] = Edited(sha256(originals[path]), sha256(results[path]), needed_by)
    package = package_files()
    manifest = Manifest(
        state="applying",
        hsbench=hsbench_version(),
        sglang=tree.version,
        families=families,
        codemods=codemods_sha256(),
        package=hashes(package),
        files=files,
    )
    return _Plan(manifest, originals, results, package)


def _original(tree: Tree, now: Status, path: str) -> bytes:
    if now.manifest is not None and path in now.holding(Content.PATCHED):
        return read_original(tree.root, path, now.manifest.files[path])
    _check_no_link(tree.root, path)
    try:
        return (tree.root / path).read_bytes()
    except FileNotFoundError as error:
        raise PatchError(
            f"{path}: there is no such file in {tree.root}",
            "this SGLang release is not one that the patch knows",
        ) from error


def _check_no_link(root: Path, path: str) -> None:
    """An edit through a symbolic link would change another tree, or a package cache, with this one."""
    place = root
    for part in Path(path).parts:
        place /= part
        if place.is_symlink():
            raise PatchError(
                f"{place} is a symbolic link to {os.path.realpath(place)}",
                "install SGLang as plain files (uv: --link-mode=copy), or patch the tree that it leads to",
            )


def _publish(tree: Tree, plan: _Plan) -> None:
    building = tree.root / BUILDING
    for path, data in plan.package.items():
        write_new(building / path, data)
    for path, data in plan.originals.items():
        write_new(original_path(tree.root, path, BUILDING), data, mode_of(tree.root / path))
    write_new(building / "manifest.json", plan.manifest.to_bytes())
    set_folder_modes(building, mode_of(tree.root))
    os.replace(building, tree.root / FOLDER)
    for path, data in plan.results.items():
        replace_file(tree.root / path, data, mode_of(tree.root / path))
        remove_compiled(tree.root / path)
    replace_file(tree.root / FOLDER / "manifest.json", plan.manifest.applied().to_bytes(), 0o644)


def _undo(tree: Tree, now: Status, restore: Iterable[str]) -> None:
    """Restore these files, then make `_hs/` vanish at once."""
    if now.manifest is not None:
        originals = {path: read_original(tree.root, path, now.manifest.files[path]) for path in restore}
        for path, data in originals.items():
            replace_file(tree.root / path, data, mode_of(original_path(tree.root, path)))
            remove_compiled(tree.root / path)
        remove(tree.root / REMOVING)
        os.replace(tree.root / FOLDER, tree.root / REMOVING)
    _clear(tree)


def _clear(tree: Tree) -> None:
    """Remove what a crash has left."""
    for name in leftovers(tree):
        remove(tree.root / name)


def _save_foreign(tree: Tree, now: Status, manifest: Manifest) -> tuple[str, ...]:
    """Keep a copy of each file edited after apply. Raises PatchError if restoring could do harm."""
    if "unknown" in (tree.version, manifest.sglang) or tree.version != manifest.sglang:
        raise PatchError(
            f"{tree.root} is SGLang {tree.version}, the originals kept are of {manifest.sglang}: not safe",
            "reinstall this SGLang release to get its own files back",
        )
    saved = []
    for path in now.holding(Content.FOREIGN):
        read_original(tree.root, path, manifest.files[path])
        source = tree.root / path
        copy = _free_name(source)
        replace_file(copy, source.read_bytes(), mode_of(source))
        saved.append(str(copy.relative_to(tree.root)))
    return tuple(saved)


def _free_name(source: Path) -> Path:
    copy, number = source.with_name(f"{source.name}.hs-saved"), 1
    while copy.exists():
        number += 1
        copy = source.with_name(f"{source.name}.hs-saved{number}")
    return copy
