"""Softmax and its logarithm: their gradients take the result, so that it may be written over the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.activation import OVER_EITHER, pair
from sublet.ops.nn.command import Command, Example, over, pick
from sublet.ops.nn.gradients import elementwise, operand, result
from sublet.ops.nn.shapes import axis_in, like_first
from sublet.ops.op import Attrs, ByParts, Emit, Infer, Specs
from sublet.tensor import TensorSpec


def softmax(x: Any, axis: int) -> Any:
    """Exponentials, scaled to sum to 1 along an axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    """The logarithm of softmax, without an underflow."""
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def _weighted(emit: Emit, node: Node) -> Sequence[Value]:
    """Softmax: y * (dy - sum(dy * y))."""
    dy, y = operand(node, 0), operand(node, 1)
    total = emit("nn.sum", emit("nn.mul", dy, y), axes=(pick(node.attrs, "axis"),), keepdims=1)
    return [emit("nn.mul", y, emit("nn.sub", dy, total))]


def _weighted_log(emit: Emit, node: Node) -> Sequence[Value]:
    """Log-softmax: dy - exp(y) * sum(dy)."""
    dy, y = operand(node, 0), operand(node, 1)
    total = emit("nn.sum", dy, axes=(pick(node.attrs, "axis"),), keepdims=1)
    return [emit("nn.sub", dy, emit("nn.mul", emit("nn.exp", y), total))]


def _along(infer: Infer) -> Infer:
    """`infer`, once the axis is one of the first input."""

    def checked(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        (found,) = infer(specs, attrs)
        axis_in(pick(attrs, "axis"), len(found.shape))
        return (found,)

    return checked


_AXES: tuple[tuple[str, Mapping[str, Attr]], ...] = (("f64[2,3,4]", {}), ("f64[3,4]", {"axis": 0}), ("f32[2,3]", {}))


def _normalised(name: str, text: str, compute: Callable[..., Any]) -> Command:
    """Softmax or log-softmax along an axis, in place."""
    examples = tuple(Example((kind,), use) for kind, use in _AXES)
    rule = elementwise(lambda emit, node, grad: emit(f"nn.{name}_gradient", grad, result(node), **node.attrs))
    return Command(name, text, _along(like_first), compute, rule, {"axis": -1}, inplace=over(0), examples=examples)


def _normalised_backward(
    name: str, text: str, compute: Callable[..., Any], expand: Callable[[Emit, Node], Sequence[Value]]
) -> Command:
    """`<name>(dy, y) -> dx`, in place."""
    examples = tuple(Example((kind, kind), use) for kind, use in _AXES)
    rule = ByParts(expand)
    return Command(
        name, text, _along(pair), compute, rule, {"axis": -1}, (2, 2), inplace=OVER_EITHER, examples=examples
    )


COMMANDS = (
    _normalised("softmax", "Exponentials, scaled to sum to 1 along an axis.", softmax),
    _normalised_backward(
        "softmax_gradient",
        "The gradient of nn.softmax: (dy, y) -> dx.",
        lambda dy, y, axis: y * (dy - (dy * y).sum(axis=axis, keepdims=True)),
        _weighted,
    ),
    _normalised("log_softmax", "The logarithm of nn.softmax along an axis, without underflow.", log_softmax),
    _normalised_backward(
        "log_softmax_gradient",
        "The gradient of nn.log_softmax: (dy, y) -> dx.",
        lambda dy, y, axis: dy - np.exp(y) * dy.sum(axis=axis, keepdims=True),
        _weighted_log,
    ),
)
