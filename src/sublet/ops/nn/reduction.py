"""Reductions over axes, and their inverse: broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGERS, Command, pick, same_bytes, spec_of
from sublet.ops.nn.gradient_rules import only_gradient, operand
from sublet.ops.nn.shape_inference import (
    ANY,
    FLOATS,
    NUMBERS,
    broadcast_shape,
    normalize_axes,
    require_shape,
    require_type,
)
from sublet.ops.op import Attrs, Emit, Gradient, Grads, Infer, Specs


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: int) -> tuple[int, ...]:
    """Return the shape without `axes`, or with 1 in place of `axes`."""
    gone = normalize_axes(axes, len(shape))
    if keepdims:
        return tuple(1 if axis in gone else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def infer_reduced(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of a reduction of numbers."""
    x = require_type(specs[0], NUMBERS)
    return (TensorSpec(x.dtype, reduced_shape(x.shape, pick(attrs, "axes"), pick(attrs, "keepdims"))),)


def _infer_mean(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    require_type(specs[0], FLOATS)
    return infer_reduced(specs, attrs)


def _mean_of(x: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / x.dtype.type(x.size // max(1, total.size))


def spread_gradient(emit: Emit, node: Node, grad: Value) -> Value:
    """Return the gradient of a reduced value, broadcast to every reduced element."""
    x = spec_of(operand(node, 0))
    kept = reduced_shape(x.shape, pick(node.attrs, "axes"), 1)
    return emit("nn.broadcast_to", emit("nn.reshape", grad, shape=kept), shape=x.shape)


def reduction_command(name: str, text: str, infer: Infer, function: Callable[..., Any], rule: Gradient) -> Command:
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
        views=same_bytes,
    )


def _sum(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [spread_gradient(emit, node, only_gradient(grads))]


def _mean(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    grad = only_gradient(grads)
    count = spec_of(operand(node, 0)).size // max(1, spec_of(grad).size)
    return [spread_gradient(emit, node, emit("nn.mul", grad, emit.constant(1 / max(1, count), grad)))]


def _sum_to_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], NUMBERS), require_shape(pick(attrs, "shape"))
    smaller = TensorSpec(x.dtype, shape)
    if broadcast_shape([x, smaller]) != x.shape:
        raise SpecError(f"{x} cannot be summed to the shape {list(shape)}")
    return (smaller,)


def _sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    extra = x.ndim - len(shape)
    axes = tuple(a for a in range(x.ndim) if a < extra or (shape[a - extra] == 1 and x.shape[a] != 1))
    return np.sum(x, axis=axes, keepdims=True).reshape(shape)


def _broadcast_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], ANY), require_shape(pick(attrs, "shape"))
    wanted = TensorSpec(x.dtype, shape)
    if broadcast_shape([x, wanted]) != shape:
        raise SpecError(f"{x} cannot be broadcast to the shape {list(shape)}")
    return (wanted,)


def _reshape_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], ANY), require_shape(pick(attrs, "shape"))
    if prod(shape) != x.size:
        raise SpecError(f"{x} has {x.size} elements, the shape {list(shape)} has {prod(shape)}")
    return (TensorSpec(x.dtype, shape),)


def gradient_with_shape(op: str) -> Gradient:
    """Return the gradient rule of a command changing the shape: `op` with the shape of the input."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        return [emit(op, only_gradient(grads), shape=spec_of(operand(node, 0)).shape)]

    return gradient


COMMANDS = (
    reduction_command("sum", "The sum over axes; over all for ().", infer_reduced, np.sum, _sum),
    reduction_command("mean", "The mean over axes; over all for ().", _infer_mean, _mean_of, _mean),
    Command(
        "sum_to",
        "The sum over the axes broadcast from `shape` to x: the inverse of nn.broadcast_to.",
        _sum_to_infer,
        _sum_to,
        gradient_with_shape("nn.broadcast_to"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
    ),
    Command(
        "broadcast_to",
        "Repeated along axes of extent 1 and new leading axes, as NumPy does it.",
        _broadcast_infer,
        lambda x, shape: np.broadcast_to(x, shape),
        gradient_with_shape("nn.sum_to"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
    ),
    Command(
        "reshape",
        "The same elements in another shape.",
        _reshape_infer,
        lambda x, shape: x.reshape(shape),
        gradient_with_shape("nn.reshape"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
    ),
)
