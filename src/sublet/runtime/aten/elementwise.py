"""Arithmetic, comparison and choice: ATen's own functions with `out=`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sublet.ir.graph import Node
from sublet.runtime.aten.kernel import Fast, Make, Operands, Tensor, torch
from sublet.runtime.kernel import Call
from sublet.tensor import DType, TensorSpec


def direct(name: str) -> Make:
    """A kernel that is one function `torch.name(*inputs, out=output)`."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        return partial(getattr(torch(), name), *inputs, out=outputs[0])

    return make


def _clamp(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    return partial(torch().clamp, inputs[0], node.attrs["low"], node.attrs["high"], out=outputs[0])


def floating(node: Node) -> bool:
    """Whether the first input is of floating-point type; integers divide otherwise in ATen."""
    value = node.inputs[0]
    floats = (DType.F32, DType.F64, DType.F16, DType.BF16)
    return value is not None and isinstance(value.spec, TensorSpec) and value.spec.dtype in floats


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
    "clamp": Fast(_clamp, takes=floating),
}
