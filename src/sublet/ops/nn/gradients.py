"""What gradient rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.ops.op import Emit, Gradient, Grads


def to_shape(emit: Emit, grad: Value, like: Value) -> Value:
    """The gradient of an input that was broadcast: summed over the axes it was extended along."""
    shape = spec_of(like).shape
    return grad if spec_of(grad).shape == shape else emit("nn.sum_to", grad, shape=shape)


def given(grads: Grads) -> Value:
    """The gradient of the only output."""
    (grad,) = grads
    assert grad is not None
    return grad


def operand(node: Node, position: int) -> Value:
    """An input that is present."""
    value = node.inputs[position]
    assert value is not None
    return value


def result(node: Node, position: int = 0) -> Value:
    """An output that is present."""
    value = node.outputs[position]
    assert value is not None
    return value


def reshaped(emit: Emit, value: Value, shape: tuple[int, ...]) -> Value:
    """The value in another shape; itself where it has it."""
    return value if spec_of(value).shape == shape else emit("nn.reshape", value, shape=shape)


def zeros(emit: Emit, like: Value) -> Value:
    """Zeros with the spec of a value."""
    return emit.constant(0, like, spec_of(like).shape)


def scaled(emit: Emit, value: Value, number: float) -> Value:
    """The value times a number."""
    return emit("nn.mul", value, emit.constant(number, value))


def one_minus(emit: Emit, value: Value) -> Value:
    """1 - value."""
    return emit("nn.sub", emit.constant(1, value), value)


def product(emit: Emit, first: Value, *factors: Value) -> Value:
    """The product of several values."""
    for factor in factors:
        first = emit("nn.mul", first, factor)
    return first


def total(emit: Emit, *terms: Value | None) -> Value | None:
    """The sum of the terms that are there; None where none is."""
    found: Value | None = None
    for term in terms:
        if term is not None:
            found = term if found is None else emit("nn.add", found, term)
    return found


Times = Callable[[Emit, Node, Value], Value]
"""(emit, node, gradient of the output) -> gradient of one input, before it is summed to its shape."""


def elementwise(*rules: Times | None) -> Gradient:
    """The gradient of a command of one output whose inputs are broadcast together: one rule an input, None for zero."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        grad = given(grads)
        return [
            None if rule is None else to_shape(emit, rule(emit, node, grad), operand(node, i))
            for i, rule in enumerate(rules)
        ]

    return gradient


def by(op: str, *positions: int) -> Times:
    """The gradient is `op(grad, *inputs at these positions)`, with the attributes of the node."""
    return lambda emit, node, grad: emit(op, grad, *(operand(node, i) for i in positions), **node.attrs)
