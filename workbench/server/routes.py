"""Which way the recorder gets into the engine, and why.

`plugin`
    SGLang calls hsbench's plug-in, which edits the model's source in memory as it is imported. It edits no file and
    asks nothing else of the engine, so it comes first.
`builtin`
    SGLang itself captures, and hooks hand the states over. It edits nothing either, but the engine then makes copies
    of its own in every pass, and only newer releases can do it.
`patch`
    hsbench edits the engine's files. It needs nothing of hsbench installed beside the engine, so it always remains.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from workbench.errors import Missing, UsageError
from workbench.models.folder import ModelFacts
from workbench.server.engine import Engine
from workbench.server.flags import given
from workbench.server.specs import Capture, DumpSpec

AUX_FLAG = "--enable-return-aux-hidden-states"
HOOKS_FLAG = "--forward-hooks"
METHOD_FLAG = "--speculative-algorithm"
IDS_FLAG = "--return-aux-hidden-state-layer-ids"
SPECULATIVE = "--speculative-"
WHY: dict[Capture, str] = {
    "plugin": "it edits no file and costs the engine no copies of its own",
    "builtin": "it edits no file",
    "patch": "nothing of hsbench has to be installed beside the engine",
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The way taken. `flags` are what it needs on SGLang's command line."""

    name: Capture
    why: str
    flags: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Model files, below `sglang/`, that the plug-in is to edit; none leaves it all that it knows."""

    def describe(self) -> str:
        """For a person."""
        return f"hidden states are captured by the route {self.name}: {self.why}"


def choose(dump: DumpSpec, flags: tuple[str, ...], engine: Engine, model: ModelFacts) -> Route:
    """The route asked for, or of `auto` the least invasive one that this release and model will take.

    Args:
        dump: What is to be recorded.
        flags: The user's flags for SGLang.
        engine: The SGLang to run.
        model: What is known of the model.

    Raises:
        Missing: the route asked for is not to be had here.
        UsageError: the user's flags take what the route needs.
    """
    asked = _Asked(dump, flags, engine, model)
    if dump.route != "auto":
        obstacle = _OBSTACLES[dump.route](asked)
        if obstacle:
            raise Missing(f"the route {dump.route} is not open: {obstacle}", "--capture auto takes one that is")
        return _route(dump.route, "asked for", asked)
    closed: list[str] = []
    for name, find_obstacle in _OBSTACLES.items():
        if not (obstacle := find_obstacle(asked)):
            break
        closed.append(f"not {name}, as {obstacle}")
    return _route(name, "; ".join([WHY[name], *closed]), asked)


class _Asked(NamedTuple):
    """What `choose` is given."""

    dump: DumpSpec
    flags: tuple[str, ...]
    engine: Engine
    model: ModelFacts


def _route(name: Capture, why: str, asked: _Asked) -> Route:
    files = tuple(_edits(asked)) if name == "plugin" else ()
    return Route(name=name, why=why, flags=_flags_of(name, asked), files=files)


def _flags_of(name: Capture, asked: _Asked) -> tuple[str, ...]:
    if name != "builtin":
        return ()
    from patches.hooks import specs

    _refuse_taken(asked.flags)
    ids = [str(block) for block in blocks_of(asked.dump, asked.model) or ()]
    convention = "DFLASH" if _defines(asked, "set_dflash_layers_to_capture") else "EAGLE3"
    hooks = msgspec.json.encode(specs()).decode()
    return (AUX_FLAG, METHOD_FLAG, convention, IDS_FLAG, *ids, HOOKS_FLAG, hooks)


def _refuse_taken(flags: tuple[str, ...]) -> None:
    for flag in given(flags):
        if flag in (AUX_FLAG, HOOKS_FLAG, IDS_FLAG) or flag.startswith(SPECULATIVE):
            raise UsageError(f"{flag} is what the built-in route sets itself", "leave it out, or --capture plugin")


def blocks_of(dump: DumpSpec, model: ModelFacts) -> tuple[int, ...] | None:
    """The blocks that the recorder will keep; None when neither they nor the number of blocks is known."""
    if dump.blocks is not None:
        return dump.blocks
    count = model.num_blocks
    return None if count is None else (2, count // 2, count - 3)


# One function a route says in a few words why it is closed; empty when it is open. In the order of `auto`.


def _no_plugin(asked: _Asked) -> str:
    from patches.errors import PatchError

    if not asked.engine.has_plugin:
        return f"hsbench is not installed in {asked.engine.python}"
    if not (asked.engine.root / "srt" / "plugins").is_dir():
        return f"SGLang {asked.engine.version} has no plug-ins"
    try:
        covering = _edits(asked)
    except (PatchError, OSError) as error:
        return f"its edit does not fit this release: {error}"
    return (
        ""
        if covering or not asked.model.architectures
        else f"no edit is known for {', '.join(asked.model.architectures)}"
    )


def _no_builtin(asked: _Asked) -> str:
    if not asked.engine.has_plugin:
        return f"hsbench, whose hooks it needs, is not installed in {asked.engine.python}"
    absent = [flag for flag in (AUX_FLAG, HOOKS_FLAG, IDS_FLAG) if flag not in asked.engine.flags]
    if absent:
        return f"SGLang {asked.engine.version} has no {absent[0]}"
    if not (_defines(asked, "set_dflash_layers_to_capture") or _defines(asked, "set_eagle3_layers_to_capture")):
        return "SGLang cannot capture in this model's file"
    blocks = blocks_of(asked.dump, asked.model)
    if blocks is None:
        return "it must be told the blocks, and the model's configuration is not here: --layers"
    return "" if len(set(blocks)) == len(blocks) else "it takes every block once"


def _no_patch(asked: _Asked) -> str:
    return ""


_OBSTACLES: dict[Capture, Callable[[_Asked], str]] = {
    "plugin": _no_plugin,
    "builtin": _no_builtin,
    "patch": _no_patch,
}


def _files(root: Path, model: ModelFacts) -> Iterator[tuple[str, str]]:
    """Model files, with their text, that define a class of the model or that such a file imports from."""
    for path in sorted((root / "srt" / "models").glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if any(re.search(rf"^class {re.escape(name)}\b", text, re.MULTILINE) for name in model.architectures):
            yield f"srt/models/{path.name}", text
            for name in dict.fromkeys(re.findall(r"^\s*from sglang\.srt\.models\.(\w+) import", text, re.MULTILINE)):
                inner = path.with_name(f"{name}.py")
                if inner.is_file():
                    yield f"srt/models/{inner.name}", inner.read_text(encoding="utf-8", errors="replace")


def _covering(asked: _Asked) -> list[str]:
    """The files that hsbench would edit for this model."""
    from patches.codemods import FAMILIES, loops_by_file

    known = loops_by_file(FAMILIES)
    return list(dict.fromkeys(file for file, _ in _files(asked.engine.root, asked.model) if file in known))


def _edits(asked: _Asked) -> list[str]:
    """The files that really change; the classes of some inherit their loop from another file.

    Raises:
        PatchError: the codemods do not recognise one of them.
    """
    from patches.codemods.mark import MARK
    from patches.plugin import edited

    return [file for file in _covering(asked) if MARK.search(edited(asked.engine.root / file, file))]


def _defines(asked: _Asked, method: str) -> bool:
    """Whether SGLang's class for this model has the method, itself or from a base class."""
    models = asked.engine.root / "srt" / "models"
    return any(
        _has_method(path, name, method)
        for name in asked.model.architectures
        for path in sorted(models.glob("*.py"))
        if f"class {name}" in path.read_text(encoding="utf-8", errors="replace")
    )


def _has_method(path: Path, name: str, method: str) -> bool:
    """Follows the base classes through the file and into the model files that they are imported from."""
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else ast.Module([], [])
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        return False
    if any(isinstance(node, ast.FunctionDef) and node.name == method for node in found.body):
        return True
    homes = {
        alias.asname or alias.name: path.with_name(f"{str(node.module).rpartition('.')[2]}.py")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.models.")
        for alias in node.names
    }
    bases = [base.id for base in found.bases if isinstance(base, ast.Name)]
    return any(_has_method(homes.get(base, path), base, method) for base in bases if base != name)
