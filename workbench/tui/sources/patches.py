"""What the recorder's source patch did to one SGLang tree: judged anew only when a file of it changed."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from patches import manage
from patches.codemods import FAMILIES, loops_by_file
from patches.errors import PatchError
from patches.manage import Content, State, Status, Tree
from patches.manifest import BUILDING, FOLDER, REMOVING
from patches.status import leftovers
from workbench.server.survey import ServerStatus
from workbench.tasks.store import Task

LINES_KEPT = 2000
FOUND_S, LOST_S = 300.0, 15.0
"""Seconds after which an interpreter is asked again where its SGLang is; asking starts it."""
_FILE = re.compile(r"^--- a/sglang/(.+)\n\+\+\+ b/sglang/\1\n", re.MULTILINE)


class FileView(msgspec.Struct, frozen=True):
    """A source file by its path below `sglang/`. `content` is one of `patches.status.Content`."""

    path: str
    content: str
    families: tuple[str, ...]
    inserted: int


class Cell(msgspec.Struct, frozen=True):
    """One family by one route, as `hsbench patch support --json` gives it."""

    family: str
    route: str
    ok: bool
    reason: str = ""


class Support(msgspec.Struct, frozen=True):
    """A whole answer of `hsbench patch support --json`."""

    source: str
    sglang: str
    cells: tuple[Cell, ...]
    tried: float = 0.0
    """Time of day in seconds."""


class FamilyView(msgspec.Struct, frozen=True):
    """A model family. `state` is one of `patches.status.State`, or `missing`; `cells` are empty until tried."""

    name: str
    state: str
    files: tuple[str, ...]
    cells: tuple[Cell, ...] = ()


class LineView(msgspec.Struct, frozen=True):
    """An inserted line; `path` is below `sglang/`, `number` counts from 1."""

    path: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}:{self.text}"


class Judged(msgspec.Struct, frozen=True):
    """All that hangs on the tree's bytes."""

    state: str
    reason: str
    outdated: bool
    left: tuple[str, ...]
    files: tuple[FileView, ...]
    families: tuple[FamilyView, ...]
    lines: tuple[LineView, ...]
    lines_all: int
    diffs: Mapping[str, str]
    """File → its unified difference, for those that differ from the original kept."""
    diff_problem: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The tree of one interpreter, or why there is none."""

    where: tuple[str, ...]
    """Options that name the tree to `hsbench patch`."""
    python: str = ""
    root: str = ""
    version: str = ""
    missing: str = ""
    next_step: str = ""
    judged: Judged | None = None
    support: Support | None = None
    users: tuple[str, ...] = ()
    """Running servers that imported this tree."""


class PatchesSource:
    """Looks at one tree.

    Args:
        tree: The one to look at; None takes that of `python`.
        find: Asks an interpreter for its tree.
    """

    every_s = 2.0

    def __init__(self, tree: Tree | None = None, find: Callable[[str | None], Tree] = manage.find_tree) -> None:
        self._fixed, self._find = tree, find
        self.python: str | None = None
        """Whose SGLang it is; None means the running interpreter's. Set by the screen."""
        self.servers: tuple[ServerStatus, ...] = ()
        self.tried: tuple[Task, ...] = ()
        """Finished `patch support` commands, the newest first."""
        self.stale = False
        """Forget what is remembered: something was changed."""
        self._found: dict[str | None, tuple[float, Tree | PatchError]] = {}
        self._seen: tuple[object, Judged] | None = None
        self._answers: dict[str, Support | None] = {}

    def collect(self) -> Snapshot:
        """Look; hashes and differences only when a file changed."""
        if self.stale:
            self.stale, self._seen = False, None
            self._found.clear()
        python = self.python
        where = self._where(python)
        found = self._tree(python)
        if isinstance(found, PatchError):
            step = found.next_step or "name the interpreter of another environment"
            return Snapshot(where, python or "", missing=found.message, next_step=step)
        judged = self._judged(found)
        support = self._support(found)
        if support is not None:
            families = tuple(_with_cells(family, support) for family in judged.families)
            judged = msgspec.structs.replace(judged, families=families)
        return Snapshot(
            where=where,
            python=found.python or "",
            root=str(found.root),
            version=found.version,
            judged=judged,
            support=support,
            users=tuple(self._users(found)),
        )

    def close(self) -> None:
        """Nothing is held."""

    def _where(self, python: str | None) -> tuple[str, ...]:
        if self._fixed is None or python is not None:
            return () if python is None else ("--python", python)
        beside = ("--python", self._fixed.python) if self._fixed.by_target and self._fixed.python else ()
        return ("--target", str(self._fixed.root), *beside)

    def _tree(self, python: str | None) -> Tree | PatchError:
        if self._fixed is not None and python is None:
            return self._fixed if self._fixed.root.is_dir() else PatchError(f"{self._fixed.root} is gone")
        when, found = self._found.get(python, (0.0, None))
        age = time.monotonic() - when
        fresh = found is not None and age < (FOUND_S if isinstance(found, Tree) else LOST_S)
        if found is None or not fresh or (isinstance(found, Tree) and not found.root.is_dir()):
            try:
                found = self._find(python)
            except PatchError as error:
                found = error
            self._found[python] = (time.monotonic(), found)
        return found

    def _judged(self, tree: Tree) -> Judged:
        mark = (tree.root, signature(tree.root))
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, judge(tree))
        return self._seen[1]

    def _support(self, tree: Tree) -> Support | None:
        for task in self.tried:
            if task.id not in self._answers:
                self._answers[task.id] = read_support(task)
            answer = self._answers[task.id]
            if answer is not None and (answer.source, answer.sglang) == (str(tree.root), tree.version):
                return answer
        return None

    def _users(self, tree: Tree) -> Iterator[str]:
        for status in self.servers:
            if status.state != "dead":
                theirs = self._tree(status.server.python)
                if isinstance(theirs, Tree) and theirs.root == tree.root:
                    yield f"{status.server.name} ({status.state})"


def signature(root: Path) -> tuple[object, ...]:
    """Times and sizes of every file that a judgement reads."""
    kept = root / FOLDER / "original"
    paths = {root / path for path in loops_by_file(FAMILIES)}
    with contextlib.suppress(OSError):
        ours = list((root / FOLDER).rglob("*"))
        paths.update(ours)
        paths.update(root / path.relative_to(kept) for path in ours if path.is_relative_to(kept))
    return tuple((str(path), _mark(path)) for path in (*sorted(paths), root / BUILDING, root / REMOVING))


def _mark(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def judge(tree: Tree) -> Judged:
    """State, files, inserted lines and differences.

    Raises:
        PatchError: something in the tree cannot be read.
    """
    now = manage.status(tree)
    lines = [_below(tree.root, line) for line in manage.grep(tree)]
    diffs, problem = _diffs(tree)
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.path] = counts.get(line.path, 0) + 1
    files = (FileView(f.path, str(f.content), families_of(f.path, now), counts.get(f.path, 0)) for f in now.files)
    return Judged(
        state=str(now.state),
        reason=now.reason,
        outdated=now.outdated,
        left=tuple(leftovers(tree)),
        files=tuple(files),
        families=tuple(FamilyView(name, family_state(name, now), tuple(_files_of(name))) for name in FAMILIES),
        lines=tuple(lines[:LINES_KEPT]),
        lines_all=len(lines),
        diffs=diffs,
        diff_problem=problem,
    )


def _below(root: Path, line: manage.Line) -> LineView:
    return LineView(str(Path(line.path).relative_to(root)), line.number, line.text)


def _diffs(tree: Tree) -> tuple[dict[str, str], str]:
    try:
        return split_diff(manage.diff(tree)), ""
    except PatchError as error:
        return {}, error.message


def split_diff(text: str) -> dict[str, str]:
    """A unified difference of several files, by file below `sglang/`."""
    heads = list(_FILE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return {head[1]: text[head.start() : end] for head, end in zip(heads, ends, strict=False)}


def _files_of(family: str) -> list[str]:
    return [file for file, _ in FAMILIES[family].edits] if family in FAMILIES else []


def families_of(path: str, now: Status) -> tuple[str, ...]:
    """Families that need the file: by the manifest, else by what this hsbench knows."""
    if now.manifest is not None and path in now.manifest.files:
        return now.manifest.files[path].families
    return tuple(name for name in FAMILIES if path in _files_of(name))


def family_state(name: str, now: Status) -> str:
    """How a family stands in the tree."""
    if now.manifest is not None and name not in now.manifest.families:
        return str(State.CLEAN)
    holding = {file.content for file in now.files if name in families_of(file.path, now)}
    if Content.FOREIGN in holding:
        return str(State.FOREIGN)
    if now.manifest is None:
        return "missing" if Content.MISSING in holding else str(State.CLEAN)
    if now.state is State.STALE:
        return str(State.STALE)
    return str(State.APPLIED if holding <= {Content.PATCHED} else State.INCOMPLETE)


def read_support(task: Task) -> Support | None:
    """What a `patch support --json` printed; None when it cannot be read."""
    with contextlib.suppress(msgspec.MsgspecError):
        answer = msgspec.json.decode(task.output(), type=Support)
        return msgspec.structs.replace(answer, tried=task.started)
    return None


def _with_cells(family: FamilyView, support: Support) -> FamilyView:
    cells = tuple(cell for cell in support.cells if cell.family == family.name)
    return msgspec.structs.replace(family, cells=cells)


def make() -> PatchesSource:
    """The real source."""
    return PatchesSource()
