"""Building blocks of gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.ops.op import Emit, Gradient, Grads


def sum_to_shape(emit: Emit, grad: Value, like: Value) -> Value:
    """Return the gradient of a broadcast input: sum over the broadcast axes."""
    shape = spec_of(like).shape
    return grad if spec_of(grad).shape == shape else emit("nn.sum_to", grad, shape=shape)


def only_gradient(grads: Grads) -> Value:
    """Return the gradient of the only output."""
    (grad,) = grads
    assert grad is not None
    return grad


def operand(node: Node, position: int) -> Value:
    """Return the input at `position`, which must be present."""
    value = node.inputs[position]
    assert value is not None
    return value


def result(node: Node, position: int = 0) -> Value:
    """Return the output at `position`, which must be present."""
    value = node.outputs[position]
    assert value is not None
    return value


def reshape_to(emit: Emit, value: Value, shape: tuple[int, ...]) -> Value:
    """Return the value reshaped to `shape`; the same value if the shape is equal."""
    return value if spec_of(value).shape == shape else emit("nn.reshape", value, shape=shape)


def zeros_like(emit: Emit, like: Value) -> Value:
    """Return zeros with the spec of `like`."""
    return emit.constant(0, like, spec_of(like).shape)


def scale_by(emit: Emit, value: Value, number: float) -> Value:
    """Return the value times a number."""
    return emit("nn.mul", value, emit.constant(number, value))


def one_minus(emit: Emit, value: Value) -> Value:
    """Return 1 - value."""
    return emit("nn.sub", emit.constant(1, value), value)


def multiply(emit: Emit, first: Value, *factors: Value) -> Value:
    """Return the product of several values."""
    for factor in factors:
        first = emit("nn.mul", first, factor)
    return first


def sum_present(emit: Emit, *terms: Value | None) -> Value | None:
    """Return the sum of the present terms; None if all terms are None."""
    added: Value | None = None
    for term in terms:
        if term is not None:
            added = term if added is None else emit("nn.add", added, term)
    return added


TermRule = Callable[[Emit, Node, Value], Value]
"""(emit, node, gradient of the output) -> gradient of one input, before summing to the input's shape."""


def elementwise_gradient(*rules: TermRule | None) -> Gradient:
    """Return the gradient of a command with one output and broadcast inputs: one rule per input, None for zero."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        grad = only_gradient(grads)
        return [
            None if rule is None else sum_to_shape(emit, rule(emit, node, grad), operand(node, i))
            for i, rule in enumerate(rules)
        ]

    return gradient


def term_by_op(op: str, *positions: int) -> TermRule:
    """Return the rule `op(grad, *inputs at positions)`, with the attributes of the node."""
    return lambda emit, node, grad: emit(op, grad, *(operand(node, i) for i in positions), **node.attrs)
