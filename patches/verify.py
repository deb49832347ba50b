"""Is the patch really in force: the right bytes, and modules that import in the engine's interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches.errors import PatchError
from patches.status import State, status
from patches.tree import Tree, answer, ask_interpreter

IMPORT_TIMEOUT_S = 300
_IMPORT = f"""
import importlib, json, sys
sys.path[:] = [entry for entry in sys.path if entry]
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    {answer("[name, module.__file__, module._hs_recorder.__file__]")}
"""


@dataclass(frozen=True)
class Verified:
    """`ok` = no problems. `imported` = modules that the engine's interpreter imported; `notes` = remarks."""

    ok: bool
    problems: tuple[str, ...]
    imported: tuple[str, ...]
    notes: tuple[str, ...]


def verify(tree: Tree, import_modules: bool = True) -> Verified:
    """Compare every hash, compile every file and, unless told not to, import every touched module.

    The import takes about 10 s. It is left out, with a note, when no interpreter is known for the tree.
    """
    now = status(tree)
    problems: list[str] = []
    notes: list[str] = []
    imported: list[str] = []
    if now.state is not State.APPLIED:
        problems.append(f"{tree.root} is {now.state}: {now.reason}")
    if now.outdated:
        notes.append("applied by another hsbench than this one: `hsbench patch apply` brings it up to date")
    paths = [file.path for file in now.files]
    problems += _uncompilable(tree, paths)
    if not problems and import_modules and tree.python is not None:
        imported, found = _import(tree, tree.python, paths)
        problems += found
    elif not problems:
        why = "as asked" if tree.python is not None else "no interpreter is known for it; name one with --python"
        notes.append(f"compiled only, not imported: {why}")
    return Verified(not problems, tuple(problems), tuple(imported), tuple(notes))


def _uncompilable(tree: Tree, paths: list[str]) -> Iterator[str]:
    for path in paths:
        try:
            compile((tree.root / path).read_bytes(), path, "exec", dont_inherit=True)
        except FileNotFoundError:
            yield f"{path} is missing"
        except (SyntaxError, ValueError) as error:
            yield f"{path} does not compile: {error}"


def _import(tree: Tree, python: str, paths: list[str]) -> tuple[list[str], list[str]]:
    """Import the modules one after the other. Returns those that came from this tree, and the problems."""
    names = tuple("sglang." + path.removesuffix(".py").replace("/", ".") for path in paths)
    env = dict(os.environ)
    if tree.by_target:
        inherited = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
        env["PYTHONPATH"] = os.pathsep.join([str(tree.root.parent), *inherited])
    try:
        answers, stderr = ask_interpreter(python, _IMPORT, names, IMPORT_TIMEOUT_S, env)
    except PatchError as error:
        return [], [error.message]
    imported: list[str] = []
    problems: list[str] = []
    root = tree.root.resolve()
    for name, *places in map(json.loads, answers):
        strange = [place for place in places if not Path(place).resolve().is_relative_to(root)]
        problems += [f"{python} imports {place} in place of this tree's {name}" for place in strange]
        imported += [] if strange else [name]
    if len(answers) < len(names):
        last = (stderr.strip().splitlines() or ["no output"])[-1]
        problems.append(f"{names[len(answers)]} does not import in {python}: {last}")
    return imported, problems
