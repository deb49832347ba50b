"""The codemod: hooks the recorder into the loop over a model's decoder blocks.

Two shapes of the loop are known. They are told apart by the source, not by the release's number.

`callback`
    (0.5.23) each block takes ``capture_output=``, a callback that receives the full residual stream which
    enters the block; ``final_norm`` takes ``capture=`` likewise for what enters the final norm.
`pair`
    (0.5.15) the loop carries the hidden states and the residual apart and appends their sum itself;
    ``self.norm`` adds them and returns the normed state and the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from patches.codemods import BlockLoop
from patches.codemods.rewrite import Source, Statement, walk

IMPORT = "from sglang._hs import recorder as _hs_recorder"
_NORM = m.Attribute(value=m.Name("self"), attr=m.Name("norm"))
_CAPTURED = m.Attribute(value=m.Name("self"), attr=m.Name("layers_to_capture"))


@dataclass(frozen=True)
class Place:
    """A block loop that was found: `var` is the name of the block's number inside it."""

    source: Source
    model: str
    forward: cst.FunctionDef
    loop: cst.For
    var: str

    @property
    def where(self) -> str:
        return f"in the block loop of {self.model}.forward"

    def inside(self, root: cst.CSTNode, pattern: m.BaseMatcherNode) -> list[cst.CSTNode]:
        return [node for node in walk(root) if m.matches(node, pattern)]


@dataclass(frozen=True)
class Style:
    """One shape of the loop: how it is recognised and how the recorder's calls enter it."""

    name: str
    looks_for: str
    signs: Callable[[Place], list[cst.CSTNode]]
    edit: Callable[[Place, cst.CSTNode], None]


def edit(source: bytes, file: str, loops: Sequence[BlockLoop]) -> bytes:
    """See `patches.codemods.edit`."""
    tree = Source(source, file)
    for loop in loops:
        place = _find_loop(tree, loop)
        style, sign = _recognise(place)
        tree.before(_statement_of_forward(place), "_hs_pass = _hs_recorder.begin(self, forward_batch)\n")
        style.edit(place, sign)
    tree.after(_last_import(tree), IMPORT + "\n")
    return tree.edited()


def _last_import(source: Source) -> Statement:
    """The last import at module level that stands before the first class or function."""
    last: Statement | None = None
    for statement in source.module.body:
        if isinstance(statement, cst.ClassDef | cst.FunctionDef):
            break
        if m.matches(statement, m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])):
            last = statement
    return last or source.refuse("looked for imports at the top of the module, found none")


def _find_loop(source: Source, spec: BlockLoop) -> Place:
    top = source.module.body
    classes = [n for n in top if isinstance(n, cst.ClassDef) and n.name.value == spec.model]
    body = source.one(f"class {spec.model}", classes).body.body
    forwards = [n for n in body if isinstance(n, cst.FunctionDef) and n.name.value == "forward"]
    forward = source.one(f"{spec.model}.forward", forwards)
    names = [parameter.name.value for parameter in forward.params.params]
    for name in ("self", "forward_batch"):
        source.one(f"parameter {name} of {spec.model}.forward", [n for n in names if n == name])
    loops = [n for n in walk(forward.body) if isinstance(n, cst.For) and _is_block_loop(source, n, spec)]
    what = f"`for i in range({', '.join(spec.bounds)})` over self.layers[i] in {spec.model}.forward"
    loop = source.one(what, loops)
    return Place(source, spec.model, forward, loop, cst.ensure_type(loop.target, cst.Name).value)


def _is_block_loop(source: Source, loop: cst.For, spec: BlockLoop) -> bool:
    """Over the range of the spec, its variable set nowhere else, and used to pick `self.layers[i]`."""
    call = m.Call(func=m.Name("range"), args=[m.Arg(), m.Arg()])
    if not isinstance(loop.target, cst.Name) or not m.matches(loop.iter, call):
        return False
    bounds = tuple(source.text(arg.value) for arg in cst.ensure_type(loop.iter, cst.Call).args)
    number = m.Name(loop.target.value)
    layers = m.Attribute(value=m.Name("self"), attr=m.Name("layers"))
    picks = m.Subscript(value=layers, slice=[m.SubscriptElement(slice=m.Index(value=number))])
    sets = m.AssignTarget(target=number) | m.AugAssign(target=number) | m.For(target=number)
    inside = list(walk(loop.body))
    return (
        bounds == spec.bounds
        and isinstance(loop.body, cst.IndentedBlock)
        and any(m.matches(node, picks) for node in inside)
        and not any(m.matches(node, sets) for node in inside)
    )


def _statement_of_forward(place: Place) -> Statement:
    """The statement of `forward`'s own body that holds the loop, so that the pass exists on every path."""
    holding = [s for s in place.forward.body.body if any(node is place.loop for node in walk(s))]
    statement = holding[0]
    assert isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    return statement


def _recognise(place: Place) -> tuple[Style, cst.CSTNode]:
    signs = {style.name: style.signs(place) for style in STYLES}
    recognised = [style for style in STYLES if signs[style.name]]
    if len(recognised) != 1:
        looked = ", or ".join(f"{style.looks_for} ({len(signs[style.name])} times)" for style in STYLES)
        place.source.refuse(f"looked for exactly one of {looked} {place.where}")
    style = recognised[0]
    return style, place.source.one(f"{style.looks_for} {place.where}", signs[style.name])


def _assigned_call(call: m.Call, target: m.Name | m.Tuple) -> m.SimpleStatementLine:
    return m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=target)], value=call)])


def _only_call(statement: cst.CSTNode) -> tuple[cst.BaseExpression, cst.Call]:
    """Target and call of a statement that `_assigned_call` matched."""
    line = cst.ensure_type(statement, cst.SimpleStatementLine)
    assign = cst.ensure_type(line.body[0], cst.Assign)
    return assign.targets[0].target, cst.ensure_type(assign.value, cst.Call)


# Style `callback`.


def _capture_keywords(place: Place) -> list[cst.CSTNode]:
    return place.inside(place.loop.body, m.Arg(keyword=m.Name("capture_output")))


def _edit_callback(place: Place, keyword: cst.CSTNode) -> None:
    source = place.source
    call = m.Call(
        func=m.Attribute(attr=m.Name("final_norm")),
        args=[m.ZeroOrMore(), m.Arg(value=_NORM), m.ZeroOrMore()],
    )
    found = place.inside(place.forward.body, _assigned_call(call, m.Name()))
    statement = source.one(f"`hidden_states = ….final_norm(…, self.norm)` in {place.model}.forward", found)
    target, norm = _only_call(statement)
    _wrap(source, keyword, f"_hs_recorder.capture(_hs_pass, {place.var}, {{}})")
    captures = [arg for arg in norm.args if arg.keyword is not None and arg.keyword.value == "capture"]
    if captures:
        _wrap(source, captures[0], "_hs_recorder.final_capture(_hs_pass, {})")
    else:
        source.change(norm, _add_capture)
    _finish(source, statement, source.text(target))


def _wrap(source: Source, arg: cst.CSTNode, template: str) -> None:
    """Put the argument's value, on one line, into `template`."""
    value = source.text(source.one_line(cst.ensure_type(arg, cst.Arg).value))
    wrapped = cst.parse_expression(template.format(value))
    source.change(arg, lambda node: node.with_changes(value=wrapped))


def _add_capture(node: cst.CSTNode) -> cst.CSTNode:
    """Append `capture=` on the line of the last argument, which may end in a comma and a line break."""
    call = cst.ensure_type(node, cst.Call)
    last = call.args[-1]
    added = last.with_changes(
        keyword=cst.Name("capture"),
        star="",
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        value=cst.parse_expression("_hs_recorder.final_capture(_hs_pass)"),
    )
    kept = last.with_changes(
        comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
        whitespace_after_arg=cst.SimpleWhitespace(""),
    )
    return call.with_changes(args=[*call.args[:-1], kept, added])


# Style `pair`.


def _captured_ifs(place: Place) -> list[cst.CSTNode]:
    """`if i in self.layers_to_capture:` whose body appends a sum of two names."""
    test = m.Comparison(left=m.Name(place.var), comparisons=[m.ComparisonTarget(operator=m.In(), comparator=_CAPTURED)])
    return [n for n in place.inside(place.loop.body, m.If(test=test)) if len(_appended_sums(place, n)) == 1]


def _appended_sums(place: Place, captured_if: cst.CSTNode) -> list[cst.CSTNode]:
    add = m.BinaryOperation(left=m.Name(), operator=m.Add(), right=m.Name())
    appends = place.inside(captured_if, m.Call(func=m.Attribute(attr=m.Name("append")), args=[m.Arg()]))
    return [node for call in appends for node in place.inside(call, add)]


def _edit_pair(place: Place, captured_if: cst.CSTNode) -> None:
    source = place.source
    (added,) = _appended_sums(place, captured_if)
    total = cst.ensure_type(added, cst.BinaryOperation)
    hidden, residual = (cst.ensure_type(side, cst.Name).value for side in (total.left, total.right))
    call = m.Call(func=_NORM, args=[m.Arg(value=m.Name(hidden)), m.Arg(value=m.Name(residual))])
    pair = m.Tuple(elements=[m.Element(value=m.Name()), m.Element(value=m.Name())])
    found = place.inside(place.forward.body, _assigned_call(call, pair))
    statement = source.one(f"`{hidden}, _ = self.norm({hidden}, {residual})` in {place.model}.forward", found)
    target, norm = _only_call(statement)
    first = cst.ensure_type(place.loop.body, cst.IndentedBlock).body[0]
    assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    source.before(first, f"_hs_recorder.entering(_hs_pass, {place.var}, {hidden}, {residual})\n")
    value = source.text(source.one_line(norm))
    wrapped = cst.parse_expression(f"_hs_recorder.final_pair(_hs_pass, {value})")
    source.change(norm, lambda _: wrapped)
    normed = cst.ensure_type(target, cst.Tuple).elements[0].value
    _finish(source, statement, source.text(normed))


def _finish(source: Source, statement: cst.CSTNode, normed: str) -> None:
    line = cst.ensure_type(statement, cst.SimpleStatementLine)
    source.after(line, f"_hs_recorder.finish(_hs_pass, {normed})\n")


STYLES = (
    Style("callback", "a block's argument capture_output=", _capture_keywords, _edit_callback),
    Style(
        "pair",
        "`if i in self.layers_to_capture` appending hidden + residual",
        _captured_ifs,
        _edit_pair,
    ),
)
