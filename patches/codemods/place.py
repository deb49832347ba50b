"""Finding the loop over the decoder blocks in a model class, whatever its shape."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from patches.codemods import BlockLoop
from patches.codemods.rewrite import Source, Statement, walk


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

    @property
    def statement(self) -> Statement:
        """The statement of `forward`'s own body that holds the loop: what stands before it is on every path."""
        holding = [s for s in self.forward.body.body if any(node is self.loop for node in walk(s))]
        assert isinstance(holding[0], cst.SimpleStatementLine | cst.BaseCompoundStatement)
        return holding[0]


def find_loop(source: Source, spec: BlockLoop) -> Place | None:
    """The loop, or None when the class has no `forward` of its own but `spec.inherits` one."""
    classes = [n for n in source.module.body if isinstance(n, cst.ClassDef) and n.name.value == spec.model]
    model = source.one(f"class {spec.model}", classes)
    forwards = [n for n in model.body.body if isinstance(n, cst.FunctionDef) and n.name.value == "forward"]
    if not forwards and spec.inherits in [source.text(base.value) for base in model.bases]:
        return None
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
