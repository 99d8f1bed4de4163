"""Upsampling. ATen allocates an index and a weight for each row and column, and no memory per element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradient_rules import operand, result
from sublet.ops.nn.resampling import nearest_sources
from sublet.runtime.backends.torch.kernel import Calls, Operands, Tensor, TorchKernel, torch

MAX_EXTENT = 1 << 24
"""The largest extent computed by ATen; ATen counts in f32, which has no odd integers beyond 2^24."""


def _as_single_channel(tensor: Tensor) -> Tensor:
    """Return a view of every channel as a separate image; ATen then makes no channels-last copy."""
    return tensor.view(-1, 1, *tensor.shape[2:])


def _upsample(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    functions, x, y = torch()._C._nn, _as_single_channel(inputs[0]), _as_single_channel(outputs[0])
    size = y.shape[2:]
    if node.attrs["mode"] == "nearest":
        return partial(functions.upsample_nearest2d, x, size, None, None, out=y)
    return partial(functions.upsample_bilinear2d, x, size, bool(node.attrs["align_corners"]), None, None, out=y)


def _gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    functions, dy, dx = torch().ops.aten, _as_single_channel(inputs[0]), _as_single_channel(outputs[0])
    sizes = [list(dy.shape[2:]), list(dx.shape)]
    if node.attrs["mode"] == "nearest":
        return partial(functions.upsample_nearest2d_backward.grad_input, dy, *sizes, grad_input=dx)
    align = bool(node.attrs["align_corners"])
    return partial(functions.upsample_bilinear2d_backward.grad_input, dy, *sizes, align, grad_input=dx)


def _rounds_exactly(source: int, extent: int) -> bool:
    """True if floating-point arithmetic, as in ATen, gives the exact source positions of nearest sampling."""
    if extent > MAX_EXTENT:
        return False
    exact, places = nearest_sources(source, extent), np.arange(extent)
    single = np.floor(places.astype(np.float32) * (np.float32(source) / np.float32(extent)))
    return np.array_equal(single, exact) and np.array_equal(np.floor(places * (source / extent)), exact)


def _is_exact(node: Node) -> bool:
    images = [spec_of(operand(node, 0)).shape[2:], spec_of(result(node)).shape[2:]]
    source, target = images if node.op == "nn.upsample" else reversed(images)
    return pick(node.attrs, "mode") != "nearest" or all(map(_rounds_exactly, source, target))


KERNELS: Mapping[str, TorchKernel] = {
    "upsample": TorchKernel(_upsample, supports=_is_exact),
    "upsample_gradient": TorchKernel(_gradient, supports=_is_exact),
}
