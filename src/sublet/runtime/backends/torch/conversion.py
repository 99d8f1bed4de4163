"""Fill, copy, and conversion of types and of the order of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sublet.base.tensor import DType
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.conversion import first_axes, last_axes
from sublet.ops.nn.gradients import result
from sublet.ops.nn.shapes import number_of
from sublet.runtime.backends.torch.kernel import Calls, Fast, Make, Operands, Tensor, torch
from sublet.runtime.calls import nothing


def _fill(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(outputs[0].fill_, number_of(pick(node.attrs, "value"), spec_of(result(node)).dtype))


def _undefined(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return nothing


def _iota(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(torch().arange, node.attrs["count"], out=outputs[0], device=outputs[0].device)


def _exactly_counted(node: Node) -> bool:
    return spec_of(result(node)).dtype not in (DType.F16, DType.BF16)


def copied(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Copy the input, converted to the type of the output."""
    return partial(outputs[0].copy_, inputs[0])


ROWS = 32
"""Rows of a matrix transposed at a time: the writes to a cache line then follow each other directly."""


def reordered(axes: Callable[[Node, int], tuple[int, ...]]) -> Make:
    """Return a kernel copying the input with permuted axes."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        source, result = inputs[0].permute(axes(node, inputs[0].ndim)), outputs[0]
        if source.ndim != 2 or source.is_contiguous():
            return partial(result.copy_, source)
        # ATen allocates a buffer to transpose a matrix, but none for three axes: add an axis of extent 1.
        blocks = zip(result.unsqueeze(0).split(ROWS, 2), source.unsqueeze(0).split(ROWS, 2), strict=True)
        return [partial(to.copy_, block) for to, block in blocks]

    return make


KERNELS: Mapping[str, Fast] = {
    "fill": Fast(_fill, moves=True),
    "undefined": Fast(_undefined, moves=True),
    "iota": Fast(_iota, takes=_exactly_counted),
    "cast": Fast(copied, moves=True),
    "copy": Fast(copied, moves=True),
    "offload": Fast(copied, moves=True),
    "reload": Fast(copied, moves=True),
    "to_nhwc": Fast(reordered(lambda node, rank: last_axes(rank)), moves=True),
    "to_nchw": Fast(reordered(lambda node, rank: first_axes(rank)), moves=True),
}
