"""Arithmetic, comparison and choice, element by element, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import REQUIRED, Command, Example, Required, over
from sublet.ops.nn.gradients import Times, elementwise, operand, result
from sublet.ops.nn.shapes import ANY, FLOATS, NUMBERS, broadcast, present, same_type
from sublet.ops.nn.shapes import elementwise as infer_elementwise
from sublet.ops.op import Attrs, Emit, Specs
from sublet.tensor import DType, TensorSpec


def unary(
    name: str,
    compute: Callable[..., Any],
    rule: Times | None,
    domain: str = "",
    attrs: dict[str, Attr | Required] | None = None,
    uses: tuple[dict[str, Attr], ...] = ({},),
) -> Command:
    """A command of one floating-point input."""
    return Command(
        name,
        infer_elementwise(FLOATS),
        compute,
        elementwise(rule) if rule else None,
        attrs or {},
        inplace=over(0),
        examples=tuple(Example((f"{dtype}[3,5] {domain}".strip(),), use) for dtype in ("f64", "f32") for use in uses),
    )


def binary(name: str, compute: Callable[..., Any], a: Times | None, b: Times | None, domain: str = "") -> Command:
    """A command of two inputs of one type."""
    kinds = (("f64[3,4]", "f64[3,4]"), ("f64[2,3,4]", "f64[3,1]"), ("f32[4]", "f32[]"), ("f32[2,1]", "f32[3]"))
    return Command(
        name,
        infer_elementwise(NUMBERS),
        compute,
        elementwise(a, b) if a or b else None,
        inputs=(2, 2),
        inplace=over(0, 1),
        examples=tuple(Example(tuple(f"{kind} {domain}".strip() for kind in pair)) for pair in kinds),
    )


def comparison(name: str, compute: Callable[..., Any]) -> Command:
    """A command of two inputs of one type that gives bools."""
    return Command(
        name,
        infer_elementwise(ANY, DType.BOOL),
        compute,
        inputs=(2, 2),
        inplace=over(0, 1),
        examples=(
            Example(("i64[3,4] 0:3", "i64[3,4] 0:3")),
            Example(("f32[2,3]", "f32[]")),
            Example(("bool[4]", "bool[4]")),
        ),
    )


def logical(name: str, compute: Callable[..., Any], count: int) -> Command:
    """A command of bools."""
    return Command(
        name,
        infer_elementwise((DType.BOOL,)),
        compute,
        inputs=(count, count),
        inplace=over(*range(count)),
        examples=(Example(("bool[3,4]",) * count),),
    )


def _mul(emit: Emit, *factors: Value) -> Value:
    product, *rest = factors
    for factor in rest:
        product = emit("nn.mul", product, factor)
    return product


def _x(node: Node) -> Value:
    return operand(node, 0)


def _scaled(emit: Emit, grad: Value, number: float) -> Value:
    return emit("nn.mul", grad, emit.constant(number, grad))


def _masked(emit: Emit, mask: Value, grad: Value) -> Value:
    return emit("nn.where", mask, grad, emit.constant(0, grad))


def _neg(emit: Emit, node: Node, grad: Value) -> Value:
    return emit("nn.neg", grad)


def _same(emit: Emit, node: Node, grad: Value) -> Value:
    return grad


def _abs(emit: Emit, node: Node, grad: Value) -> Value:
    return _mul(emit, grad, emit("nn.sign", _x(node)))


def _zero(emit: Emit, node: Node, grad: Value) -> Value:
    return emit("nn.mul", grad, emit.constant(0, grad))


def _pow_a(emit: Emit, node: Node, grad: Value) -> Value:
    a, b = operand(node, 0), operand(node, 1)
    lower = emit("nn.pow", a, emit("nn.sub", b, emit.constant(1, b)))
    return _mul(emit, grad, b, lower)


def _pow_b(emit: Emit, node: Node, grad: Value) -> Value:
    return _mul(emit, grad, result(node), emit("nn.log", operand(node, 0)))


def _div_b(emit: Emit, node: Node, grad: Value) -> Value:
    """-grad * (a / b) / b."""
    return emit("nn.neg", emit("nn.div", _mul(emit, grad, result(node)), operand(node, 1)))


def _larger(position: int, test: str) -> Times:
    """The gradient goes to the input that was taken; the first, where both are equal."""

    def rule(emit: Emit, node: Node, grad: Value) -> Value:
        mask = emit(test, operand(node, 0), operand(node, 1))
        return _masked(emit, mask if position == 0 else emit("nn.logical_not", mask), grad)

    return rule


def _where_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    condition, a, b = (present(spec, f"input {i}") for i, spec in enumerate(specs))
    same_type([condition], (DType.BOOL,))
    return (TensorSpec(same_type([a, b], ANY), broadcast([condition, a, b])),)


def _chosen(emit: Emit, node: Node, grad: Value) -> Value:
    return _masked(emit, operand(node, 0), grad)


def _other(emit: Emit, node: Node, grad: Value) -> Value:
    return emit("nn.where", operand(node, 0), emit.constant(0, grad), grad)


def _clamp(emit: Emit, node: Node, grad: Value) -> Value:
    x = _x(node)
    low, high = (emit.constant(float(node.attrs[key]), x) for key in ("low", "high"))  # type: ignore[arg-type]
    inside = emit("nn.logical_and", emit("nn.greater_equal", x, low), emit("nn.less_equal", x, high))
    return _masked(emit, inside, grad)


COMMANDS = (
    binary("add", np.add, _same, _same),
    binary("sub", np.subtract, _same, _neg),
    binary(
        "mul",
        np.multiply,
        lambda emit, node, grad: _mul(emit, grad, operand(node, 1)),
        lambda emit, node, grad: _mul(emit, grad, operand(node, 0)),
    ),
    binary(
        "div",
        lambda a, b: np.divide(a, b) if a.dtype.kind in "fV" else np.floor_divide(a, b),
        lambda emit, node, grad: emit("nn.div", grad, operand(node, 1)),
        _div_b,
        "0.5:2",
    ),
    binary("pow", np.power, _pow_a, _pow_b, "0.5:2"),
    binary("maximum", np.maximum, _larger(0, "nn.greater_equal"), _larger(1, "nn.greater_equal")),
    binary("minimum", np.minimum, _larger(0, "nn.less_equal"), _larger(1, "nn.less_equal")),
    unary("neg", np.negative, _neg),
    unary("abs", np.abs, _abs),
    unary("sign", np.sign, _zero),
    unary("exp", np.exp, lambda emit, node, grad: _mul(emit, grad, result(node))),
    unary("log", np.log, lambda emit, node, grad: emit("nn.div", grad, _x(node)), "0.1:3"),
    unary("sqrt", np.sqrt, lambda emit, node, grad: emit("nn.div", _scaled(emit, grad, 0.5), result(node)), "0.1:3"),
    unary(
        "reciprocal",
        np.reciprocal,
        lambda emit, node, grad: emit("nn.neg", _mul(emit, grad, result(node), result(node))),
        "0.5:3",
    ),
    unary("square", np.square, lambda emit, node, grad: _mul(emit, _scaled(emit, grad, 2), _x(node))),
    unary("sin", np.sin, lambda emit, node, grad: _mul(emit, grad, emit("nn.cos", _x(node)))),
    unary("cos", np.cos, lambda emit, node, grad: emit("nn.neg", _mul(emit, grad, emit("nn.sin", _x(node))))),
    unary("floor", np.floor, _zero),
    unary(
        "clamp",
        lambda x, low, high: np.clip(x, low, high),
        _clamp,
        attrs={"low": REQUIRED, "high": REQUIRED},
        uses=({"low": -0.5, "high": 1.0},),
    ),
    *(
        comparison(name, compute)
        for name, compute in (
            ("equal", np.equal),
            ("not_equal", np.not_equal),
            ("less", np.less),
            ("less_equal", np.less_equal),
            ("greater", np.greater),
            ("greater_equal", np.greater_equal),
        )
    ),
    logical("logical_and", np.logical_and, 2),
    logical("logical_or", np.logical_or, 2),
    logical("logical_not", np.logical_not, 1),
    Command(
        "where",
        _where_infer,
        np.where,
        elementwise(None, _chosen, _other),
        inputs=(3, 3),
        inplace=over(1, 2),
        examples=(
            Example(("bool[3,4]", "f64[3,4]", "f64[3,4]")),
            Example(("bool[3,1]", "f64[4]", "f64[]")),
            Example(("bool[3]", "i32[3] 0:9", "i32[3] 0:9")),
        ),
    ),
)
