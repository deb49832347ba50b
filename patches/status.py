"""In which state a tree is, judged by hashes alone; nothing is changed and SGLang is not imported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from patches.codemods import FAMILIES, loops_by_file
from patches.codemods.mark import MARK
from patches.errors import PatchError
from patches.files import sha256, system_errors, temporary_of
from patches.manifest import BUILDING, FOLDER, REMOVING, Edited, Manifest, damaged_files
from patches.tree import Tree


class State(StrEnum):
    """What a tree is.

    - clean: nothing of ours in it.
    - applied: every edited file and the recorder are as the manifest says.
    - incomplete: a crash, or someone, left only some of it in place. Apply and revert both mend it.
    - stale: SGLang was installed anew under our folder `_hs/`; no source of it carries an edit.
    - foreign: a source carries `_hs_` lines that are not those that the manifest knows. Nothing is touched.
    """

    CLEAN = "clean"
    APPLIED = "applied"
    INCOMPLETE = "incomplete"
    STALE = "stale"
    FOREIGN = "foreign"


class Content(StrEnum):
    """What one file holds, against the manifest's hashes."""

    ORIGINAL = "original"
    PATCHED = "patched"
    UPGRADED = "upgraded"
    FOREIGN = "foreign"
    MISSING = "missing"


@dataclass(frozen=True)
class FileState:
    """One source file, by its path below `sglang/`."""

    path: str
    content: Content


@dataclass(frozen=True)
class Status:
    """The state of a tree with the reason for it, one line; `outdated` = applied by another hsbench."""

    tree: Tree
    state: State
    reason: str
    files: tuple[FileState, ...]
    manifest: Manifest | None
    outdated: bool = False

    def holding(self, content: Content) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if file.content is content)


def status(tree: Tree) -> Status:
    """Judge `tree` by its bytes. Raises PatchError only when something in it cannot be read."""
    with system_errors("read", tree.root, "run as a user who may read the tree"):
        return _status(tree)


def _status(tree: Tree) -> Status:
    folder = tree.root / FOLDER
    if not folder.exists():
        return _without_manifest(tree)
    try:
        path = folder / "manifest.json"
        if not path.is_file():
            raise PatchError(f"{folder} exists and holds no manifest of hsbench")
        manifest = Manifest.from_bytes(path.read_bytes())
    except PatchError as error:
        return Status(tree, State.FOREIGN, error.message, _known_files(tree), None)
    return _with_manifest(tree, manifest)


def _without_manifest(tree: Tree) -> Status:
    files = _known_files(tree)
    foreign = [file.path for file in files if file.content is Content.FOREIGN]
    if foreign:
        reason = f"{foreign[0]} carries _hs_ lines, and there is no manifest of hsbench"
        return Status(tree, State.FOREIGN, reason, files, None)
    return Status(tree, State.CLEAN, "nothing of hsbench is in it", files, None)


def _known_files(tree: Tree) -> tuple[FileState, ...]:
    return tuple(FileState(path, _content(tree, path, None)) for path in loops_by_file(FAMILIES))


def _content(tree: Tree, path: str, edited: Edited | None) -> Content:
    try:
        data = (tree.root / path).read_bytes()
    except FileNotFoundError:
        return Content.MISSING
    digest = sha256(data)
    if edited is not None and digest == edited.after:
        return Content.PATCHED
    if edited is not None and digest == edited.before:
        return Content.ORIGINAL
    if MARK.search(data):
        return Content.FOREIGN
    return Content.ORIGINAL if edited is None else Content.UPGRADED


def _with_manifest(tree: Tree, manifest: Manifest) -> Status:
    files = tuple(FileState(path, _content(tree, path, edited)) for path, edited in manifest.files.items())
    state, reason = _judge(tree, manifest, files)
    return Status(tree, state, reason, files, manifest, outdated=not manifest.written_by_this())


def _judge(tree: Tree, manifest: Manifest, files: tuple[FileState, ...]) -> tuple[State, str]:
    holding = Counter(file.content for file in files)
    if holding[Content.FOREIGN]:
        path = next(file.path for file in files if file.content is Content.FOREIGN)
        return State.FOREIGN, f"{path} carries _hs_ lines but is not as the manifest says: edited after apply"
    if not holding[Content.PATCHED] and holding[Content.UPGRADED] + holding[Content.MISSING]:
        return State.STALE, f"SGLang was installed anew over the patch of {manifest.sglang}"
    if holding[Content.PATCHED] < len(files):
        return State.INCOMPLETE, f"{holding[Content.PATCHED]} of {len(files)} files are patched"
    if manifest.state != "applied":
        return State.INCOMPLETE, "the last apply did not come to its end"
    if damaged := list(damaged_files(tree.root, manifest.package)):
        return State.INCOMPLETE, f"_hs/{damaged[0]} is missing or changed"
    return State.APPLIED, f"by hsbench {manifest.hsbench}"


def leftovers(tree: Tree) -> list[str]:
    """Names below `sglang/` that a crash can leave and that no state counts; apply and revert remove them."""
    names = [BUILDING, REMOVING, *(str(temporary_of(tree.root / p).relative_to(tree.root)) for p in _paths())]
    return [name for name in names if (tree.root / name).exists()]


def _paths() -> list[str]:
    return list(loops_by_file(FAMILIES))
