"""Arithmetic, comparison and selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.integrations.torch.kernels.kernel import Operands, TorchKernel, single_call_kernel, takes_all_strides
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import FLOATS, number_as, operand, result


def _bounds(node: Node, inputs: Operands) -> tuple[float, float]:
    dtype = spec_of(result(node)).dtype
    return number_as(pick(node.attrs, "low"), dtype), number_as(pick(node.attrs, "high"), dtype)


def has_float_input(node: Node) -> bool:
    """True if the first input has a floating-point type; ATen divides integers differently from the reference."""
    return spec_of(operand(node, 0)).dtype in FLOATS


SAME_NAME = (
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

_KERNELS: Mapping[str, TorchKernel] = {
    **{name: TorchKernel(single_call_kernel(name)) for name in SAME_NAME},
    **{name: TorchKernel(single_call_kernel(function)) for name, function in COMPARISONS.items()},
    "div": TorchKernel(single_call_kernel("div"), supports=has_float_input),
    "pow": TorchKernel(single_call_kernel("pow"), supports=has_float_input),
    "isnan": TorchKernel(single_call_kernel("ne", lambda node, inputs: (inputs[0],))),
    "clamp": TorchKernel(single_call_kernel("clamp", _bounds)),
}

KERNELS: Mapping[str, TorchKernel] = {
    name: replace(kernel, strided=takes_all_strides) for name, kernel in _KERNELS.items()
}
