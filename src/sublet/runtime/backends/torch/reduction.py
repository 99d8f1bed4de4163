"""Reductions over axes, and broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick
from sublet.ops.nn.shape_inference import normalize_axes
from sublet.runtime.backends.torch.elementwise import has_float_input
from sublet.runtime.backends.torch.kernel import Calls, Operands, Tensor, TorchKernel, single_call_kernel, torch


def axes_and_keepdims(node: Node, inputs: Operands) -> tuple[tuple[int, ...], bool]:
    """Return the reduced axes, and True if the reduced axes remain with extent 1."""
    axes = normalize_axes(pick(node.attrs, "axes"), inputs[0].ndim) if inputs[0].ndim else ()
    return axes, bool(node.attrs["keepdims"])


def _sum_to(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Sum into a view of the result with every reduced axis kept at extent 1."""
    x, out = inputs[0], outputs[0]
    extra = x.ndim - out.ndim
    axes = [a for a in range(x.ndim) if a < extra or (out.shape[a - extra] == 1 and x.shape[a] != 1)]
    if not axes:  # ATen would reduce all axes for an empty list
        return partial(out.copy_, x)
    kept = [1 if a in axes else extent for a, extent in enumerate(x.shape)]
    return partial(torch().sum, x, axes, True, out=out.view(kept))


def _broadcast(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(outputs[0].copy_, inputs[0].expand(outputs[0].shape))


def _reshape(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(outputs[0].copy_, inputs[0].view(outputs[0].shape))


KERNELS: Mapping[str, TorchKernel] = {
    "sum": TorchKernel(single_call_kernel("sum", axes_and_keepdims), supports=has_float_input),
    "mean": TorchKernel(single_call_kernel("mean", axes_and_keepdims), supports=has_float_input),
    "sum_to": TorchKernel(_sum_to, supports=has_float_input),
    "broadcast_to": TorchKernel(_broadcast, only_moves=True),
    "reshape": TorchKernel(_reshape, only_moves=True),
}
