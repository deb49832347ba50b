"""`hsbench patch`: apply, check, show and revert the source patch of an SGLang tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from workbench import output
from workbench.errors import Missing, UsageError
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from patches.support import Cell
    from patches.tree import Tree

SCHEMA = 1
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def patch() -> None:
    """Apply, check, show and revert the patch of the engine.

    Works on the SGLang of the running interpreter, of --python, or in the folder --target.
    """


def _on_a_tree(command: Command) -> Command:
    """The options that every subcommand takes."""
    options = (
        click.option("--python", metavar="PATH", help="Interpreter in which SGLang is installed."),
        click.option(
            "--target",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="The folder sglang/, or the one around it. With --python, which imports it to verify.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _tree(python: str | None, target: Path | None) -> Tree:
    from patches.errors import NoTree
    from patches.tree import find_tree

    try:
        return find_tree(python, target)
    except NoTree as error:
        raise Missing(error.message, error.next_step) from error


def _show(tree: Tree, as_json: bool, fields: dict[str, Any], lines: Iterable[object]) -> None:
    """The command's result: as JSON with the tree it is about, or as lines."""
    if as_json:
        about = {"schema": SCHEMA, "root": str(tree.root), "sglang": tree.version, "python": tree.python}
        output.data_json({**about, **fields})
        return
    for line in lines:
        output.data(str(line))


@patch.command()
@_on_a_tree
@click.option("--family", "families", metavar="NAME", multiple=True, help="Only this model family; may be repeated.")
def apply(python: str | None, target: Path | None, as_json: bool, families: tuple[str, ...]) -> None:
    """Hook the recorder into the model files. A second call changes nothing."""
    from patches.codemods import FAMILIES
    from patches.manage import apply as apply_to

    for name in families:
        if name not in FAMILIES:
            raise UsageError(f"--family {name} is none of {', '.join(FAMILIES)}", "hsbench patch support")
    tree = _tree(python, target)
    done = apply_to(tree, families or FAMILIES)
    how = f"patched (it was {done.was})" if done.changed else "already patched, nothing changed"
    output.narrate(f"SGLang {tree.version} in {tree.root}: {how}")
    fields = {"changed": done.changed, "was": done.was, "files": done.files}
    _show(tree, as_json, fields, (tree.root / file for file in done.files))


@patch.command()
@_on_a_tree
@click.option("--no-import", is_flag=True, help="Compare and compile only; importing takes about 10 s.")
def verify(python: str | None, target: Path | None, as_json: bool, no_import: bool) -> int:
    """Compare every hash and import every edited module in the engine's interpreter."""
    from patches.manage import verify as verify_tree

    tree = _tree(python, target)
    if not no_import and tree.python is not None:
        output.narrate(f"verifying {tree.root}, imports run in {tree.python}")
    found = verify_tree(tree, import_modules=not no_import)
    for note in found.notes:
        output.narrate(note)
    fields = {"ok": found.ok, "problems": found.problems, "imported": found.imported, "notes": found.notes}
    lines = [*(f"imported {name}" for name in found.imported), *(f"problem: {p}" for p in found.problems)]
    _show(tree, as_json, fields, [*lines, "ok" if found.ok else "not ok"])
    return ExitCode.OK if found.ok else ExitCode.PATCH


@patch.command()
@_on_a_tree
def grep(python: str | None, target: Path | None, as_json: bool) -> None:
    """Print every inserted line as path:line:text."""
    from patches.manage import grep as marked_lines

    tree = _tree(python, target)
    lines = marked_lines(tree)
    if not lines:
        output.narrate(f"no line of {tree.root} carries _hs_")
    _show(tree, as_json, {"lines": [vars(line) for line in lines]}, lines)


@patch.command()
@_on_a_tree
def diff(python: str | None, target: Path | None, as_json: bool) -> None:
    """Print a unified diff from the original files to the patched ones."""
    from patches.manage import diff as diff_of

    tree = _tree(python, target)
    text = diff_of(tree)
    if not text:
        output.narrate(f"nothing of {tree.root} differs from its original")
    _show(tree, as_json, {"diff": text}, [text.removesuffix("\n")] if text else [])


@patch.command()
@_on_a_tree
@click.option("--force", is_flag=True, help="Also restore files that were edited after apply; keeps a copy of each.")
def revert(python: str | None, target: Path | None, as_json: bool, force: bool) -> None:
    """Give every file its original bytes back and remove the recorder."""
    from patches.manage import revert as revert_tree

    tree = _tree(python, target)
    done = revert_tree(tree, force)
    how = f"reverted (it was {done.was})" if done.changed else "nothing to revert"
    output.narrate(f"SGLang {tree.version} in {tree.root}: {how}")
    for copy in done.saved:
        output.narrate(f"kept the edited file as {tree.root / copy}")
    fields = {"changed": done.changed, "was": done.was, "restored": done.restored, "saved": done.saved}
    _show(tree, as_json, fields, (tree.root / file for file in done.restored))


@patch.command()
@_on_a_tree
def status(python: str | None, target: Path | None, as_json: bool) -> None:
    """Say in which state the tree is: clean, applied, incomplete, stale or foreign."""
    from patches.manage import status as status_of

    tree = _tree(python, target)
    now = status_of(tree)
    files = {file.path: file.content for file in now.files}
    fields = {"state": now.state, "reason": now.reason, "outdated": now.outdated, "files": files}
    lines = [f"{now.state}: {now.reason}", f"SGLang {tree.version} in {tree.root}"]
    if now.outdated:
        lines.append("by another hsbench than this one: `hsbench patch apply` brings it up to date")
    _show(tree, as_json, fields, [*lines, *(f"{content:9} {path}" for path, content in files.items())])


@patch.command()
@_on_a_tree
@click.option(
    "--wheel",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A release as a wheel file, which is not installed.",
)
def support(python: str | None, target: Path | None, as_json: bool, wheel: Path | None) -> None:
    """Say which model families this release supports by which route.

    The patch is really applied to a copy of the sources, compiled and reverted.
    """
    from patches.errors import NoTree
    from patches.support import copy_of_release
    from patches.support import support as try_all

    if wheel is not None and (python is not None or target is not None):
        raise UsageError("--wheel names the release by itself", "leave out --python and --target")
    source: Tree | Path = wheel if wheel is not None else _tree(python, target)
    try:
        with copy_of_release(source) as copy:
            output.narrate(f"trying every family on a copy of SGLang {copy.version}")
            cells = list(try_all(copy))
            release = copy.version
    except NoTree as error:
        raise Missing(error.message, error.next_step) from error
    if as_json:
        place = source if isinstance(source, Path) else source.root
        output.data_json({"schema": SCHEMA, "source": str(place), "sglang": release, "cells": [vars(c) for c in cells]})
    else:
        output.data(_matrix(release, cells))


def _matrix(release: str, cells: list[Cell]) -> str:
    """Families down, routes across; a number for each reason, given below."""
    from workbench.render.text import plain_table

    reasons = list(dict.fromkeys(cell.reason for cell in cells if not cell.ok))
    marks = {(c.family, c.route): "yes" if c.ok else f"no ({reasons.index(c.reason) + 1})" for c in cells}
    routes = list(dict.fromkeys(cell.route for cell in cells))
    families = dict.fromkeys(cell.family for cell in cells)
    rows = [[family, *(marks[family, route] for route in routes)] for family in families]
    table = plain_table(f"SGLang {release}", ["family", *routes], rows, left=1 + len(routes))
    return "\n".join([table, *(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))])
