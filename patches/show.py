"""What the patch did to a tree, for the eye: the inserted lines, and a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from patches.codemods.mark import MARK
from patches.manifest import read_original
from patches.status import Content, State, Status, status
from patches.tree import Tree


@dataclass(frozen=True)
class Line:
    """One line that carries `_hs_`: absolute path, number from 1, text without its line end."""

    path: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}:{self.text}"


def grep(tree: Tree) -> list[Line]:
    """Every inserted or changed line of the source files, as `grep -Hn _hs_` prints them."""
    return [line for file in status(tree).files for line in _marked(tree, file.path)]


def _marked(tree: Tree, path: str) -> Iterator[Line]:
    full = tree.root / path
    if not full.is_file():
        return
    for number, line in enumerate(full.read_bytes().split(b"\n"), 1):
        if MARK.search(line):
            yield Line(str(full), number, line.decode("utf-8", "replace"))


def diff(tree: Tree) -> str:
    """Unified diff from the originals to the files, for `patch -p1` in the folder around `sglang/`."""
    now = status(tree)
    return "".join(_diff_of(tree, now, file.path) for file in now.files) if _comparable(now) else ""


def _comparable(now: Status) -> bool:
    """In a stale tree the originals kept belong to another release."""
    return now.manifest is not None and now.state is not State.STALE


def _diff_of(tree: Tree, now: Status, path: str) -> str:
    assert now.manifest is not None
    if path in now.holding(Content.ORIGINAL) + now.holding(Content.MISSING):
        return ""
    before = read_original(tree.root, path, now.manifest.files[path])
    after = (tree.root / path).read_bytes()
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/sglang/{path}", f"b/sglang/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines(keepends=True)
