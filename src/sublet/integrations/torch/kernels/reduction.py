"""Reductions over axes, and broadcasting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from sublet.integrations.torch.kernels.elementwise import has_float_input
from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Operands,
    Tensor,
    TorchKernel,
    has_f32_or_f64,
    scratch_tensor,
    single_call_kernel,
    torch,
)
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.reduction import reduced_shape
from sublet.ops.nn.rules import normalize_axes, operand


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


REDUCTION_KERNELS: Mapping[str, TorchKernel] = {
    "sum": TorchKernel(single_call_kernel("sum", axes_and_keepdims), supports=has_float_input),
    "mean": TorchKernel(single_call_kernel("mean", axes_and_keepdims), supports=has_float_input),
    "sum_to": TorchKernel(_sum_to, supports=has_float_input),
    "broadcast_to": TorchKernel(_broadcast, only_moves=True),
    "reshape": TorchKernel(_reshape, only_moves=True),
}


# Reductions by selection or product, and running sums.


def _reduced_axes(node: Node, position: int) -> tuple[int, ...]:
    """Return the reduced axes of the input at `position`."""
    rank = len(spec_of(operand(node, position)).shape)
    return normalize_axes(pick(node.attrs, "axes"), rank) if rank else ()


def merge_reduced_axes(shape: Sequence[int], gone: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the shape as [before, reduced, after] if the reduced axes are adjacent; else None.

    Axes of extent 1 are ignored.
    """
    large = [axis for axis, extent in enumerate(shape) if extent != 1]
    at = [i for i, axis in enumerate(large) if axis in gone]
    if any(b - a != 1 for a, b in pairwise(at)):
        return None
    first, last = (large[at[0]], large[at[-1]] + 1) if at else (len(shape), len(shape))
    return prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])


def _prod(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    x = inputs[0]
    shape = merge_reduced_axes(x.shape, _reduced_axes(node, 0))
    assert shape is not None
    before, _, after = shape
    return partial(torch().prod, x.view(shape), 1, out=outputs[0].view(before, after))


def _supports_prod(node: Node) -> bool:
    position = 0 if node.op == "nn.prod" else 1
    return (
        has_f32_or_f64(node)
        and merge_reduced_axes(spec_of(operand(node, position)).shape, _reduced_axes(node, position)) is not None
    )


def _prod_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute with zeros of x as 1; in products with zeros, then set all gradients to 0 except at an only zero."""
    t, x = torch(), inputs[1]
    shape = merge_reduced_axes(x.shape, _reduced_axes(node, 1))
    assert shape is not None
    kept = (shape[0], 1, shape[2])
    x, dy, dx = x.view(shape), inputs[0].view(kept), outputs[0].view(shape)
    count = scratch_tensor(scratch, x.dtype, kept)
    product = scratch_tensor(scratch, x.dtype, kept, dy.nbytes)
    wrong = scratch_tensor(scratch, t.bool, shape, 2 * dy.nbytes)
    zero = x.new_zeros(())
    return [
        partial(t.eq, x, zero, out=dx),
        partial(t.sum, dx, 1, True, out=count),
        partial(t.ne, dx, count, out=wrong),
        partial(t.add, dx, x, out=dx),
        partial(t.prod, dx, 1, True, out=product),
        partial(t.mul, product, dy, out=product),
        partial(t.div, product, dx, out=dx),
        partial(dx.masked_fill_, wrong, 0),
    ]


def _prod_scratch(node: Node) -> int:
    dy, x = spec_of(operand(node, 0)), spec_of(operand(node, 1))
    return 2 * dy.nbytes + x.size


def _extremum_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t, x, dx = torch(), inputs[1], outputs[0]
    axes = _reduced_axes(node, 1)
    kept = reduced_shape(x.shape, axes, 1)
    share = scratch_tensor(scratch, x.dtype, kept)
    return [
        partial(t.eq, x, inputs[2].view(kept), out=dx),
        partial(t.sum, dx, axes, True, out=share),
        partial(share.clamp_min_, 1),
        partial(t.div, inputs[0].view(kept), share, out=share),
        partial(t.mul, dx, share, out=dx),
    ]


def _axis_and_keepdims(node: Node, inputs: Operands) -> tuple[int, bool]:
    return pick(node.attrs, "axis"), bool(node.attrs["keepdims"])


def _norm(node: Node, inputs: Operands) -> tuple[object, ...]:
    return node.attrs["p"], *axes_and_keepdims(node, inputs)


def _top_k(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Sort all elements and copy the first k: ATen's `topk` breaks ties arbitrarily."""
    x, axis, k = inputs[0], pick(node.attrs, "axis"), pick(node.attrs, "k")
    indices = scratch_tensor(scratch, torch().int64, x.shape)
    values = scratch_tensor(scratch, x.dtype, x.shape, indices.nbytes)
    order = partial(torch().sort, x, dim=axis, descending=bool(node.attrs["largest"]), stable=True)
    return [
        partial(order, out=(values, indices)),
        *(
            partial(to.copy_, ordered.narrow(axis, 0, k))
            for to, ordered in zip(outputs, (values, indices), strict=True)
        ),
    ]


def _top_scratch(node: Node) -> int:
    x = spec_of(operand(node, 0))
    return 8 * x.size + x.nbytes


def _cumsum(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute running sums; reversed sums with NumPy, because NumPy arrays may have negative strides."""
    axis = pick(node.attrs, "axis")
    if not node.attrs["reverse"]:
        return partial(torch().cumsum, inputs[0], axis, out=outputs[0])
    x, y = (np.flip(tensor.numpy(), axis) for tensor in (inputs[0], outputs[0]))
    return partial(np.add.accumulate, x, axis, out=y)


def _supports_cumsum(node: Node) -> bool:
    return has_f32_or_f64(node) if node.attrs["reverse"] else has_float_input(node)


KERNELS: Mapping[str, TorchKernel] = {
    **REDUCTION_KERNELS,
    "max": TorchKernel(single_call_kernel("amax", axes_and_keepdims)),
    "min": TorchKernel(single_call_kernel("amin", axes_and_keepdims)),
    "extremum_gradient": TorchKernel(
        _extremum_gradient, scratch=lambda node: spec_of(operand(node, 0)).nbytes, supports=has_f32_or_f64
    ),
    "prod": TorchKernel(_prod, supports=_supports_prod),
    "prod_gradient": TorchKernel(_prod_gradient, scratch=_prod_scratch, supports=_supports_prod),
    "norm": TorchKernel(
        single_call_kernel("linalg.vector_norm", lambda node, xs: (node.attrs["p"], *axes_and_keepdims(node, xs))),
        supports=has_f32_or_f64,
    ),
    "argmax": TorchKernel(single_call_kernel("argmax", _axis_and_keepdims)),
    "argmin": TorchKernel(single_call_kernel("argmin", _axis_and_keepdims)),
    "top_k": TorchKernel(_top_k, _top_scratch, allocates=True),
    "cumsum": TorchKernel(_cumsum, supports=_supports_cumsum),
}
