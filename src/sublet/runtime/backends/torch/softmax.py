"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick
from sublet.ops.nn.shapes import axis_in
from sublet.runtime.backends.torch.kernel import Fast, Make, Operands, Tensor, torch
from sublet.runtime.kernel import Call


def _axis(node: Node, x: Tensor) -> int:
    return axis_in(pick(node.attrs, "axis"), x.ndim)


def _normalised(name: str) -> Make:
    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        (x,) = inputs
        return partial(getattr(torch(), name), x, _axis(node, x), False, out=outputs[0])

    return make


def _normalised_gradient(name: str, result: str) -> Make:
    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        dy, y = inputs
        return partial(getattr(torch(), name), dy, y, _axis(node, y), y.dtype, **{result: outputs[0]})

    return make


KERNELS: Mapping[str, Fast] = {
    "softmax": Fast(_normalised("_softmax")),
    "softmax_gradient": Fast(_normalised_gradient("_softmax_backward_data", "grad_input")),
    "log_softmax": Fast(_normalised("_log_softmax")),
    "log_softmax_gradient": Fast(_normalised_gradient("_log_softmax_backward_data", "out")),
}
