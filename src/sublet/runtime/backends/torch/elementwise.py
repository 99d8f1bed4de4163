"""Arithmetic, comparison and selection."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand, result
from sublet.ops.nn.shapes import FLOATS, number_of
from sublet.runtime.backends.torch.kernel import Fast, Operands, calling


def _bounds(node: Node, inputs: Operands) -> tuple[float, float]:
    dtype = spec_of(result(node)).dtype
    return number_of(pick(node.attrs, "low"), dtype), number_of(pick(node.attrs, "high"), dtype)


def floating(node: Node) -> bool:
    """True if the first input has a floating-point type; ATen divides integers differently from the reference."""
    return spec_of(operand(node, 0)).dtype in FLOATS


SAME = (
    *("add", "sub", "mul", "maximum", "minimum", "neg", "abs", "sign", "exp", "log", "sqrt", "reciprocal", "square"),
    *("sin", "cos", "floor", "logical_and", "logical_or", "logical_not", "where"),
)
"""Commands with the same name and arguments in ATen."""

COMPARISONS = {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}

KERNELS: Mapping[str, Fast] = {
    **{name: Fast(calling(name)) for name in SAME},
    **{name: Fast(calling(function)) for name, function in COMPARISONS.items()},
    "div": Fast(calling("div"), takes=floating),
    "pow": Fast(calling("pow"), takes=floating),
    "isnan": Fast(calling("ne", lambda node, inputs: (inputs[0],))),
    "clamp": Fast(calling("clamp", _bounds)),
}
