"""Needless work: nodes that give back an operand, and pairs of them that undo each other.

Requires a legal graph. Ensures that none of these remains, unless its result is an output of the program that has
to keep its name while its operand has one of its own:

    copy(x), cast to the same type, reshape, sum_to, broadcast_to, tile and transpose to the same        x
    x + 0, x - 0, x * 1, x / 1, x ** 1, neg(neg(x)), logical_not(logical_not(x)), where(c, x, x)         x
    a cast to a type that holds every number of the first, and back                                      x
    to_nhwc(to_nchw(x)) and the other way round, flip twice                                              x
    cast of such a cast, reshape of reshape, transpose of transpose                                 one of them

x + 0 for x = -0.0 is 0.0, which compares equal and is what x gives here; nothing else changes in a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sublet.base.tensor import DType
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import pick, spec_of
from sublet.passes.literals import same_number
from sublet.passes.rewriting import Rewriter

Made = Mapping[Value, Node]
"""The node that computes each value."""

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
"""For each type, those that hold all its numbers; all types hold those of bool."""


def without_needless_work(graph: Graph) -> Graph:
    """The graph without nodes that change nothing."""
    made: dict[Value, Node] = {}

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        put: Sequence[Node] = [node]
        if node.op in RULES and node.scratch is None and len(node.outputs) == 1 and node.outputs[0] is not None:
            found = RULES[node.op](node, made)
            if isinstance(found, Value) and rewriter.be(node.outputs[0], found):
                return []
            if isinstance(found, Node):
                put = [found]
        made.update((value, each) for each in put for value in each.defs)
        return put

    return Rewriter(graph, step).run()


Rule = Callable[[Node, Made], Value | Node | None]
"""What stands for a node: one of the values it knows, another node with the same output, or None for itself."""


def _x(node: Node, position: int = 0) -> Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _same_spec(node: Node, made: Made) -> Value | None:
    """The operand, when the result is declared as it is."""
    return _x(node) if node.outputs[0] is not None and _x(node).spec == node.outputs[0].spec else None


def _neutral(number: float, *positions: int) -> Rule:
    """The other operand, when the one at one of `positions` is `number` everywhere."""

    def rule(node: Node, made: Made) -> Value | None:
        for position in positions:
            other = _x(node, 1 - position)
            if same_number(_x(node, position), number) and node.outputs[0] and other.spec == node.outputs[0].spec:
                return other
        return None

    return rule


def _operand_made_by(op: str, node: Node, made: Made) -> Node | None:
    """The node of that op whose result this node takes."""
    before = made.get(_x(node))
    return before if before is not None and before.op == op and before.scratch is None else None


def _undoes(op: str) -> Rule:
    """The operand's operand, when `op` made the operand with equal attributes."""

    def rule(node: Node, made: Made) -> Value | None:
        before = _operand_made_by(op, node, made)
        return _x(before) if before is not None and dict(before.attrs) == dict(node.attrs) else None

    return rule


def _after(node: Node, before: Node, **attrs: object) -> Node:
    """The node on the operand of the one before it."""
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
    """Whether the target type holds every number of the source type."""
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
"""By op."""
