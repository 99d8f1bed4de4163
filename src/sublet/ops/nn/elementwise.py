"""Arithmetic, comparison and selection, element by element, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import REQUIRED_NUMBER, Command, Required, spec_of
from sublet.ops.nn.rules import (
    ANY,
    FLOATS,
    NUMBERS,
    TermRule,
    broadcast_shape,
    elementwise_gradient,
    multiply,
    operand,
    require_present,
    require_same_type,
    result,
    scale_by,
    zeros_like,
)
from sublet.ops.nn.rules import elementwise_infer as infer_elementwise
from sublet.ops.op import Attrs, Emit, Specs, overwrite_any
from sublet.ops.slice_maps import elementwise


def unary(
    name: str,
    text: str,
    compute: Callable[..., Any],
    rule: TermRule | None,
    attrs: dict[str, Attr | Required] | None = None,
) -> Command:
    """Return a command with one floating-point input."""
    return Command(
        name,
        text,
        infer_elementwise(FLOATS),
        lambda x, **attrs: compute(x, **attrs),
        elementwise_gradient(rule) if rule else None,
        attrs or {},
        inplace=overwrite_any(0),
        slices=elementwise,
    )


def binary(name: str, text: str, compute: Callable[..., Any], a: TermRule | None, b: TermRule | None) -> Command:
    """Return a command with two inputs of equal type."""
    return Command(
        name,
        text,
        infer_elementwise(NUMBERS),
        lambda a, b: compute(a, b),
        elementwise_gradient(a, b) if a or b else None,
        inputs=(2, 2),
        inplace=overwrite_any(0, 1),
        slices=elementwise,
    )


def comparison(name: str, text: str, compute: Callable[..., Any]) -> Command:
    """Return a command comparing two inputs of equal type; the result has type bool."""
    return Command(
        name,
        text,
        infer_elementwise(ANY, DType.BOOL),
        lambda a, b: compute(a, b),
        inputs=(2, 2),
        inplace=overwrite_any(0, 1),
        slices=elementwise,
    )


def logical(name: str, text: str, compute: Callable[..., Any], count: int) -> Command:
    """Return a command on bools."""
    return Command(
        name,
        text,
        infer_elementwise((DType.BOOL,)),
        (lambda x: compute(x)) if count == 1 else (lambda a, b: compute(a, b)),
        inputs=(count, count),
        inplace=overwrite_any(*range(count)),
        slices=elementwise,
    )


def _x(node: Node) -> Value:
    return operand(node, 0)


def _mask_gradient(emit: Emit, mask: Value, grad: Value) -> Value:
    return emit("nn.where", mask, grad, emit.constant(0, grad))


def _neg(emit: Emit, node: Node, grad: Value) -> Value:
    return emit("nn.neg", grad)


def _pass_gradient(emit: Emit, node: Node, grad: Value) -> Value:
    return grad


def _abs(emit: Emit, node: Node, grad: Value) -> Value:
    return multiply(emit, grad, emit("nn.sign", _x(node)))


def _zero(emit: Emit, node: Node, grad: Value) -> Value:
    return zeros_like(emit, grad)


def _pow_a(emit: Emit, node: Node, grad: Value) -> Value:
    """Return b a^(b - 1); 0 for b = 0, whatever a. A literal b, the usual case, needs only a constant exponent."""
    a, b = operand(node, 0), operand(node, 1)
    if b.literal is not None and spec_of(b).size == 1:
        exponent = float(b.literal[0])
        if exponent in (0, 1):
            return grad if exponent else zeros_like(emit, grad)
        lower = a if exponent == 2 else emit("nn.pow", a, emit.constant(exponent - 1, a))
        return multiply(emit, grad, scale_by(emit, lower, exponent))
    lower = emit("nn.pow", a, emit("nn.sub", b, emit.constant(1, b)))
    is_flat = emit("nn.equal", b, emit.constant(0, b))
    return emit("nn.where", is_flat, emit.constant(0, grad), multiply(emit, grad, b, lower))


def _pow_b(emit: Emit, node: Node, grad: Value) -> Value:
    """Return a^b log(a); 0 for a = 0 and b >= 0, where the power is finite and locally constant (0, or 1 at b = 0)."""
    a, b = operand(node, 0), operand(node, 1)
    zero, positive = emit("nn.equal", a, emit.constant(0, a)), emit("nn.greater_equal", b, emit.constant(0, b))
    is_flat = emit("nn.logical_and", zero, positive)
    slope = multiply(emit, grad, result(node), emit("nn.log", a))
    return emit("nn.where", is_flat, emit.constant(0, grad), slope)


def _div_b(emit: Emit, node: Node, grad: Value) -> Value:
    """Return -grad * (a / b) / b."""
    return emit("nn.neg", emit("nn.div", multiply(emit, grad, result(node)), operand(node, 1)))


def _extremum_rule(position: int, test: str) -> TermRule:
    """Return the rule of maximum or minimum: the gradient goes to the selected input, the first for equal inputs."""

    def rule(emit: Emit, node: Node, grad: Value) -> Value:
        mask = emit(test, operand(node, 0), operand(node, 1))
        return _mask_gradient(emit, mask if position == 0 else emit("nn.logical_not", mask), grad)

    return rule


def _where_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    condition, a, b = (require_present(spec, f"input {i}") for i, spec in enumerate(specs))
    require_same_type([condition], (DType.BOOL,))
    return (TensorSpec(require_same_type([a, b], ANY), broadcast_shape([condition, a, b])),)


def _gradient_of_a(emit: Emit, node: Node, grad: Value) -> Value:
    return _mask_gradient(emit, operand(node, 0), grad)


def _gradient_of_b(emit: Emit, node: Node, grad: Value) -> Value:
    return emit("nn.where", operand(node, 0), emit.constant(0, grad), grad)


def _clamp(emit: Emit, node: Node, grad: Value) -> Value:
    x = _x(node)
    low, high = (emit.constant(float(node.attrs[key]), x) for key in ("low", "high"))  # type: ignore[arg-type]
    inside = emit("nn.logical_and", emit("nn.greater_equal", x, low), emit("nn.less_equal", x, high))
    return _mask_gradient(emit, inside, grad)


def _power(a: Any, b: Any) -> Any:
    """Return a^b; for integers, truncated to an integer."""
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    power = np.power(a, np.maximum(b, 0))
    return np.where(b < 0, np.where(np.abs(a) == 1, np.power(a, b & 1), 0), power)


COMMANDS = (
    binary("add", "a + b, with NumPy's broadcasting.", np.add, _pass_gradient, _pass_gradient),
    binary("sub", "a - b, with NumPy's broadcasting.", np.subtract, _pass_gradient, _neg),
    binary(
        "mul",
        "a b, element by element, with NumPy's broadcasting.",
        np.multiply,
        lambda emit, node, grad: multiply(emit, grad, operand(node, 1)),
        lambda emit, node, grad: multiply(emit, grad, operand(node, 0)),
    ),
    binary(
        "div",
        "a / b, with NumPy's broadcasting; rounded down for integers.",
        lambda a, b: np.divide(a, b) if a.dtype.kind in "fV" else np.floor_divide(a, b),
        lambda emit, node, grad: emit("nn.div", grad, operand(node, 1)),
        _div_b,
    ),
    binary("pow", "a to the power of b, with NumPy's broadcasting.", _power, _pow_a, _pow_b),
    binary(
        "maximum",
        "The larger of a and b, with NumPy's broadcasting.",
        np.maximum,
        _extremum_rule(0, "nn.greater_equal"),
        _extremum_rule(1, "nn.greater_equal"),
    ),
    binary(
        "minimum",
        "The smaller of a and b, with NumPy's broadcasting.",
        np.minimum,
        _extremum_rule(0, "nn.less_equal"),
        _extremum_rule(1, "nn.less_equal"),
    ),
    unary("neg", "-x.", np.negative, _neg),
    unary("abs", "The absolute value.", np.abs, _abs),
    unary("sign", "-1, 0 or 1.", np.sign, _zero),
    unary("exp", "e to the power of x.", np.exp, lambda emit, node, grad: multiply(emit, grad, result(node))),
    unary("log", "The natural logarithm.", np.log, lambda emit, node, grad: emit("nn.div", grad, _x(node))),
    unary(
        "sqrt",
        "The square root.",
        np.sqrt,
        lambda emit, node, grad: emit("nn.div", scale_by(emit, grad, 0.5), result(node)),
    ),
    unary(
        "reciprocal",
        "1 / x.",
        np.reciprocal,
        lambda emit, node, grad: emit("nn.neg", multiply(emit, grad, result(node), result(node))),
    ),
    unary(
        "square", "x times x.", np.square, lambda emit, node, grad: multiply(emit, scale_by(emit, grad, 2), _x(node))
    ),
    unary("sin", "The sine.", np.sin, lambda emit, node, grad: multiply(emit, grad, emit("nn.cos", _x(node)))),
    unary(
        "cos",
        "The cosine.",
        np.cos,
        lambda emit, node, grad: emit("nn.neg", multiply(emit, grad, emit("nn.sin", _x(node)))),
    ),
    unary("floor", "The largest integer not above x.", np.floor, _zero),
    unary(
        "clamp",
        "min(max(x, low), high).",
        lambda x, low, high: np.clip(x, low, high),
        _clamp,
        attrs={"low": REQUIRED_NUMBER, "high": REQUIRED_NUMBER},
    ),
    *(
        comparison(name, text, compute)
        for name, text, compute in (
            ("equal", "a == b, as bools.", np.equal),
            ("not_equal", "a != b, as bools.", np.not_equal),
            ("less", "a < b, as bools.", np.less),
            ("less_equal", "a <= b, as bools.", np.less_equal),
            ("greater", "a > b, as bools.", np.greater),
            ("greater_equal", "a >= b, as bools.", np.greater_equal),
        )
    ),
    Command(
        "isnan",
        "True where x is NaN, as bools.",
        infer_elementwise(FLOATS, DType.BOOL),
        lambda x: np.isnan(x),
        slices=elementwise,
    ),
    logical("logical_and", "Logical and.", np.logical_and, 2),
    logical("logical_or", "Logical or.", np.logical_or, 2),
    logical("logical_not", "Logical not.", np.logical_not, 1),
    Command(
        "where",
        "a where the condition is true, b elsewhere, with NumPy's broadcasting.",
        _where_infer,
        lambda condition, a, b: np.where(condition, a, b),
        elementwise_gradient(None, _gradient_of_a, _gradient_of_b),
        inputs=(3, 3),
        inplace=overwrite_any(1, 2),
        slices=elementwise,
    ),
)
