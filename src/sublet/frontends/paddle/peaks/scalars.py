"""Constant propagation for scalars: loop counters, loop ends, and conditions on scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod

from sublet.frontends.paddle.format.program import PaddleOp
from sublet.frontends.paddle.lives.scopes import ScopedVariable

Number = bool | int | float
Resolve = Callable[[str], ScopedVariable]

BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    "less_than": operator.lt,
    "less_equal": operator.le,
    "greater_than": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "elementwise_add": operator.add,
    "elementwise_sub": operator.sub,
    "elementwise_mul": operator.mul,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
}


def propagate_scalars(op: PaddleOp, place: Resolve, known: dict[ScopedVariable, Number]) -> None:
    """Update the known scalars after an operator: `Out` is known if the operands are, further outputs are unknown."""
    result = _scalar_result(op, place, known)
    for name in op.writes:
        known.pop(place(name), None)
    target = op.first_output("Out")
    if result is not None and target:
        known[place(target)] = result


def _scalar_result(op: PaddleOp, place: Resolve, known: Mapping[ScopedVariable, Number]) -> Number | None:
    """Return the scalar result of an operator, or None."""
    if op.type == "fill_constant":
        return _filled_constant(op)
    x, y = (known.get(place(name)) if name else None for name in (op.first_input("X"), op.first_input("Y")))
    if op.type in BINARY:
        return None if x is None or y is None else BINARY[op.type](x, y)
    if x is None:
        return None
    match op.type:
        case "assign" | "cast" | "depend" | "reshape2":
            return x
        case "logical_not":
            return not x
        case "increment":
            return x + _real_attribute(op, "step", 1.0)
        case "scale" if not any(op.inputs.get(slot) for slot in ("ScaleTensor", "BiasTensor")):
            scale, bias, after = (
                _real_attribute(op, "scale", 1.0),
                _real_attribute(op, "bias", 0.0),
                op.attrs.get("bias_after_scale"),
            )
            return x * scale + bias if after is None or after.value else (x + bias) * scale
    return None


def _filled_constant(op: PaddleOp) -> Number | None:
    """Return the value of a `fill_constant` with a single element, or None."""
    shape = op.attrs.get("shape")
    if any(op.inputs.values()) or shape is None or not isinstance(shape.value, tuple):
        return None
    if prod(int(extent) for extent in shape.value if isinstance(extent, int)) != 1:
        return None
    text = op.attrs.get("str_value")
    if text is not None and isinstance(text.value, str) and text.value:
        try:
            return float(text.value)
        except ValueError:
            return None
    return _real_attribute(op, "value", 0.0)


def _real_attribute(op: PaddleOp, name: str, default: float) -> float:
    """Return a number attribute as a float."""
    attr = op.attrs.get(name)
    return float(attr.value) if attr is not None and isinstance(attr.value, int | float) else default
