"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick
from sublet.ops.nn.shapes import axis_in
from sublet.runtime.backends.torch.kernel import Fast, Make, Operands, calling


def _axis(node: Node, inputs: Operands) -> int:
    return axis_in(pick(node.attrs, "axis"), inputs[0].ndim)


def _forward(name: str) -> Make:
    return calling(name, lambda node, inputs: (_axis(node, inputs), False))


def _gradient(name: str, out: str) -> Make:
    return calling(name, lambda node, inputs: (_axis(node, inputs), inputs[1].dtype), out)


KERNELS: Mapping[str, Fast] = {
    "softmax": Fast(_forward("_softmax")),
    "softmax_gradient": Fast(_gradient("_softmax_backward_data", "grad_input")),
    "log_softmax": Fast(_forward("_log_softmax")),
    "log_softmax_gradient": Fast(_gradient("_log_softmax_backward_data", "out")),
}
