"""Softmax and log-softmax: the gradients read the result, so the result may overwrite the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.activation import activation_commands
from sublet.ops.nn.command import pick
from sublet.ops.nn.gradient_rules import operand
from sublet.ops.nn.shape_inference import normalize_axis
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Infer, Specs


def softmax(x: Any, axis: int) -> Any:
    """Return exponentials scaled to sum 1 along an axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    """Return the logarithm of softmax, without underflow."""
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def _softmax_parts(emit: Emit, node: Node) -> Sequence[Value]:
    """Return the softmax gradient y * (dy - sum(dy * y))."""
    dy, y = operand(node, 0), operand(node, 1)
    total = emit("nn.sum", emit("nn.mul", dy, y), axes=(pick(node.attrs, "axis"),), keepdims=1)
    return [emit("nn.mul", y, emit("nn.sub", dy, total))]


def _log_softmax_parts(emit: Emit, node: Node) -> Sequence[Value]:
    """Return the log-softmax gradient dy - exp(y) * sum(dy)."""
    dy, y = operand(node, 0), operand(node, 1)
    total = emit("nn.sum", dy, axes=(pick(node.attrs, "axis"),), keepdims=1)
    return [emit("nn.sub", dy, emit("nn.mul", emit("nn.exp", y), total))]


def _with_valid_axis(infer: Infer) -> Infer:
    """Return `infer` with a check of the attribute `axis`."""

    def infer_checked(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        (spec,) = infer(specs, attrs)
        normalize_axis(pick(attrs, "axis"), len(spec.shape))
        return (spec,)

    return infer_checked


COMMANDS = (
    *activation_commands(
        "softmax",
        "Exponentials, scaled to sum to 1 along an axis.",
        softmax,
        lambda dy, y, axis: y * (dy - (dy * y).sum(axis=axis, keepdims=True)),
        GradientByExpansion(_softmax_parts),
        attrs={"axis": -1},
        checked=_with_valid_axis,
    ),
    *activation_commands(
        "log_softmax",
        "The logarithm of nn.softmax along an axis, without underflow.",
        log_softmax,
        lambda dy, y, axis: dy - np.exp(y) * dy.sum(axis=axis, keepdims=True),
        GradientByExpansion(_log_softmax_parts),
        attrs={"axis": -1},
        checked=_with_valid_axis,
    ),
)
