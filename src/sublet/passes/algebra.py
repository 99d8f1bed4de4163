"""Algebraic simplification: remove nodes returning an operand, and pairs of nodes cancelling each other.

Requires a legal graph. Ensures that none of the following patterns remains. Exception: a result that is an output of
the program and whose operand cannot take over the name of the output.

    copy(x), cast to the same type, reshape, sum_to, broadcast_to, tile and transpose to the same        x
    x + 0, x - 0, x * 1, x / 1, x ** 1, neg(neg(x)), logical_not(logical_not(x)), where(c, x, x)         x
    a cast to a type with every number of the first, and back                                            x
    to_nhwc(to_nchw(x)), to_nchw(to_nhwc(x)), flip twice                                                 x
    cast of a lossless cast, reshape of reshape, transpose of transpose                    a single command

Bits change in one case: x + 0 with x = -0.0 becomes -0.0 instead of 0.0. Both compare equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sublet.base.tensor import DType
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import pick, spec_of
from sublet.passes.literals import same_number
from sublet.passes.rewriting import Rewriter

Made = Mapping[Value, Node]
"""The defining node of each value."""

EXACT = {
    DType.F16: (DType.F32, DType.F64),
    DType.BF16: (DType.F32, DType.F64),
    DType.F32: (DType.F64,),
    DType.I8: (DType.I16, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64),
    DType.U8: (
        *(DType.I16, DType.I32, DType.I64, DType.U16, DType.U32, DType.U64),
        *(DType.F16, DType.BF16, DType.F32, DType.F64),
    ),
    DType.I16: (DType.I32, DType.I64, DType.F32, DType.F64),
    DType.U16: (DType.I32, DType.I64, DType.U32, DType.U64, DType.F32, DType.F64),
    DType.I32: (DType.I64, DType.F64),
    DType.U32: (DType.I64, DType.U64, DType.F64),
}
"""For each type the types holding all its numbers. Every type holds the numbers of bool."""


def without_needless_work(graph: Graph) -> Graph:
    """Return the graph without nodes computing an identity."""
    definitions: dict[Value, Node] = {}

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        replacing: Sequence[Node] = [node]
        if node.op in RULES and node.scratch is None and len(node.outputs) == 1 and node.outputs[0] is not None:
            result = RULES[node.op](node, definitions)
            if isinstance(result, Value) and rewriter.be(node.outputs[0], result):
                return []
            if isinstance(result, Node):
                replacing = [result]
        definitions.update((value, each) for each in replacing for value in each.defs)
        return replacing

    return Rewriter(graph, step).run()


Rule = Callable[[Node, Made], Value | Node | None]
"""Returns the replacement of a node: a known value, a different node with the same output, or None to keep the node."""


def _x(node: Node, position: int = 0) -> Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _same_spec(node: Node, made: Made) -> Value | None:
    """Return the operand if the result has the spec of the operand."""
    return _x(node) if node.outputs[0] is not None and _x(node).spec == node.outputs[0].spec else None


def _neutral(number: float, *positions: int) -> Rule:
    """Return a rule replacing the node by one operand if the operand at one of `positions` is `number` everywhere."""

    def rule(node: Node, made: Made) -> Value | None:
        for position in positions:
            other = _x(node, 1 - position)
            if same_number(_x(node, position), number) and node.outputs[0] and other.spec == node.outputs[0].spec:
                return other
        return None

    return rule


def _operand_made_by(op: str, node: Node, made: Made) -> Node | None:
    """Return the node defining the first operand if the op of the defining node is `op`, else None."""
    before = made.get(_x(node))
    return before if before is not None and before.op == op and before.scratch is None else None


def _undoes(op: str) -> Rule:
    """Return a rule: the node becomes the operand of its operand if `op` defines the operand with equal attributes."""

    def rule(node: Node, made: Made) -> Value | None:
        before = _operand_made_by(op, node, made)
        return _x(before) if before is not None and dict(before.attrs) == dict(node.attrs) else None

    return rule


def _after(node: Node, before: Node, **attrs: object) -> Node:
    """Return `node` reading the inputs of `before` directly, with `attrs` changed."""
    changed = {**node.attrs, **attrs}
    return Node(node.name, node.op, before.inputs, node.outputs, changed, node.source)  # type: ignore[arg-type]


def _reshape(node: Node, made: Made) -> Value | Node | None:
    before = _operand_made_by(node.op, node, made)
    if before is None:
        return _same_spec(node, made)
    shorter = _after(node, before)
    return _same_spec(shorter, made) or shorter


def _cast(node: Node, made: Made) -> Value | Node | None:
    before = _operand_made_by(node.op, node, made)
    if before is None or not exact(spec_of(_x(before)).dtype, spec_of(_x(node)).dtype):
        return _same_spec(node, made)
    shorter = _after(node, before)
    return _same_spec(shorter, made) or shorter


def exact(source: DType, target: DType) -> bool:
    """True if the target type holds every number of the source type."""
    return source is target or source is DType.BOOL or target in EXACT.get(source, ())


def _transpose(node: Node, made: Made) -> Value | Node | None:
    axes = tuple(pick(node.attrs, "axes")) or tuple(reversed(range(len(spec_of(_x(node)).shape))))
    before = _operand_made_by(node.op, node, made)
    if before is not None:
        first = tuple(pick(before.attrs, "axes")) or tuple(reversed(range(len(axes))))
        axes = tuple(first[axis % len(axes)] % len(axes) for axis in axes)
        node = _after(node, before, axes=axes)
    if tuple(axis % len(axes) for axis in axes) == tuple(range(len(axes))):
        return _x(node)
    return node if before is not None else None


def _where(node: Node, made: Made) -> Value | None:
    same = _x(node, 1) == _x(node, 2) and node.outputs[0] is not None and _x(node, 1).spec == node.outputs[0].spec
    return _x(node, 1) if same else None


RULES: Mapping[str, Rule] = {
    "nn.copy": _same_spec,
    "nn.cast": _cast,
    "nn.reshape": _reshape,
    "nn.sum_to": _same_spec,
    "nn.broadcast_to": _same_spec,
    "nn.tile": _same_spec,
    "nn.concat": lambda node, made: _same_spec(node, made) if len(node.inputs) == 1 else None,
    "nn.transpose": _transpose,
    "nn.to_nhwc": _undoes("nn.to_nchw"),
    "nn.to_nchw": _undoes("nn.to_nhwc"),
    "nn.flip": _undoes("nn.flip"),
    "nn.neg": _undoes("nn.neg"),
    "nn.logical_not": _undoes("nn.logical_not"),
    "nn.add": _neutral(0, 0, 1),
    "nn.sub": _neutral(0, 1),
    "nn.mul": _neutral(1, 0, 1),
    "nn.div": _neutral(1, 1),
    "nn.pow": _neutral(1, 1),
    "nn.where": _where,
}
"""The rule of each op."""
