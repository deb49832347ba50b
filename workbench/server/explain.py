"""Does the installed SGLang read a flag at all? Its source is searched for reads of the flag's field.

Flags outlive the code that used them: SGLang 0.5.23 accepts `--num-continuous-decode-steps` and reads it nowhere.
A read is the field as an attribute (`server_args.tp_size`) or as the name given to `getattr`. What declares flags,
lists them or writes them is no read.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.server.engine import Engine

SHOWN = 12


class Read(msgspec.Struct, frozen=True):
    """A place where a flag's field is read."""

    path: str
    """Below the package's folder."""
    line: int
    code: str


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a flag."""

    flag: str
    field: str
    version: str
    declared: bool
    reads: tuple[Read, ...]
    near: tuple[str, ...] = ()
    """Flags that begin like it, when it is none."""

    def describe(self) -> str:
        """For a person, one line and then the places."""
        if not self.declared:
            near = f"; it takes {', '.join(self.near)}" if self.near else ""
            return f"{self.flag} is no flag of SGLang {self.version}{near}"
        if not self.reads:
            return (
                f"{self.flag} is accepted by SGLang {self.version} and read nowhere: it has no effect\n"
                f"  looked for: reads of the field {self.field!r} outside its declaration, in every file of the package"
            )
        files = len({read.path for read in self.reads})
        lines = [f"{self.flag} is read in {len(self.reads)} places of {files} files of SGLang {self.version}"]
        lines += [f"  {read.path}:{read.line}  {read.code}" for read in self.reads[:SHOWN]]
        rest = len(self.reads) - SHOWN
        return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)


def explain(flag: str, engine: Engine) -> Explained:
    """Search an engine's source for what reads a flag. Imports and changes nothing.

    Raises:
        UsageError: this is not the form of a flag.
    """
    if not flag.startswith("--"):
        flag = f"--{flag.lstrip('-')}"
    field = flag[2:].partition("=")[0].replace("-", "_")
    if not field.isidentifier():
        raise UsageError(f"{flag!r} is not a flag", "such as --tp-size")
    name = f"--{field.replace('_', '-')}"
    aliases = set(_aliases(engine.root, name))
    reads = tuple(_reads(engine.root, aliases or {field}))
    declared = bool(aliases) or not engine.flags or name in engine.flags
    near = () if declared else tuple(sorted(known for known in engine.flags if known.startswith(name)))
    return Explained(flag=name, field=field, version=engine.version, declared=declared, reads=reads, near=near)


def _aliases(root: Path, flag: str) -> Iterator[str]:
    """The fields of other names that a flag stands for, as `--tp` does for `tp_size`."""
    for path in (root / "srt/server_args.py", *(root / "srt/arg_groups").rglob("*.py")):
        for node in _nodes(path, flag):
            if isinstance(node, ast.Call) and flag in _strings(node.args):
                names = [name for name in _strings(node.args) if name.startswith("--")]
                targets = _strings([word.value for word in node.keywords if word.arg == "dest"])
                yield from targets or [names[0][2:].replace("-", "_")]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                inside = [leaf.value for leaf in ast.walk(node.annotation) if isinstance(leaf, ast.Constant)]
                if flag in inside:
                    yield node.target.id


def _strings(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _reads(root: Path, fields: set[str]) -> Iterator[Read]:
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] == "_hs":
            continue
        for field in sorted(fields):
            for node in _nodes(path, field):
                if _is_read(node, field):
                    yield Read(str(path.relative_to(root)), node.lineno, ast.unparse(node)[:100])  # type: ignore[attr-defined]


def _nodes(path: Path, word: str) -> Iterator[ast.AST]:
    """The nodes of a file, if the word occurs in it at all: most files need not be parsed."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        if word in text:
            yield from ast.walk(ast.parse(text))
    except (OSError, SyntaxError, ValueError):
        return


def _is_read(node: ast.AST, field: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == field and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        return len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and node.args[1].value == field
    return False
