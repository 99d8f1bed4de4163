"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sublet.ir.graph import Attr, Node
from sublet.runtime.backends.torch.kernel import Calls, Fast, Operands, Tensor, backward, calling, torch

FAR = 40
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


KERNELS: Mapping[str, Fast] = {
    "relu": Fast(calling("clamp_min", lambda node, _: (0,))),
    "relu_gradient": Fast(backward("threshold_backward", lambda node, _: (0,))),
    "leaky_relu": Fast(calling("_C._nn.leaky_relu", lambda node, _: (node.attrs["slope"],))),
    "leaky_relu_gradient": Fast(backward("leaky_relu_backward", lambda node, _: (node.attrs["slope"], False))),
    "elu": Fast(calling("_C._nn.elu", lambda node, _: (node.attrs["alpha"],))),
    "elu_gradient": Fast(_elu_gradient),
    "sigmoid": Fast(calling("sigmoid")),
    "sigmoid_gradient": Fast(backward("sigmoid_backward")),
    "tanh": Fast(calling("tanh")),
    "tanh_gradient": Fast(backward("tanh_backward")),
    "softplus": Fast(calling("_C._nn.softplus", lambda node, _: (1, FAR))),
    "softplus_gradient": Fast(_softplus_gradient),
    "swish": Fast(calling("_C._nn.silu")),
    "swish_gradient": Fast(backward("silu_backward")),
    "gelu": Fast(_gelu),
    "gelu_gradient": Fast(_gelu_gradient),
    "hard_swish": Fast(calling("_C._nn.hardswish")),
    "hard_swish_gradient": Fast(_hard_swish_gradient),
    "erf": Fast(calling("erf")),
}
