"""Activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sublet.ir.graph import Attr, Node
from sublet.runtime.backends.torch.elementwise import direct
from sublet.runtime.backends.torch.kernel import Fast, Make, Operands, Tensor, torch
from sublet.runtime.calls import in_turn
from sublet.runtime.kernel import Call

Arguments = Callable[[Mapping[str, Attr]], Sequence[Any]]
"""Attributes -> what follows the tensors in the call of ATen's function."""

FAR = 40
"""Beyond this, x is what softplus(x) rounds to in every type."""


def none(attrs: Mapping[str, Attr]) -> Sequence[Any]:
    """Of a function that takes tensors only."""
    return ()


def unary(name: str, arguments: Arguments = none) -> Make:
    """`torch._C._nn.name(x, *arguments, out=y)`."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        return partial(getattr(torch()._C._nn, name), *inputs, *arguments(node.attrs), out=outputs[0])

    return make


def backward(name: str, arguments: Arguments = none) -> Make:
    """`torch.ops.aten.name(dy, y or x, *arguments, grad_input=dx)`: Python sees these functions only as overloads."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
        function = getattr(torch().ops.aten, name).grad_input
        return partial(function, *inputs, *arguments(node.attrs), grad_input=outputs[0])

    return make


def _relu(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    return partial(torch().clamp_min, inputs[0], 0, out=outputs[0])


def _approximation(attrs: Mapping[str, Attr]) -> str:
    return "tanh" if attrs["approximate"] else "none"


def _gelu(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    return partial(torch()._C._nn.gelu, inputs[0], approximate=_approximation(node.attrs), out=outputs[0])


def _gelu_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    function, kind = torch().ops.aten.gelu_backward.grad_input, _approximation(node.attrs)
    return partial(function, *inputs, approximate=kind, grad_input=outputs[0])


def _elu_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    dy, y = inputs
    return partial(
        torch().ops.aten.elu_backward.grad_input, dy, node.attrs["alpha"], 1, 1, True, y, grad_input=outputs[0]
    )


def _softplus_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    """dy * (1 - exp(-y)), computed where it goes."""
    t, (dy, y), (dx,) = torch(), inputs, outputs
    zero = dx.new_zeros(())
    return in_turn(
        [
            partial(t.neg, y, out=dx),
            partial(t.expm1, dx, out=dx),
            partial(t.addcmul, zero, dy, dx, value=-1, out=dx),
        ]
    )


def _hard_swish_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Call:
    """dy * (x / 3 + 1/2), once x is -1.5 where it is -3 or less and 1.5 where it is 3 or more; where it goes."""
    t, (dy, x), (dx,) = torch(), inputs, outputs
    half = dx.new_full((), 0.5)
    return in_turn(
        [
            partial(t.threshold, x, -3, -1.5, out=dx),
            partial(t.neg, dx, out=dx),
            partial(t.threshold, dx, -3, -1.5, out=dx),
            partial(t.sub, half, dx, alpha=1 / 3, out=dx),
            partial(t.mul, dy, dx, out=dx),
        ]
    )


KERNELS: Mapping[str, Fast] = {
    "relu": Fast(_relu),
    "relu_gradient": Fast(backward("threshold_backward", lambda attrs: (0,))),
    "leaky_relu": Fast(unary("leaky_relu", lambda attrs: (attrs["slope"],))),
    "leaky_relu_gradient": Fast(backward("leaky_relu_backward", lambda attrs: (attrs["slope"], False))),
    "elu": Fast(unary("elu", lambda attrs: (attrs["alpha"],))),
    "elu_gradient": Fast(_elu_gradient),
    "sigmoid": Fast(direct("sigmoid")),
    "sigmoid_gradient": Fast(backward("sigmoid_backward")),
    "tanh": Fast(direct("tanh")),
    "tanh_gradient": Fast(backward("tanh_backward")),
    "softplus": Fast(unary("softplus", lambda attrs: (1, FAR))),
    "softplus_gradient": Fast(_softplus_gradient),
    "swish": Fast(unary("silu")),
    "swish_gradient": Fast(backward("silu_backward")),
    "gelu": Fast(_gelu),
    "gelu_gradient": Fast(_gelu_gradient),
    "hard_swish": Fast(unary("hardswish")),
    "hard_swish_gradient": Fast(_hard_swish_gradient),
    "erf": Fast(direct("erf")),
}
