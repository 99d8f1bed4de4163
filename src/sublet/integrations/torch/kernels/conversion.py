"""Fill, copy, and conversion of types and of the order of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sublet.base.tensor import DType
from sublet.integrations.torch.kernels.kernel import Calls, Make, Operands, Tensor, TorchKernel, torch
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.conversion import to_nchw_axes, to_nhwc_axes
from sublet.ops.nn.rules import number_as, result
from sublet.runtime.kernel import no_op


def _fill(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(outputs[0].fill_, number_as(pick(node.attrs, "value"), spec_of(result(node)).dtype))


def _leave_undefined(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return no_op


def _iota(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(torch().arange, node.attrs["count"], out=outputs[0], device=outputs[0].device)


def _counts_exactly(node: Node) -> bool:
    return spec_of(result(node)).dtype not in (DType.F16, DType.BF16)


def copy_kernel(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Copy the input, converted to the type of the output."""
    return partial(outputs[0].copy_, inputs[0])


TRANSPOSE_ROWS = 32
"""Rows of a matrix transposed at a time: the writes to a cache line then follow each other directly."""


def permute_kernel(axes: Callable[[Node, int], tuple[int, ...]]) -> Make:
    """Return a kernel copying the input with permuted axes."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        source, result = inputs[0].permute(axes(node, inputs[0].ndim)), outputs[0]
        if source.ndim != 2 or source.is_contiguous():
            return partial(result.copy_, source)
        # ATen allocates a buffer to transpose a matrix, but none for three axes: add an axis of extent 1.
        blocks = zip(
            result.unsqueeze(0).split(TRANSPOSE_ROWS, 2), source.unsqueeze(0).split(TRANSPOSE_ROWS, 2), strict=True
        )
        return [partial(to.copy_, block) for to, block in blocks]

    return make


KERNELS: Mapping[str, TorchKernel] = {
    "fill": TorchKernel(_fill, only_moves=True),
    "undefined": TorchKernel(_leave_undefined, only_moves=True),
    "iota": TorchKernel(_iota, supports=_counts_exactly),
    "cast": TorchKernel(copy_kernel, only_moves=True),
    "copy": TorchKernel(copy_kernel, only_moves=True),
    "offload": TorchKernel(copy_kernel, only_moves=True),
    "reload": TorchKernel(copy_kernel, only_moves=True),
    "to_nhwc": TorchKernel(permute_kernel(lambda node, rank: to_nhwc_axes(rank)), only_moves=True),
    "to_nchw": TorchKernel(permute_kernel(lambda node, rank: to_nchw_axes(rank)), only_moves=True),
}
