"""Finding one node by what it means and editing around it, for all codemods."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

import libcst as cst

from patches.codemods.mark import MARK
from patches.errors import PatchError

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Found = TypeVar("Found")
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)


class Source:
    """One module being edited. Edits are collected by node and made in a single walk.

    Args:
        source: The file's bytes; must be UTF-8 with plain newlines, as every SGLang release ships it.
        file: Its name in messages.
    """

    def __init__(self, source: bytes, file: str) -> None:
        self.file = file
        _refuse_odd_bytes(source, file)
        try:
            self.module = cst.parse_module(source)
        except (cst.ParserSyntaxError, UnicodeDecodeError) as error:
            reason = _reason(source, error)
            raise PatchError(f"{file}: cannot be parsed as Python: {reason}", REINSTALL) from error
        self._changes: dict[cst.CSTNode, list[Callable[[cst.CSTNode], cst.CSTNode]]] = {}
        self._before: dict[cst.CSTNode, list[Statement]] = {}
        self._after: dict[cst.CSTNode, list[Statement]] = {}

    def text(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def one(self, what: str, found: Sequence[Found]) -> Found:
        """The only element of `found`; `what` says in the message what was looked for."""
        if len(found) == 1:
            return found[0]
        return self.refuse(f"looked for {what}, found it {len(found)} times, expected once")

    def refuse(self, why: str) -> NoReturn:
        raise PatchError(f"{self.file}: {why}", UNKNOWN)

    def change(self, node: cst.CSTNode, how: Callable[[cst.CSTNode], cst.CSTNode]) -> None:
        """Replace `node` by `how(node)`, where `node` already holds the changes inside it."""
        self._changes.setdefault(node, []).append(how)

    def before(self, statement: Statement, text: str) -> None:
        self._before.setdefault(statement, []).append(cst.parse_statement(text))

    def after(self, statement: Statement, text: str) -> None:
        self._after.setdefault(statement, []).append(cst.parse_statement(text))

    def one_line(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """`node` written on one line, so that the single line that changes can carry the mark."""
        code = self.text(node)
        if "\n" not in code:
            return node
        return cst.parse_expression(ast.unparse(ast.parse(f"({code})", mode="eval")))

    def edited(self) -> bytes:
        """The module with all edits, compiled once so that nothing broken is ever published."""
        result = self.module.visit(_Walk(self._changes, self._before, self._after)).bytes
        try:
            compile(result, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise PatchError(f"{self.file}: the edited source does not compile: {error}") from error
        return result


def wrap(source: Source, arg: cst.CSTNode, template: str) -> None:
    """Put the argument's value, on one line, into `template`."""
    value = source.text(source.one_line(cst.ensure_type(arg, cst.Arg).value))
    wrapped = cst.parse_expression(template.format(value))
    source.change(arg, lambda node: node.with_changes(value=wrapped))


UNKNOWN = (
    "this release's source is not one that the patch knows; `hsbench patch support` shows the families that it knows, "
    "`hsbench patch apply --family NAME` takes one"
)
REINSTALL = "reinstall this SGLang release, then apply again"


def _refuse_odd_bytes(source: bytes, file: str) -> None:
    if source.startswith(b"\xef\xbb\xbf"):
        raise PatchError(f"{file}: starts with a byte order mark, which no release ships", REINSTALL)
    if b"\r" in source:
        count = source.count(b"\r")
        raise PatchError(f"{file}: has {count} carriage returns (CRLF), which no release ships", REINSTALL)
    if MARK.search(source):
        raise PatchError(f"{file}: already carries lines with _hs_", REINSTALL)


def _reason(source: bytes, error: Exception) -> str:
    """In one line; Python's own parser says it best."""
    try:
        ast.parse(source)
    except SyntaxError as better:
        return f"line {better.lineno}: {better.msg}"
    except ValueError as better:
        return str(better)
    return str(error).splitlines()[0]


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """`node` and everything in it, but not what stands inside functions and classes nested in it."""
    yield node
    for child in node.children:
        if not isinstance(child, _SCOPES):
            yield from walk(child)


class _Walk(cst.CSTTransformer):
    def __init__(
        self,
        changes: dict[cst.CSTNode, list[Callable[[cst.CSTNode], cst.CSTNode]]],
        before: dict[cst.CSTNode, list[Statement]],
        after: dict[cst.CSTNode, list[Statement]],
    ) -> None:
        super().__init__()
        self._changes, self._before, self._after = changes, before, after

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        for how in self._changes.get(original_node, ()):
            updated_node = how(updated_node)
        before, after = self._before.get(original_node, []), self._after.get(original_node, [])
        if before or after:
            return cst.FlattenSentinel([*before, updated_node, *after])
        return updated_node
