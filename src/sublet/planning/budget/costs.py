"""Seconds that each node takes, where nobody measures them: what it computes and what it moves, at fixed rates.

The rates are those of a desktop processor. Only ratios matter: what is computed again is told as a share of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops import lookup
from sublet.passes.autodiff import rounds_of

OPERATIONS = 100e9
BYTES = 10e9
"""A second."""

MODELLED = "by a model of operations and bytes, not measured"

CALL = 2e-6
"""Seconds of any call."""


def modelled(graph: Graph) -> dict[str, float]:
    """Seconds of each node of the root level by name; of a branch those of all arms, of a loop those of its rounds.

    Where only a run tells the number of rounds, one is counted.
    """
    return {node.name: _seconds(node) for node in graph.nodes}


def _seconds(node: Node) -> float:
    if node.subgraphs:
        rounds = rounds_of(node) if isinstance(node, While) else None
        return CALL + (1 if rounds is None else rounds) * sum(_seconds(n) for sub in node.subgraphs for n in sub.nodes)
    op = lookup(node.op)
    if op.views(node):
        return 0.0
    if node.uses and len(op.parts(node)) == len(node.uses):  # what it joins is written in its place
        return CALL
    nbytes = sum(value.nbytes for value in {*node.uses, *node.defs})
    return max(operations(node) / OPERATIONS, nbytes / BYTES) + CALL


def operations(node: Node) -> float:
    """Multiplications and additions of a node, as far as products of matrices and convolutions go; an element else."""
    name = node.op.rpartition(".")[2].lower()
    count = _PRODUCTS.get(name)
    if count is not None and len(node.uses) >= 2:
        return count(node)
    return float(sum(_size(value) for value in node.defs))


def products(node: Node) -> float:
    """As `operations`, of convolutions and products of matrices alone."""
    return operations(node) if node.op.rpartition(".")[2].lower() in _PRODUCTS else 0.0


def _size(value: Value | None) -> int:
    return prod(value.spec.shape) if value is not None and isinstance(value.spec, TensorSpec) else 0


def _shape(value: Value | None) -> tuple[int, ...]:
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else ()


def _convolution(node: Node) -> float:
    """Twice the elements of the output times those of the weight a channel of it."""
    weight = _shape(node.inputs[1])
    return 2.0 * _size(node.outputs[0]) * prod(weight[1:])


def _input_gradient(node: Node) -> float:
    weight = _shape(node.inputs[1])
    return 2.0 * _size(node.inputs[0]) * prod(weight[1:])


def _weight_gradient(node: Node) -> float:
    weight = _shape(node.outputs[0])
    return 2.0 * _size(node.inputs[0]) * prod(weight[1:])


def _matmul(node: Node) -> float:
    """Every element of the output is a sum along the last axis of the first operand, or one like it."""
    first, second, made = _size(node.inputs[0]), _size(node.inputs[1]), _size(node.outputs[0])
    batch = prod(_shape(node.outputs[0])[:-2])
    if not made or not batch:
        return 0.0
    return float(2.0 * (first * second * made / max(batch, 1)) ** 0.5) if second else 0.0


def _linear(node: Node) -> float:
    return 2.0 * _size(node.inputs[0]) * (_shape(node.inputs[1])[:1] or (1,))[0]


def _attention(node: Node) -> float:
    query, key = _shape(node.inputs[0]), _shape(node.inputs[1])
    return 4.0 * _size(node.inputs[0]) * key[-2] if len(key) >= 2 and query else 0.0


def _attention_gradient(node: Node) -> float:
    shapes = [_shape(value) for value in node.uses]
    rows = max((shape[-2] for shape in shapes if len(shape) >= 2), default=1)
    return 10.0 * max(map(_size, node.uses), default=0) * rows


_PRODUCTS: Mapping[str, Callable[[Node], float]] = {
    "conv": _convolution,
    "convolution": _convolution,
    "conv_input_gradient": _input_gradient,
    "conv_weight_gradient": _weight_gradient,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "linear": _linear,
    "gemm": _matmul,
    "attention": _attention,
    "attention_gradient": _attention_gradient,
}
"""By the name of the operator, in any dialect."""
