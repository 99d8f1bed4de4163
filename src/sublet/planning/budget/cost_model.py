"""Cost model: the seconds of each node, if not measured, from operations and bytes at fixed rates.

The rates are those of a desktop processor. Only ratios matter: recomputation is reported as a share of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops import lookup
from sublet.passes.autodiff import trip_count_of

OPERATIONS_PER_SECOND = 100e9
"""Operations a second."""

BYTES_PER_SECOND = 10e9
"""Bytes a second, read or written."""

MODELLED_COSTS = "by a model of operations and bytes, not measured"

CALL_SECONDS = 2e-6
"""Seconds of any call, whatever it computes."""


def modelled_seconds(graph: Graph) -> dict[str, float]:
    """Return the seconds of each node of the root level, by name.

    A branch costs the sum over all arms. A loop costs the body times the trip count, or once if only a run knows the
    count.
    """
    return {node.name: _node_seconds(node) for node in graph.nodes}


def _node_seconds(node: Node) -> float:
    """Return the seconds of a node, sub-graphs included; views are free, and a concatenation in place costs a call."""
    if node.subgraphs:
        rounds = trip_count_of(node) if isinstance(node, While) else None
        return CALL_SECONDS + (1 if rounds is None else rounds) * sum(
            _node_seconds(n) for sub in node.subgraphs for n in sub.nodes
        )
    op = lookup(node.op)
    if op.views(node):
        return 0.0
    if node.uses and len(op.parts(node)) == len(node.uses):  # a concatenation: the operands are written in place
        return CALL_SECONDS
    nbytes = sum(value.nbytes for value in {*node.uses, *node.defs})
    return max(count_operations(node) / OPERATIONS_PER_SECOND, nbytes / BYTES_PER_SECOND) + CALL_SECONDS


def count_operations(node: Node) -> float:
    """Return the multiplications and additions of a node; one per output element except for products.

    Products are matrix products, convolutions and attentions: counted by the op's own rule, or else by name.
    """
    rule = lookup(node.op).operations
    if rule is not None:
        return rule(node)
    name = node.op.rpartition(".")[2].lower()
    count = _PRODUCTS.get(name)
    if count is not None and len(node.uses) >= 2:
        return count(node)
    return float(sum(_element_count(value) for value in node.defs))


def count_products(node: Node) -> float:
    """Return the multiplications and additions of a product or convolution; 0 for other nodes."""
    return count_operations(node) if node.op.rpartition(".")[2].lower() in _PRODUCTS else 0.0


def _element_count(value: Value | None) -> int:
    """Return the number of elements of a tensor, 0 for no tensor."""
    return prod(value.spec.shape) if value is not None and isinstance(value.spec, TensorSpec) else 0


def _shape_of(value: Value | None) -> tuple[int, ...]:
    """Return the shape of a tensor, () for no tensor."""
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else ()


def _convolution_operations(node: Node) -> float:
    """Return two operations per output element and weight element of its channel."""
    weight = _shape_of(node.inputs[1])
    return 2.0 * _element_count(node.outputs[0]) * prod(weight[1:])


def _input_gradient_operations(node: Node) -> float:
    """Return two operations per element of the output gradient and weight element of its channel."""
    weight = _shape_of(node.inputs[1])
    return 2.0 * _element_count(node.inputs[0]) * prod(weight[1:])


def _weight_gradient_operations(node: Node) -> float:
    """Return two operations per element of the first operand and weight element of a channel."""
    weight = _shape_of(node.outputs[0])
    return 2.0 * _element_count(node.inputs[0]) * prod(weight[1:])


def _matmul_operations(node: Node) -> float:
    """Return two operations per multiplication of a batched matrix product, from the sizes of operands and result."""
    first, second, made = (
        _element_count(node.inputs[0]),
        _element_count(node.inputs[1]),
        _element_count(node.outputs[0]),
    )
    batch = prod(_shape_of(node.outputs[0])[:-2])
    if not made or not batch:
        return 0.0
    return float(2.0 * (first * second * made / max(batch, 1)) ** 0.5) if second else 0.0


def _linear_operations(node: Node) -> float:
    """Return two operations per input element and output feature."""
    return 2.0 * _element_count(node.inputs[0]) * (_shape_of(node.inputs[1])[:1] or (1,))[0]


def _attention_operations(node: Node) -> float:
    """Return the operations of both products of an attention: four per query element and key row."""
    key, axis = _shape_of(node.inputs[1]), _row_axis(node)
    return 4.0 * _element_count(node.inputs[0]) * key[axis] if len(key) >= -axis else 0.0


def _attention_gradient_operations(node: Node) -> float:
    """Return an estimate: ten operations per element of the largest operand and row."""
    shapes, axis = [_shape_of(value) for value in node.uses], _row_axis(node)
    rows = max((shape[axis] for shape in shapes if len(shape) >= -axis), default=1)
    return 10.0 * max(map(_element_count, node.uses), default=0) * rows


def _row_axis(node: Node) -> int:
    """Return the axis of the positions, counted from the last."""
    return -3 if node.attrs.get("layout") == "bthd" else -2


_PRODUCTS: Mapping[str, Callable[[Node], float]] = {
    "conv": _convolution_operations,
    "convolution": _convolution_operations,
    "fusedconv": _convolution_operations,
    "conv_input_gradient": _input_gradient_operations,
    "conv_weight_gradient": _weight_gradient_operations,
    "matmul": _matmul_operations,
    "mm": _matmul_operations,
    "bmm": _matmul_operations,
    "linear": _linear_operations,
    "gemm": _matmul_operations,
    "attention": _attention_operations,
    "attention_gradient": _attention_gradient_operations,
}
"""By the name of the operator in lower case, in any dialect."""
