"""The words of the Patches mode: a tree, a family, a file."""

import time
from collections.abc import Sequence

from rich.text import Text

from workbench.tui import glyphs
from workbench.tui.glyphs import Level
from workbench.tui.services import TaskView
from workbench.tui.sources.patches import Cell, FamilyView, FileView, Snapshot
from workbench.tui.widgets.plain import pairs
from workbench.tui.widgets.table import Row

LEVELS: dict[str, Level] = {
    "applied": "good",
    "patched": "good",
    "clean": "off",
    "original": "off",
    "incomplete": "warn",
    "stale": "warn",
    "upgraded": "warn",
    "missing": "warn",
    "foreign": "bad",
}
NEXT = {
    "clean": "a hooks the recorder in; the routes plugin and builtin need no patch",
    "applied": "v compares every hash and imports every edited module",
    "incomplete": "a or r mends it",
    "stale": "a patches the new release; r removes what is left",
    "foreign": "reinstall the release, or hsbench patch revert --force",
}


def mark(word: str) -> Text:
    """A state with its sign."""
    return glyphs.sign(LEVELS.get(word, "warn"), word)


def tree_text(seen: Snapshot, running: Sequence[str], last: TaskView | None = None) -> Text:
    """State and reason, place, the servers that imported it; which commands run, or how the last one ended."""
    judged = seen.judged
    if judged is None:
        return pairs([("tree", glyphs.sign("off", f"none: {seen.missing}")), ("next", seen.next_step)])
    state = mark(judged.state).append(glyphs.plain(f"  {judged.reason}"), style="not bold default")
    if running:
        state.append("  ").append_text(glyphs.sign("busy", f"{', '.join(running)} runs"))
    elif last is not None:
        words = f"last: {last.task.argv[1]} {last.state}, {tried_text(last.task.started)}"
        state.append(glyphs.plain(f"  {words}"), style="not bold dim" if last.state == "done" else "not bold yellow")
    rows: list[tuple[str, str | Text]] = [("state", state), ("tree", seen.root)]
    if seen.python:
        rows.append(("python", seen.python))
    if seen.users:
        rows.append(("used by", ", ".join(seen.users)))
    return pairs(rows, 7)


def next_step(seen: Snapshot) -> str:
    """What to do about the state."""
    judged = seen.judged
    if judged is None:
        return "t names another interpreter"
    if judged.outdated:
        return "a brings it up to date: another hsbench applied it"
    if judged.left and judged.state == "clean":
        return f"r removes what a crash left: {', '.join(judged.left)}"
    return NEXT.get(judged.state, "")


def family_row(family: FamilyView) -> Row:
    """A family with the routes that it works by."""
    data = {"family": family.name, "state": family.state, "routes": [vars_of(cell) for cell in family.cells]}
    return Row(family.name, (family.name, mark(family.state), routes(family.cells)), data)


def routes(cells: Sequence[Cell]) -> Text:
    """The routes that work, by name; those that do not, struck out by a dash."""
    if not cells:
        return Text("? u tries them", style="dim")
    works = [cell.route for cell in cells if cell.ok]
    return Text(glyphs.plain(" ".join(works)) or "none", style="" if works else "yellow")


def vars_of(cell: Cell) -> dict[str, object]:
    """For copying."""
    return {"route": cell.route, "ok": cell.ok, "reason": cell.reason}


def family_text(family: FamilyView) -> Text:
    """Everything that is known of a family."""
    rows: list[tuple[str, str | Text]] = [("state", mark(family.state)), ("files", ", ".join(family.files))]
    for cell in family.cells:
        word = glyphs.sign("good", "works") if cell.ok else glyphs.sign("bad", "does not")
        rows.append((glyphs.plain(cell.route), word.append(glyphs.plain(f"  {cell.reason}"), style="default")))
    if not family.cells:
        rows.append(("routes", "not tried yet: u tries every family by every route on a copy"))
    return pairs(rows)


def file_row(file: FileView) -> Row:
    """A file by its short name; the whole path names the difference."""
    data = {"path": file.path, "content": file.content, "families": file.families, "inserted": file.inserted}
    lines = str(file.inserted) if file.inserted else ""
    return Row(file.path, (file.path.rpartition("/")[2], mark(file.content), lines), data)


def tried_text(tried: float) -> str:
    """When the routes were tried."""
    return time.strftime("%d %b %H:%M", time.localtime(tried)) if tried else ""
