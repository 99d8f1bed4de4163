"""Reductions over axes, and their inverse: broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGERS, Command, pick, spec_of, whole
from sublet.ops.nn.gradients import given, operand
from sublet.ops.nn.shapes import ANY, FLOATS, NUMBERS, axes_in, broadcast, of_type, shape_given
from sublet.ops.op import Attrs, Emit, Gradient, Grads, Infer, Specs


def reduced(shape: Sequence[int], axes: Sequence[int], keepdims: int) -> tuple[int, ...]:
    """Return the shape without `axes`, or with 1 in place of `axes`."""
    gone = axes_in(axes, len(shape))
    if keepdims:
        return tuple(1 if axis in gone else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def infer_reduced(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of a reduction of numbers."""
    x = of_type(specs[0], NUMBERS)
    return (TensorSpec(x.dtype, reduced(x.shape, pick(attrs, "axes"), pick(attrs, "keepdims"))),)


def _infer_mean(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    of_type(specs[0], FLOATS)
    return infer_reduced(specs, attrs)


def _mean_of(x: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / x.dtype.type(x.size // max(1, total.size))


def spread(emit: Emit, node: Node, grad: Value) -> Value:
    """Return the gradient of a reduced value, broadcast to every reduced element."""
    x = spec_of(operand(node, 0))
    kept = reduced(x.shape, pick(node.attrs, "axes"), 1)
    return emit("nn.broadcast_to", emit("nn.reshape", grad, shape=kept), shape=x.shape)


def reduction(name: str, text: str, infer: Infer, function: Callable[..., Any], rule: Gradient) -> Command:
    """Return a command reducing over `axes`; over all axes for ()."""

    def compute(x: Any, axes: tuple[int, ...], keepdims: int) -> Any:
        return function(x, axis=tuple(axes) or None, keepdims=bool(keepdims))

    return Command(
        name,
        text,
        infer,
        compute,
        rule,
        {"axes": (), "keepdims": False},
        views=whole,
    )


def _sum(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [spread(emit, node, given(grads))]


def _mean(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    grad = given(grads)
    count = spec_of(operand(node, 0)).size // max(1, spec_of(grad).size)
    return [spread(emit, node, emit("nn.mul", grad, emit.constant(1 / max(1, count), grad)))]


def _sum_to_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = of_type(specs[0], NUMBERS), shape_given(pick(attrs, "shape"))
    smaller = TensorSpec(x.dtype, shape)
    if broadcast([x, smaller]) != x.shape:
        raise SpecError(f"{x} cannot be summed to the shape {list(shape)}")
    return (smaller,)


def _sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    extra = x.ndim - len(shape)
    axes = tuple(a for a in range(x.ndim) if a < extra or (shape[a - extra] == 1 and x.shape[a] != 1))
    return np.sum(x, axis=axes, keepdims=True).reshape(shape)


def _broadcast_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = of_type(specs[0], ANY), shape_given(pick(attrs, "shape"))
    wanted = TensorSpec(x.dtype, shape)
    if broadcast([x, wanted]) != shape:
        raise SpecError(f"{x} cannot be broadcast to the shape {list(shape)}")
    return (wanted,)


def _reshape_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = of_type(specs[0], ANY), shape_given(pick(attrs, "shape"))
    if prod(shape) != x.size:
        raise SpecError(f"{x} has {x.size} elements, the shape {list(shape)} has {prod(shape)}")
    return (TensorSpec(x.dtype, shape),)


def back_to(op: str) -> Gradient:
    """Return the gradient rule of a command changing the shape: `op` with the shape of the input."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        return [emit(op, given(grads), shape=spec_of(operand(node, 0)).shape)]

    return gradient


COMMANDS = (
    reduction("sum", "The sum over axes; over all for ().", infer_reduced, np.sum, _sum),
    reduction("mean", "The mean over axes; over all for ().", _infer_mean, _mean_of, _mean),
    Command(
        "sum_to",
        "Summed over the axes along which `shape` would be broadcast to x: undoes nn.broadcast_to.",
        _sum_to_infer,
        _sum_to,
        back_to("nn.broadcast_to"),
        {"shape": REQUIRED_INTEGERS},
        views=whole,
    ),
    Command(
        "broadcast_to",
        "Repeated along axes of extent 1 and new leading axes, as NumPy does it.",
        _broadcast_infer,
        lambda x, shape: np.broadcast_to(x, shape),
        back_to("nn.sum_to"),
        {"shape": REQUIRED_INTEGERS},
        views=whole,
    ),
    Command(
        "reshape",
        "The same elements in another shape.",
        _reshape_infer,
        lambda x, shape: x.reshape(shape),
        back_to("nn.reshape"),
        {"shape": REQUIRED_INTEGERS},
        views=whole,
    ),
)
