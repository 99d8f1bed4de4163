"""Activations.

If the derivative is a function of the result, the gradient reads the result, so the activation may overwrite the input.
The derivative of an activation that is not monotonic is no such function, so its gradient reads the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import Command, Compute, overwrite_unless_repeated, pick
from sublet.ops.nn.rules import (
    FLOATS,
    elementwise_gradient,
    infer_like_first,
    normalize_axis,
    one_minus,
    only_gradient,
    operand,
    require_equal,
    require_type,
    result,
    scale_by,
)
from sublet.ops.op import Attrs, Emit, Gradient, GradientByExpansion, Grads, Infer, Shares, Specs, overwrite_any
from sublet.ops.slice_maps import Slices, axes_beside, elementwise

Slope = Callable[[Emit, Node, Value], Value]
"""(emit, node, y or x) -> the derivative, in smaller commands."""

GradientOperand = tuple[str, Callable[[Node], Value]]
"""The operand read by the gradient of an activation: the name for the help text, and the getter."""

OVER_EITHER = overwrite_any(0, 1)
BY_RESULT: GradientOperand = ("y", result)
BY_INPUT: GradientOperand = ("x", lambda node: operand(node, 0))

ROOT_2_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
"""The cubic coefficient in the tanh approximation of gelu (Hendrycks and Gimpel 2016, section 2)."""


def infer_pair(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of the gradient; the gradient of the result and the second operand must have equal specs."""
    dy, value = require_type(specs[0], FLOATS, "the gradient"), require_type(specs[1], FLOATS, "input 1")
    require_equal(dy, value, "the gradient and input 1")
    return (dy,)


def activation_commands(
    name: str,
    text: str,
    compute: Compute,
    gradient: Compute,
    again: Gradient | GradientByExpansion,
    reads: GradientOperand = BY_RESULT,
    attrs: Mapping[str, Attr] | None = None,
    checked: Callable[[Infer], Infer] = lambda infer: infer,
    inplace: Shares = OVER_EITHER,
    slices: Slices = elementwise,
) -> tuple[Command, Command]:
    """Return the commands `<name>(x) -> y` and `<name>_gradient(dy, y or x) -> dx`, both in place.

    `again` is the gradient rule of the gradient command.
    """
    role, seen = reads
    op = f"{name}_gradient"
    rule = elementwise_gradient(lambda emit, node, grad: emit(f"nn.{op}", grad, seen(node), **node.attrs))
    to_dx = f"The gradient of nn.{name}: (dy, {role}) -> dx."
    return (
        Command(
            name,
            text,
            checked(infer_like_first),
            lambda x, **given: compute(x, **given),
            rule,
            attrs or {},
            inplace=overwrite_any(0),
            slices=slices,
        ),
        Command(op, to_dx, checked(infer_pair), gradient, again, attrs or {}, (2, 2), inplace=inplace, slices=slices),
    )


def _require_nonnegative_alpha(infer: Infer) -> Infer:
    """Return `infer` with a check: alpha must not be negative, because the result then determines the derivative."""

    def infer_checked(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        if not pick(attrs, "alpha") >= 0:
            raise SpecError(f"alpha = {pick(attrs, 'alpha')} must not be negative")
        return infer(specs, attrs)

    return infer_checked


def _gradient_by_slope(slope: Slope) -> GradientByExpansion:
    """Return the gradient rule dy times the derivative, as an expansion."""
    return GradientByExpansion(
        lambda emit, node: [emit("nn.mul", operand(node, 0), slope(emit, node, operand(node, 1)))]
    )


def _leaky_operand(node: Node) -> Value:
    """Return the result, or the input for a negative slope: the sign of the result then differs from the sign of x."""
    return result(node) if pick(node.attrs, "slope") >= 0 else operand(node, 0)


def _erf_rule(emit: Emit, node: Node, grad: Value) -> Value:
    x = operand(node, 0)
    return emit("nn.mul", grad, scale_by(emit, _gaussian(emit, x, 1), 2 / math.sqrt(math.pi)))


# Reference functions. Arrays have type float64 or float32, and results the same type.


def erf(x: Any) -> Any:
    """Return the error function, element by element."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def _gelu(x: Any, approximate: int) -> Any:
    if approximate:
        return 0.5 * x * (1 + np.tanh(ROOT_2_PI * (x + CUBIC * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _gelu_gradient(dy: Any, x: Any, approximate: int) -> Any:
    if not approximate:
        return dy * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi))
    bent = np.tanh(ROOT_2_PI * (x + CUBIC * x**3))
    return dy * (0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * ROOT_2_PI * (1 + 3 * CUBIC * x**2))


def _swish_gradient(dy: Any, x: Any) -> Any:
    rise = sigmoid(x)
    return dy * rise * (1 + x * (1 - rise))


# Derivatives as smaller commands, for second derivatives.


def _add_number(emit: Emit, a: Value, number: float) -> Value:
    return emit("nn.add", a, emit.constant(number, a))


def _gaussian(emit: Emit, x: Value, scale: float) -> Value:
    """Return exp(-scale x^2)."""
    return emit("nn.exp", scale_by(emit, emit("nn.square", x), -scale))


def _where_positive(emit: Emit, y: Value, otherwise: Value) -> Value:
    return emit("nn.where", emit("nn.greater", y, emit.constant(0, y)), emit.constant(1, y), otherwise)


def _leaky_slope(emit: Emit, node: Node, y: Value) -> Value:
    return _where_positive(emit, y, emit.constant(pick(node.attrs, "slope"), y))


def _elu_slope(emit: Emit, node: Node, y: Value) -> Value:
    return _where_positive(emit, y, _add_number(emit, y, pick(node.attrs, "alpha")))


def _sigmoid_slope(emit: Emit, node: Node, y: Value) -> Value:
    return emit("nn.mul", y, one_minus(emit, y))


def _tanh_slope(emit: Emit, node: Node, y: Value) -> Value:
    return one_minus(emit, emit("nn.square", y))


def _softplus_slope(emit: Emit, node: Node, y: Value) -> Value:
    """Return sigmoid(x) = 1 - exp(-y)."""
    return one_minus(emit, emit("nn.exp", emit("nn.neg", y)))


def _swish_slope(emit: Emit, node: Node, x: Value) -> Value:
    rise = emit("nn.sigmoid", x)
    return emit("nn.mul", rise, _add_number(emit, emit("nn.mul", x, one_minus(emit, rise)), 1))


def _gelu_slope(emit: Emit, node: Node, x: Value) -> Value:
    if not pick(node.attrs, "approximate"):
        below = scale_by(emit, _add_number(emit, emit("nn.erf", scale_by(emit, x, math.sqrt(0.5))), 1), 0.5)
        return emit("nn.add", below, emit("nn.mul", x, scale_by(emit, _gaussian(emit, x, 0.5), ROOT_2_PI / 2)))
    square = emit("nn.square", x)
    bent = emit(
        "nn.tanh", scale_by(emit, emit("nn.mul", x, _add_number(emit, scale_by(emit, square, CUBIC), 1)), ROOT_2_PI)
    )
    steep = scale_by(emit, _add_number(emit, scale_by(emit, square, 3 * CUBIC), 1), ROOT_2_PI / 2)
    rest = emit("nn.mul", emit("nn.mul", x, steep), one_minus(emit, emit("nn.square", bent)))
    return emit("nn.add", scale_by(emit, _add_number(emit, bent, 1), 0.5), rest)


def _hard_swish_slope(emit: Emit, node: Node, x: Value) -> Value:
    above = emit("nn.greater_equal", x, emit.constant(3, x))
    below = emit("nn.less_equal", x, emit.constant(-3, x))
    ramp = _add_number(emit, scale_by(emit, x, 1 / 3), 0.5)
    return emit("nn.where", below, emit.constant(0, x), emit("nn.where", above, emit.constant(1, x), ramp))


def _relu_gradient_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.relu_gradient", only_gradient(grads), operand(node, 1)), None]


ELEMENTWISE_ACTIVATIONS = (
    *activation_commands(
        "relu",
        "max(x, 0), element by element.",
        lambda x: np.maximum(x, 0),
        lambda dy, y: np.where(y <= 0, 0, dy),
        _relu_gradient_rule,
    ),
    *activation_commands(
        "leaky_relu",
        "x where it is above 0, slope x elsewhere (Maas et al. 2013).",
        lambda x, slope: np.where(x > 0, x, x * slope),
        lambda dy, y, slope: np.where(y > 0, dy, dy * slope),
        _gradient_by_slope(_leaky_slope),
        ("y or x", _leaky_operand),
        {"slope": 0.01},
    ),
    *activation_commands(
        "elu",
        "x where it is above 0, alpha (exp(x) - 1) elsewhere (Clevert et al. 2016).",
        lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        lambda dy, y, alpha: np.where(y > 0, dy, dy * (y + alpha)),
        _gradient_by_slope(_elu_slope),
        attrs={"alpha": 1.0},
        checked=_require_nonnegative_alpha,
    ),
    *activation_commands(
        "sigmoid",
        "1 / (1 + exp(-x)), element by element.",
        sigmoid,
        lambda dy, y: dy * (1 - y) * y,
        _gradient_by_slope(_sigmoid_slope),
    ),
    *activation_commands(
        "tanh",
        "The hyperbolic tangent, element by element.",
        np.tanh,
        lambda dy, y: dy * (1 - y**2),
        _gradient_by_slope(_tanh_slope),
    ),
    *activation_commands(
        "softplus",
        "log(1 + exp(x)), element by element.",
        lambda x: np.logaddexp(x, x.dtype.type(0)),
        lambda dy, y: -dy * np.expm1(-y),
        _gradient_by_slope(_softplus_slope),
        inplace=overwrite_unless_repeated((0, 1)),
    ),
    *activation_commands(
        "swish",
        "x sigmoid(x), also called SiLU (Ramachandran et al. 2017).",
        lambda x: x * sigmoid(x),
        _swish_gradient,
        _gradient_by_slope(_swish_slope),
        BY_INPUT,
    ),
    *activation_commands(
        "gelu",
        "x times the normal distribution function of x, or nearly so by tanh (Hendrycks and Gimpel 2016).",
        _gelu,
        _gelu_gradient,
        _gradient_by_slope(_gelu_slope),
        BY_INPUT,
        {"approximate": False},
    ),
    *activation_commands(
        "hard_swish",
        "x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019).",
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda dy, x: dy * np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5)),
        _gradient_by_slope(_hard_swish_slope),
        BY_INPUT,
        inplace=overwrite_unless_repeated((0, 1)),
    ),
    Command(
        "erf",
        "The error function, element by element.",
        infer_like_first,
        erf,
        elementwise_gradient(_erf_rule),
        inplace=overwrite_any(0),
        slices=elementwise,
    ),
)


# Softmax and log-softmax: the gradients read the result, so the result may overwrite the input.


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
    *ELEMENTWISE_ACTIVATIONS,
    *activation_commands(
        "softmax",
        "Exponentials, scaled to sum to 1 along an axis.",
        softmax,
        lambda dy, y, axis: y * (dy - (dy * y).sum(axis=axis, keepdims=True)),
        GradientByExpansion(_softmax_parts),
        attrs={"axis": -1},
        checked=_with_valid_axis,
        slices=axes_beside(),
    ),
    *activation_commands(
        "log_softmax",
        "The logarithm of nn.softmax along an axis, without underflow.",
        log_softmax,
        lambda dy, y, axis: dy - np.exp(y) * dy.sum(axis=axis, keepdims=True),
        GradientByExpansion(_log_softmax_parts),
        attrs={"axis": -1},
        checked=_with_valid_axis,
        slices=axes_beside(),
    ),
)
