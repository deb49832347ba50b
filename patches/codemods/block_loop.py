"""The codemod: hooks the recorder into the loop over a model's decoder blocks.

Three shapes of the loop are known. They are told apart by the source, not by the release's number.

`callback`
    each block takes ``capture_output=``, a callback that receives the full residual stream which enters it.
`accumulator`
    (DeepSeek, Qwen MoE) each block takes ``captured_last_layer_outputs=``, an accumulator to which it hands
    the residual stream which enters it, in the rows that its attention works on.
`pair`
    the loop carries the hidden states and the residual apart and collects their sum itself, before block i
    or (0.5.17 to 0.5.20, gpt-oss) after it.

The final norm has shapes of its own: see `final_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from patches.codemods import BlockLoop
from patches.codemods.final_norm import hook_final_norm
from patches.codemods.place import Place, find_loop
from patches.codemods.rewrite import Source, Statement, wrap

IMPORT = "from sglang._hs import recorder as _hs_recorder"
_CAPTURED = m.Attribute(value=m.Name("self"), attr=m.Name("layers_to_capture"))

Carried = tuple[str, str] | None
"""Names of the hidden states and the residual, where the loop carries them apart."""


@dataclass(frozen=True)
class Style:
    """One shape of the loop: how it is recognised and how the recorder's calls enter it."""

    name: str
    looks_for: str
    signs: Callable[[Place], list[cst.CSTNode]]
    edit: Callable[[Place, cst.CSTNode], Carried]


def edit(source: bytes, file: str, loops: Sequence[BlockLoop]) -> bytes:
    """See `patches.codemods.edit`."""
    tree = Source(source, file)
    found = [place for loop in loops if (place := find_loop(tree, loop)) is not None]
    if not found:
        return source
    for place in found:
        style, sign = _recognise(place)
        tree.before(place.statement, "_hs_pass = _hs_recorder.begin(self, forward_batch)\n")
        hook_final_norm(place, style.edit(place, sign))
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


def _recognise(place: Place) -> tuple[Style, cst.CSTNode]:
    signs = {style.name: style.signs(place) for style in STYLES}
    recognised = [style for style in STYLES if signs[style.name]]
    if len(recognised) != 1:
        looked = ", or ".join(f"{style.looks_for} ({len(signs[style.name])} times)" for style in STYLES)
        place.source.refuse(f"looked for exactly one of {looked} {place.where}")
    style = recognised[0]
    return style, place.source.one(f"{style.looks_for} {place.where}", signs[style.name])


# Style `callback`.


def _callback_keywords(place: Place) -> list[cst.CSTNode]:
    return place.inside(place.loop.body, m.Arg(keyword=m.Name("capture_output")))


def _edit_callback(place: Place, keyword: cst.CSTNode) -> Carried:
    wrap(place.source, keyword, f"_hs_recorder.capture(_hs_pass, {place.var}, {{}})")
    return None


# Style `accumulator`.


def _accumulator_keywords(place: Place) -> list[cst.CSTNode]:
    return place.inside(place.loop.body, m.Arg(keyword=m.Name("captured_last_layer_outputs")))


def _edit_accumulator(place: Place, keyword: cst.CSTNode) -> Carried:
    wrap(place.source, keyword, f"_hs_recorder.accumulate(_hs_pass, {place.var}, {{}})")
    return _assigned_pair(place, keyword)


def _assigned_pair(place: Place, keyword: cst.CSTNode) -> Carried:
    """The first two names that the block's call is assigned to: the hidden states and the residual, if apart."""
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Tuple())], value=m.Call())
    calls = [cst.ensure_type(node, cst.Assign) for node in place.inside(place.loop.body, pattern)]
    for assign in calls:
        if keyword in cst.ensure_type(assign.value, cst.Call).args:
            first, second = cst.ensure_type(assign.targets[0].target, cst.Tuple).elements[:2]
            return place.source.text(first.value), place.source.text(second.value)
    return None


# Style `pair`.


def _captured_ifs(place: Place) -> list[cst.CSTNode]:
    """`if i in self.layers_to_capture:`, or with `i + 1`, whose body collects a sum of two names."""
    one = m.BinaryOperation(left=m.Name(place.var), operator=m.Add(), right=m.Integer("1"))
    number = m.Name(place.var) | one
    test = m.Comparison(left=number, comparisons=[m.ComparisonTarget(operator=m.In(), comparator=_CAPTURED)])
    return [n for n in place.inside(place.loop.body, m.If(test=test)) if len(_collected_sums(place, n)) == 1]


def _collected_sums(place: Place, captured_if: cst.CSTNode) -> list[tuple[str, str]]:
    """The two names of each `a + b` or `snapshot(a, b)` inside a call of `append`."""
    added = m.BinaryOperation(left=m.Name(), operator=m.Add(), right=m.Name())
    copied = m.Call(func=m.Name("snapshot"), args=[m.Arg(value=m.Name()), m.Arg(value=m.Name())])
    appends = place.inside(captured_if, m.Call(func=m.Attribute(attr=m.Name("append")), args=[m.Arg()]))
    return [_two_names(node) for call in appends for node in place.inside(call, added | copied)]


def _two_names(node: cst.CSTNode) -> tuple[str, str]:
    sides = [node.left, node.right] if isinstance(node, cst.BinaryOperation) else []
    sides = sides or [arg.value for arg in cst.ensure_type(node, cst.Call).args]
    first, second = (cst.ensure_type(side, cst.Name).value for side in sides)
    return first, second


def _edit_pair(place: Place, captured_if: cst.CSTNode) -> Carried:
    ((hidden, residual),) = _collected_sums(place, captured_if)
    first = cst.ensure_type(place.loop.body, cst.IndentedBlock).body[0]
    assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    place.source.before(first, f"_hs_recorder.entering(_hs_pass, {place.var}, {hidden}, {residual})\n")
    return hidden, residual


STYLES = (
    Style("callback", "a block's argument capture_output=", _callback_keywords, _edit_callback),
    Style(
        "accumulator",
        "a block's argument captured_last_layer_outputs=",
        _accumulator_keywords,
        _edit_accumulator,
    ),
    Style("pair", "`if i in self.layers_to_capture` appending hidden + residual", _captured_ifs, _edit_pair),
)
