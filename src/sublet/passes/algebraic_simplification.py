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
from sublet.passes.constant_folding import is_filled_with
from sublet.passes.rewriting import Rewriter

Definitions = Mapping[Value, Node]
"""The defining node of each value."""

LOSSLESS_CASTS = {
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


def without_identities(graph: Graph) -> Graph:
    """Return the graph without nodes computing an identity."""
    definitions: dict[Value, Node] = {}

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        replacing: Sequence[Node] = [node]
        if node.op in RULES and node.scratch is None and len(node.outputs) == 1 and node.outputs[0] is not None:
            result = RULES[node.op](node, definitions)
            if isinstance(result, Value) and rewriter.replace_value(node.outputs[0], result):
                return []
            if isinstance(result, Node):
                replacing = [result]
        definitions.update((value, each) for each in replacing for value in each.defs)
        return replacing

    return Rewriter(graph, step).run()


Rule = Callable[[Node, Definitions], Value | Node | None]
"""Returns the replacement of a node: a known value, a different node with the same output, or None to keep the node."""


def _operand(node: Node, position: int = 0) -> Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _operand_if_same_spec(node: Node, definitions: Definitions) -> Value | None:
    """Return the operand if the result has the spec of the operand."""
    return _operand(node) if node.outputs[0] is not None and _operand(node).spec == node.outputs[0].spec else None


def _drop_neutral_operand(number: float, *positions: int) -> Rule:
    """Return a rule replacing the node by one operand if the operand at one of `positions` is `number` everywhere."""

    def rule(node: Node, definitions: Definitions) -> Value | None:
        for position in positions:
            other = _operand(node, 1 - position)
            if (
                is_filled_with(_operand(node, position), number)
                and node.outputs[0]
                and other.spec == node.outputs[0].spec
            ):
                return other
        return None

    return rule


def _operand_maker(op: str, node: Node, definitions: Definitions) -> Node | None:
    """Return the node defining the first operand if the op of the defining node is `op`, else None."""
    before = definitions.get(_operand(node))
    return before if before is not None and before.op == op and before.scratch is None else None


def _cancel_inverse(op: str) -> Rule:
    """Return a rule: the node becomes the operand of its operand if `op` defines the operand with equal attributes."""

    def rule(node: Node, definitions: Definitions) -> Value | None:
        before = _operand_maker(op, node, definitions)
        return _operand(before) if before is not None and dict(before.attrs) == dict(node.attrs) else None

    return rule


def _bypass_operand(node: Node, before: Node, **attrs: object) -> Node:
    """Return `node` reading the inputs of `before` directly, with `attrs` changed."""
    changed = {**node.attrs, **attrs}
    return Node(node.name, node.op, before.inputs, node.outputs, changed, node.source)  # type: ignore[arg-type]


def _simplify_reshape(node: Node, definitions: Definitions) -> Value | Node | None:
    before = _operand_maker(node.op, node, definitions)
    if before is None:
        return _operand_if_same_spec(node, definitions)
    shorter = _bypass_operand(node, before)
    return _operand_if_same_spec(shorter, definitions) or shorter


def _simplify_cast(node: Node, definitions: Definitions) -> Value | Node | None:
    before = _operand_maker(node.op, node, definitions)
    if before is None or not is_lossless_cast(spec_of(_operand(before)).dtype, spec_of(_operand(node)).dtype):
        return _operand_if_same_spec(node, definitions)
    shorter = _bypass_operand(node, before)
    return _operand_if_same_spec(shorter, definitions) or shorter


def is_lossless_cast(source: DType, target: DType) -> bool:
    """True if the target type holds every number of the source type."""
    return source is target or source is DType.BOOL or target in LOSSLESS_CASTS.get(source, ())


def _simplify_transpose(node: Node, definitions: Definitions) -> Value | Node | None:
    axes = tuple(pick(node.attrs, "axes")) or tuple(reversed(range(len(spec_of(_operand(node)).shape))))
    before = _operand_maker(node.op, node, definitions)
    if before is not None:
        first = tuple(pick(before.attrs, "axes")) or tuple(reversed(range(len(axes))))
        axes = tuple(first[axis % len(axes)] % len(axes) for axis in axes)
        node = _bypass_operand(node, before, axes=axes)
    if tuple(axis % len(axes) for axis in axes) == tuple(range(len(axes))):
        return _operand(node)
    return node if before is not None else None


def _simplify_where(node: Node, definitions: Definitions) -> Value | None:
    same = (
        _operand(node, 1) == _operand(node, 2)
        and node.outputs[0] is not None
        and _operand(node, 1).spec == node.outputs[0].spec
    )
    return _operand(node, 1) if same else None


RULES: Mapping[str, Rule] = {
    "nn.copy": _operand_if_same_spec,
    "nn.cast": _simplify_cast,
    "nn.reshape": _simplify_reshape,
    "nn.sum_to": _operand_if_same_spec,
    "nn.broadcast_to": _operand_if_same_spec,
    "nn.tile": _operand_if_same_spec,
    "nn.concat": lambda node, made: _operand_if_same_spec(node, made) if len(node.inputs) == 1 else None,
    "nn.transpose": _simplify_transpose,
    "nn.to_nhwc": _cancel_inverse("nn.to_nchw"),
    "nn.to_nchw": _cancel_inverse("nn.to_nhwc"),
    "nn.flip": _cancel_inverse("nn.flip"),
    "nn.neg": _cancel_inverse("nn.neg"),
    "nn.logical_not": _cancel_inverse("nn.logical_not"),
    "nn.add": _drop_neutral_operand(0, 0, 1),
    "nn.sub": _drop_neutral_operand(0, 1),
    "nn.mul": _drop_neutral_operand(1, 0, 1),
    "nn.div": _drop_neutral_operand(1, 1),
    "nn.pow": _drop_neutral_operand(1, 1),
    "nn.where": _simplify_where,
}
"""The rule of each op."""
