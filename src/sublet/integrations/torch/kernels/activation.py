"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Make,
    Operands,
    Tensor,
    TorchKernel,
    backward_kernel,
    single_call_kernel,
    takes_all_strides,
    torch,
)
from sublet.ir.graph import Attr, Node
from sublet.ops.nn.command import pick
from sublet.ops.nn.rules import normalize_axis

SOFTPLUS_IDENTITY_FROM = 40
"""softplus(x) rounds to x beyond this number, in every type."""


def _approximation(attrs: Mapping[str, Attr]) -> str:
    return "tanh" if attrs["approximate"] else "none"


def _gelu(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(torch()._C._nn.gelu, inputs[0], approximate=_approximation(node.attrs), out=outputs[0])


def _gelu_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    function, kind = torch().ops.aten.gelu_backward.grad_input, _approximation(node.attrs)
    return partial(function, *inputs, approximate=kind, grad_input=outputs[0])


def _elu_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, y = inputs
    return partial(
        torch().ops.aten.elu_backward.grad_input, dy, node.attrs["alpha"], 1, 1, True, y, grad_input=outputs[0]
    )


def _softplus_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute dy * (1 - exp(-y)) in the output."""
    t, (dy, y), (dx,) = torch(), inputs, outputs
    zero = dx.new_zeros(())
    return [
        partial(t.neg, y, out=dx),
        partial(t.expm1, dx, out=dx),
        partial(t.addcmul, zero, dy, dx, value=-1, out=dx),
    ]


def _hard_swish_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute dy * (x / 3 + 1/2) in the output, with x replaced by -1.5 for x <= -3 and by 1.5 for x >= 3."""
    t, (dy, x), (dx,) = torch(), inputs, outputs
    half = dx.new_full((), 0.5)
    return [
        partial(t.threshold, x, -3, -1.5, out=dx),
        partial(t.neg, dx, out=dx),
        partial(t.threshold, dx, -3, -1.5, out=dx),
        partial(t.sub, half, dx, alpha=1 / 3, out=dx),
        partial(t.mul, dy, dx, out=dx),
    ]


_ELEMENTWISE_KERNELS: Mapping[str, TorchKernel] = {
    "relu": TorchKernel(single_call_kernel("clamp_min", lambda node, _: (0,))),
    "relu_gradient": TorchKernel(backward_kernel("threshold_backward", lambda node, _: (0,))),
    "leaky_relu": TorchKernel(single_call_kernel("_C._nn.leaky_relu", lambda node, _: (node.attrs["slope"],))),
    "leaky_relu_gradient": TorchKernel(
        backward_kernel("leaky_relu_backward", lambda node, _: (node.attrs["slope"], False))
    ),
    "elu": TorchKernel(single_call_kernel("_C._nn.elu", lambda node, _: (node.attrs["alpha"],))),
    "elu_gradient": TorchKernel(_elu_gradient),
    "sigmoid": TorchKernel(single_call_kernel("sigmoid")),
    "sigmoid_gradient": TorchKernel(backward_kernel("sigmoid_backward")),
    "tanh": TorchKernel(single_call_kernel("tanh")),
    "tanh_gradient": TorchKernel(backward_kernel("tanh_backward")),
    "softplus": TorchKernel(single_call_kernel("_C._nn.softplus", lambda node, _: (1, SOFTPLUS_IDENTITY_FROM))),
    "softplus_gradient": TorchKernel(_softplus_gradient),
    "swish": TorchKernel(single_call_kernel("_C._nn.silu")),
    "swish_gradient": TorchKernel(backward_kernel("silu_backward")),
    "gelu": TorchKernel(_gelu),
    "gelu_gradient": TorchKernel(_gelu_gradient),
    "hard_swish": TorchKernel(single_call_kernel("_C._nn.hardswish")),
    "hard_swish_gradient": TorchKernel(_hard_swish_gradient),
    "erf": TorchKernel(single_call_kernel("erf")),
}

ONEDNN = ("gelu", "gelu_gradient")
"""Commands that PyTorch may compute in oneDNN, which ignores the strides of a result."""

ELEMENTWISE_KERNELS: Mapping[str, TorchKernel] = {
    name: kernel if name in ONEDNN else replace(kernel, strided=takes_all_strides)
    for name, kernel in _ELEMENTWISE_KERNELS.items()
}


# Softmax and log-softmax.


def _axis(node: Node, inputs: Operands) -> int:
    return normalize_axis(pick(node.attrs, "axis"), inputs[0].ndim)


def _forward(name: str) -> Make:
    return single_call_kernel(name, lambda node, inputs: (_axis(node, inputs), False))


def _gradient(name: str, out: str) -> Make:
    return single_call_kernel(name, lambda node, inputs: (_axis(node, inputs), inputs[1].dtype), out)


KERNELS: Mapping[str, TorchKernel] = {
    **ELEMENTWISE_KERNELS,
    "softmax": TorchKernel(_forward("_softmax")),
    "softmax_gradient": TorchKernel(_gradient("_softmax_backward_data", "grad_input")),
    "log_softmax": TorchKernel(_forward("_log_softmax")),
    "log_softmax_gradient": TorchKernel(_gradient("_log_softmax_backward_data", "out")),
}
