"""The codemod for the end of the blocks: the residual stream that enters the final norm, and what leaves it.

Two shapes are known, told apart by the source:

`stream`
    ``x = ….final_norm(…, self.norm)`` (in 0.5.21 ``….norm(…, self.norm)``), which takes a callback for the
    residual stream that it norms.
`pair`
    ``x, _ = self.norm(hidden_states, residual)``, which adds the two and returns the normed state and the sum.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from patches.codemods.place import Place
from patches.codemods.rewrite import wrap

_NORM = m.Attribute(value=m.Name("self"), attr=m.Name("norm"))
_CAPTURES = {"final_norm": "capture", "norm": "capture_output"}
"""Name of the engine's function → its parameter for the callback."""


def hook_final_norm(place: Place, carried: tuple[str, str] | None) -> None:
    """Hook the recorder in; `carried` names the two tensors that the loop carries apart, if it does."""
    streams = place.inside(place.forward.body, _assigned(_stream_call(), m.Name()))
    pairs = place.inside(place.forward.body, _assigned(_pair_call(carried), _two())) if carried else []
    what = "`hidden_states = ….final_norm(…, self.norm)`"
    if carried:
        what += f" or `{carried[0]}, _ = self.norm({', '.join(carried)})`"
    statement = place.source.one(f"{what} in {place.model}.forward", [*streams, *pairs])
    line = cst.ensure_type(statement, cst.SimpleStatementLine)
    assign = cst.ensure_type(line.body[0], cst.Assign)
    call, target = cst.ensure_type(assign.value, cst.Call), assign.targets[0].target
    if isinstance(target, cst.Tuple):
        _hook_pair(place, call)
        normed = place.source.text(target.elements[0].value)
    else:
        _hook_stream(place, call)
        normed = place.source.text(target)
    place.source.after(line, f"_hs_recorder.finish(_hs_pass, {normed})\n")


def _stream_call() -> m.Call:
    names = m.OneOf(*(m.Name(name) for name in _CAPTURES))
    return m.Call(func=m.Attribute(attr=names), args=[m.ZeroOrMore(), m.Arg(value=_NORM), m.ZeroOrMore()])


def _pair_call(carried: tuple[str, str]) -> m.Call:
    return m.Call(func=_NORM, args=[m.Arg(value=m.Name(name)) for name in carried])


def _two() -> m.Tuple:
    return m.Tuple(elements=[m.Element(value=m.Name()), m.Element(value=m.Name())])


def _assigned(call: m.Call, target: m.Name | m.Tuple) -> m.SimpleStatementLine:
    return m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=target)], value=call)])


def _hook_stream(place: Place, call: cst.Call) -> None:
    keyword = _CAPTURES[cst.ensure_type(call.func, cst.Attribute).attr.value]
    captures = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value == keyword]
    if captures:
        wrap(place.source, captures[0], "_hs_recorder.final_capture(_hs_pass, {})")
    else:
        place.source.change(call, lambda node: _with_capture(node, keyword))


def _hook_pair(place: Place, call: cst.Call) -> None:
    value = place.source.text(place.source.one_line(call))
    wrapped = cst.parse_expression(f"_hs_recorder.final_pair(_hs_pass, {value})")
    place.source.change(call, lambda _: wrapped)


def _with_capture(node: cst.CSTNode, keyword: str) -> cst.CSTNode:
    """Append the keyword on the line of the last argument, which may end in a comma and a line break."""
    call = cst.ensure_type(node, cst.Call)
    last = call.args[-1]
    added = last.with_changes(
        keyword=cst.Name(keyword),
        star="",
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        value=cst.parse_expression("_hs_recorder.final_capture(_hs_pass)"),
    )
    kept = last.with_changes(
        comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
        whitespace_after_arg=cst.SimpleWhitespace(""),
    )
    return call.with_changes(args=[*call.args[:-1], kept, added])
