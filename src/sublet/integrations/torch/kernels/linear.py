"""Matrix products, each a single library call on views where strides of the batch axes allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise, product

from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, torch
from sublet.ir.graph import Node
from sublet.runtime.kernel import Call


def _matmul(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Call `mm` if a and b are matrices, or if b is a matrix and the rows of a are contiguous; otherwise call `bmm`."""
    a, b = (x.transpose(-1, -2) if node.attrs[f"transpose_{name}"] else x for x, name in zip(inputs, "ab", strict=True))
    out = outputs[0]
    if a.ndim == b.ndim == 2:
        return partial(torch().mm, a, b, out=out)
    if b.ndim == 2 and a.is_contiguous():
        return partial(torch().mm, as_matrix(a), b, out=as_matrix(out))
    batch = tuple(out.shape[:-2])
    a, b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    return [partial(torch().bmm, x, y, out=z) for x, y, z in _batches(a, b, out)]


def as_matrix(x: Tensor) -> Tensor:
    """Return a view with all axes but the last merged."""
    return x.view(x.shape[:-1].numel(), x.shape[-1])


def _batches(a: Tensor, b: Tensor, out: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield (a, b, product) as views with a single batch axis; usually one tuple covers the whole batch."""
    if out.ndim == 2:
        yield tuple(x.unsqueeze(0) for x in (a, b, out))
        return
    leading = out.ndim - 2
    joined = next(first for first in range(leading) if all(_are_mergeable(x, first, leading) for x in (a, b)))
    for index in product(*(range(extent) for extent in out.shape[:joined])):
        yield tuple(_merge_batch_axes(x[index]) for x in (a, b, out))


def _are_mergeable(x: Tensor, first: int, end: int) -> bool:
    """True if the strides allow a view merging the axes from `first` up to `end`."""
    steps = [(x.shape[axis], x.stride(axis)) for axis in range(first, end) if x.shape[axis] != 1]
    return all(step == inner * extent for (_, step), (extent, inner) in pairwise(steps))


def _merge_batch_axes(x: Tensor) -> Tensor:
    """Return a view with all axes before the last two merged."""
    axes = [axis for axis in range(x.ndim - 2) if x.shape[axis] != 1]
    count = x.shape[:-2].numel()
    return x.as_strided((count, *x.shape[-2:]), (x.stride(axes[-1]) if axes else 0, *x.stride()[-2:]))


def _gemm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    a, b = (x.t() if node.attrs[f"transpose_{name}"] else x for x, name in zip(inputs[:2], "ab", strict=True))
    out, alpha = outputs[0], node.attrs["alpha"]
    c = inputs[2] if len(inputs) > 2 else None
    if c is None:
        return partial(torch().addmm, out, a, b, beta=0, alpha=alpha, out=out)
    return partial(torch().addmm, c.expand(out.shape), a, b, beta=node.attrs["beta"], alpha=alpha, out=out)


def _linear(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    x, w, out = as_matrix(inputs[0]), inputs[1].t(), as_matrix(outputs[0])
    return matrix_product(x, w, inputs[2] if len(inputs) > 2 else None, out)


def matrix_product(x: Tensor, w: Tensor, b: Tensor, out: Tensor) -> Call:
    """Return the call out = x w + b for matrices; b is a row or None."""
    return partial(torch().mm, x, w, out=out) if b is None else partial(torch().addmm, b, x, w, out=out)


KERNELS: Mapping[str, TorchKernel] = {
    "matmul": TorchKernel(_matmul),
    "gemm": TorchKernel(_gemm),
    "linear": TorchKernel(_linear),
}
