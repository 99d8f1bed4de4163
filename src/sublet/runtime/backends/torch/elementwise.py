"""Arithmetic, comparison and choice: ATen's own functions with `out=`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand, result
from sublet.ops.nn.shapes import FLOATS, number_of
from sublet.runtime.backends.torch.kernel import Fast, Make, Operands, Tensor, torch
from sublet.runtime.kernel import Call


def direct(name: str) -> Make:
    """A kernel that is one function `torch.name(*inputs, out=output)`."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        return partial(getattr(torch(), name), *inputs, out=outputs[0])

    return make


def _clamp(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    low, high = (number_of(pick(node.attrs, key), spec_of(result(node)).dtype) for key in ("low", "high"))
    return partial(torch().clamp, inputs[0], low, high, out=outputs[0])


def floating(node: Node) -> bool:
    """Whether the first input is of floating-point type; integers divide otherwise in ATen."""
    return spec_of(operand(node, 0)).dtype in FLOATS


KERNELS: Mapping[str, Fast] = {
    **{
        name: Fast(direct(function))
        for name, function in {
            "add": "add",
            "sub": "sub",
            "mul": "mul",
            "maximum": "maximum",
            "minimum": "minimum",
            "neg": "neg",
            "abs": "abs",
            "sign": "sign",
            "exp": "exp",
            "log": "log",
            "sqrt": "sqrt",
            "reciprocal": "reciprocal",
            "square": "square",
            "sin": "sin",
            "cos": "cos",
            "floor": "floor",
            "equal": "eq",
            "not_equal": "ne",
            "less": "lt",
            "less_equal": "le",
            "greater": "gt",
            "greater_equal": "ge",
            "logical_and": "logical_and",
            "logical_or": "logical_or",
            "logical_not": "logical_not",
            "where": "where",
        }.items()
    },
    "div": Fast(direct("div"), takes=floating),
    "pow": Fast(direct("pow"), takes=floating),
    "clamp": Fast(_clamp),
}
