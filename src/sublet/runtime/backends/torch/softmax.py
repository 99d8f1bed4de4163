"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick
from sublet.ops.nn.shape_inference import normalize_axis
from sublet.runtime.backends.torch.kernel import Make, Operands, TorchKernel, single_call_kernel


def _axis(node: Node, inputs: Operands) -> int:
    return normalize_axis(pick(node.attrs, "axis"), inputs[0].ndim)


def _forward(name: str) -> Make:
    return single_call_kernel(name, lambda node, inputs: (_axis(node, inputs), False))


def _gradient(name: str, out: str) -> Make:
    return single_call_kernel(name, lambda node, inputs: (_axis(node, inputs), inputs[1].dtype), out)


KERNELS: Mapping[str, TorchKernel] = {
    "softmax": TorchKernel(_forward("_softmax")),
    "softmax_gradient": TorchKernel(_gradient("_softmax_backward_data", "grad_input")),
    "log_softmax": TorchKernel(_forward("_log_softmax")),
    "log_softmax_gradient": TorchKernel(_gradient("_log_softmax_backward_data", "out")),
}
