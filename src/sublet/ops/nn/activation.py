"""Activations.

Where the derivative can be told from the result, the gradient takes the result, so that an activation may overwrite
its input: relu, leaky_relu, sigmoid, tanh, softplus and elu do. Swish, gelu and hard_swish fall and rise, so
their gradients need the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sublet.errors import SpecError
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import Command, Example, over, over_only, pick
from sublet.ops.nn.gradients import Times, elementwise, given, one_minus, operand, result, scaled
from sublet.ops.nn.shapes import FLOATS, equal, like_first, of_type
from sublet.ops.op import Attrs, ByParts, Emit, Grads, Infer, Shares, Specs
from sublet.tensor import TensorSpec

Uses = tuple[Mapping[str, Attr], ...]
Slope = Callable[[Emit, Node, Value], Value]
"""(emit, node, y or x) -> the derivative there, in smaller commands."""

OVER_EITHER = over(0, 1)

ROOT_2_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
"""Of the approximation of gelu by tanh (Hendrycks and Gimpel 2016, section 2)."""


def pair(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """The gradient of a result and the value it is computed from have one spec, which is that of what comes out."""
    dy, value = of_type(specs[0], FLOATS, "the gradient"), of_type(specs[1], FLOATS, "input 1")
    equal(dy, value, "the gradient and input 1")
    return (dy,)


def _not_negative(infer: Infer, key: str) -> Infer:
    def checked(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        if not pick(attrs, key) >= 0:
            raise SpecError(f"{key} = {pick(attrs, key)} must not be negative")
        return infer(specs, attrs)

    return checked


def _activation(
    name: str,
    text: str,
    compute: Callable[..., Any],
    rule: Times,
    attrs: Mapping[str, Attr] | None = None,
    uses: Uses = ({},),
    infer: Infer = like_first,
    domain: str = "",
) -> Command:
    """`<name>(x) -> y`, in place."""
    shown = [(f"{dtype}[3,5] {domain}".strip(),) for dtype in ("f64", "f32")]
    examples = tuple(Example(inputs, use) for inputs in shown for use in uses)
    return Command(
        name,
        text,
        infer,
        lambda x, **given: compute(x, **given),
        elementwise(rule),
        attrs or {},
        inplace=over(0),
        examples=examples,
    )


def _backward(
    name: str,
    text: str,
    compute: Callable[..., Any],
    slope: Slope,
    attrs: Mapping[str, Attr] | None = None,
    uses: Uses = ({},),
    infer: Infer = pair,
    inplace: Shares = OVER_EITHER,
    domain: str = "",
) -> Command:
    """`<name>(dy, y or x) -> dx`, in place."""

    def expand(emit: Emit, node: Node) -> Sequence[Value]:
        return [emit("nn.mul", operand(node, 0), slope(emit, node, operand(node, 1)))]

    shown = [(f"{dtype}[3,5]", f"{dtype}[3,5] {domain}".strip()) for dtype in ("f64", "f32")]
    examples = tuple(Example(inputs, use) for inputs in shown for use in uses)
    return Command(name, text, infer, compute, ByParts(expand), attrs or {}, (2, 2), inplace=inplace, examples=examples)


def _by_result(op: str) -> Times:
    """The gradient is `op(dy, y)`, with the attributes of the node."""
    return lambda emit, node, grad: emit(op, grad, result(node), **node.attrs)


def _by_input(op: str) -> Times:
    """The gradient is `op(dy, x)`, with the attributes of the node."""
    return lambda emit, node, grad: emit(op, grad, operand(node, 0), **node.attrs)


def _leaky(emit: Emit, node: Node, grad: Value) -> Value:
    """By the result, which has the sign of the input unless the slope is negative."""
    rule = _by_result if pick(node.attrs, "slope") >= 0 else _by_input
    return rule("nn.leaky_relu_gradient")(emit, node, grad)


def _erf(emit: Emit, node: Node, grad: Value) -> Value:
    x = operand(node, 0)
    return emit("nn.mul", grad, scaled(emit, _bell(emit, x, 1), 2 / math.sqrt(math.pi)))


# Reference functions. Arrays come as float64 or float32, and stay so.


def erf(x: Any) -> Any:
    """The error function, element by element."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
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


# Derivatives in smaller commands, for gradients of gradients.


def _plus(emit: Emit, a: Value, number: float) -> Value:
    return emit("nn.add", a, emit.constant(number, a))


def _bell(emit: Emit, x: Value, scale: float) -> Value:
    """exp(-scale x^2)."""
    return emit("nn.exp", scaled(emit, emit("nn.square", x), -scale))


def _where_positive(emit: Emit, y: Value, otherwise: Value) -> Value:
    return emit("nn.where", emit("nn.greater", y, emit.constant(0, y)), emit.constant(1, y), otherwise)


def _leaky_slope(emit: Emit, node: Node, y: Value) -> Value:
    return _where_positive(emit, y, emit.constant(pick(node.attrs, "slope"), y))


def _elu_slope(emit: Emit, node: Node, y: Value) -> Value:
    return _where_positive(emit, y, _plus(emit, y, pick(node.attrs, "alpha")))


def _sigmoid_slope(emit: Emit, node: Node, y: Value) -> Value:
    return emit("nn.mul", y, one_minus(emit, y))


def _tanh_slope(emit: Emit, node: Node, y: Value) -> Value:
    return one_minus(emit, emit("nn.square", y))


def _softplus_slope(emit: Emit, node: Node, y: Value) -> Value:
    """sigmoid(x) = 1 - exp(-y)."""
    return one_minus(emit, emit("nn.exp", emit("nn.neg", y)))


def _swish_slope(emit: Emit, node: Node, x: Value) -> Value:
    rise = emit("nn.sigmoid", x)
    return emit("nn.mul", rise, _plus(emit, emit("nn.mul", x, one_minus(emit, rise)), 1))


def _gelu_slope(emit: Emit, node: Node, x: Value) -> Value:
    if not pick(node.attrs, "approximate"):
        below = scaled(emit, _plus(emit, emit("nn.erf", scaled(emit, x, math.sqrt(0.5))), 1), 0.5)
        return emit("nn.add", below, emit("nn.mul", x, scaled(emit, _bell(emit, x, 0.5), ROOT_2_PI / 2)))
    square = emit("nn.square", x)
    bent = emit("nn.tanh", scaled(emit, emit("nn.mul", x, _plus(emit, scaled(emit, square, CUBIC), 1)), ROOT_2_PI))
    steep = scaled(emit, _plus(emit, scaled(emit, square, 3 * CUBIC), 1), ROOT_2_PI / 2)
    rest = emit("nn.mul", emit("nn.mul", x, steep), one_minus(emit, emit("nn.square", bent)))
    return emit("nn.add", scaled(emit, _plus(emit, bent, 1), 0.5), rest)


def _hard_swish_slope(emit: Emit, node: Node, x: Value) -> Value:
    above = emit("nn.greater_equal", x, emit.constant(3, x))
    below = emit("nn.less_equal", x, emit.constant(-3, x))
    ramp = _plus(emit, scaled(emit, x, 1 / 3), 0.5)
    return emit("nn.where", below, emit.constant(0, x), emit("nn.where", above, emit.constant(1, x), ramp))


def _relu_twice(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.relu_gradient", given(grads), operand(node, 1)), None]


_LEAKY: Uses = ({"slope": 0.1}, {"slope": -0.5})
_ELU: Uses = ({}, {"alpha": 0.5})
_GELU: Uses = ({}, {"approximate": 1})

COMMANDS = (
    _activation("relu", "max(x, 0), element by element.", lambda x: np.maximum(x, 0), _by_result("nn.relu_gradient")),
    Command(
        "relu_gradient",
        "The gradient of nn.relu: (dy, y) -> dx, dy where y is above 0.",
        pair,
        lambda dy, y: np.where(y <= 0, 0, dy),
        _relu_twice,
        inputs=(2, 2),
        inplace=OVER_EITHER,
        examples=(Example(("f64[3,5]", "f64[3,5]")), Example(("f32[3,5]", "f32[3,5]"))),
    ),
    _activation(
        "leaky_relu",
        "x where it is above 0, slope x elsewhere (Maas et al. 2013).",
        lambda x, slope: np.where(x > 0, x, x * slope),
        _leaky,
        {"slope": 0.01},
        _LEAKY,
    ),
    _backward(
        "leaky_relu_gradient",
        "The gradient of nn.leaky_relu: (dy, y) -> dx; x in the place of y does as well.",
        lambda dy, y, slope: np.where(y > 0, dy, dy * slope),
        _leaky_slope,
        {"slope": 0.01},
        _LEAKY,
    ),
    _activation(
        "elu",
        "x where it is above 0, alpha (exp(x) - 1) elsewhere (Clevert et al. 2016).",
        lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        _by_result("nn.elu_gradient"),
        {"alpha": 1.0},
        _ELU,
        _not_negative(like_first, "alpha"),
    ),
    _backward(
        "elu_gradient",
        "The gradient of nn.elu: (dy, y) -> dx.",
        lambda dy, y, alpha: np.where(y > 0, dy, dy * (y + alpha)),
        _elu_slope,
        {"alpha": 1.0},
        _ELU,
        _not_negative(pair, "alpha"),
    ),
    _activation("sigmoid", "1 / (1 + exp(-x)), element by element.", sigmoid, _by_result("nn.sigmoid_gradient")),
    _backward(
        "sigmoid_gradient", "The gradient of nn.sigmoid: (dy, y) -> dx.", lambda dy, y: dy * (1 - y) * y, _sigmoid_slope
    ),
    _activation("tanh", "The hyperbolic tangent, element by element.", np.tanh, _by_result("nn.tanh_gradient")),
    _backward("tanh_gradient", "The gradient of nn.tanh: (dy, y) -> dx.", lambda dy, y: dy * (1 - y**2), _tanh_slope),
    _activation(
        "softplus",
        "log(1 + exp(x)), element by element.",
        lambda x: np.logaddexp(x, x.dtype.type(0)),
        _by_result("nn.softplus_gradient"),
    ),
    _backward(
        "softplus_gradient",
        "The gradient of nn.softplus: (dy, y) -> dx.",
        lambda dy, y: -dy * np.expm1(-y),
        _softplus_slope,
        inplace=over_only((0, 1)),
        domain="0.1:3",
    ),
    _activation(
        "swish",
        "x sigmoid(x), also called SiLU (Ramachandran et al. 2017).",
        lambda x: x * sigmoid(x),
        _by_input("nn.swish_gradient"),
    ),
    _backward("swish_gradient", "The gradient of nn.swish: (dy, x) -> dx.", _swish_gradient, _swish_slope),
    _activation(
        "gelu",
        "x times the normal distribution function of x, or nearly so by tanh (Hendrycks and Gimpel 2016).",
        _gelu,
        _by_input("nn.gelu_gradient"),
        {"approximate": False},
        _GELU,
    ),
    _backward(
        "gelu_gradient",
        "The gradient of nn.gelu: (dy, x) -> dx.",
        _gelu_gradient,
        _gelu_slope,
        {"approximate": False},
        _GELU,
    ),
    _activation(
        "hard_swish",
        "x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019).",
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        _by_input("nn.hard_swish_gradient"),
        domain="-5:5",
    ),
    _backward(
        "hard_swish_gradient",
        "The gradient of nn.hard_swish: (dy, x) -> dx.",
        lambda dy, x: dy * np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5)),
        _hard_swish_slope,
        inplace=over_only((0, 1)),
        domain="-5:5",
    ),
    _activation("erf", "The error function, element by element.", erf, _erf),
)
