"""Reductions by selection or product, and running sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand
from sublet.ops.nn.reduction import reduced
from sublet.ops.nn.shapes import axes_in
from sublet.runtime.backends.torch.elementwise import floating
from sublet.runtime.backends.torch.kernel import Calls, Fast, Operands, Tensor, bytes_as, calling, single, torch
from sublet.runtime.backends.torch.reduction import axes_and_kept


def _gone(node: Node, position: int) -> tuple[int, ...]:
    """Return the reduced axes of the input at `position`."""
    rank = len(spec_of(operand(node, position)).shape)
    return axes_in(pick(node.attrs, "axes"), rank) if rank else ()


def merged(shape: Sequence[int], gone: Sequence[int]) -> tuple[int, int, int] | None:
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
    shape = merged(x.shape, _gone(node, 0))
    assert shape is not None
    before, _, after = shape
    return partial(torch().prod, x.view(shape), 1, out=outputs[0].view(before, after))


def _prod_takes(node: Node) -> bool:
    position = 0 if node.op == "nn.prod" else 1
    return single(node) and merged(spec_of(operand(node, position)).shape, _gone(node, position)) is not None


def _prod_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute with zeros of x as 1; in products with zeros, then set all gradients to 0 except at an only zero."""
    t, x = torch(), inputs[1]
    shape = merged(x.shape, _gone(node, 1))
    assert shape is not None
    kept = (shape[0], 1, shape[2])
    x, dy, dx = x.view(shape), inputs[0].view(kept), outputs[0].view(shape)
    count = bytes_as(scratch, x.dtype, kept)
    product = bytes_as(scratch, x.dtype, kept, dy.nbytes)
    wrong = bytes_as(scratch, t.bool, shape, 2 * dy.nbytes)
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
    axes = _gone(node, 1)
    kept = reduced(x.shape, axes, 1)
    share = bytes_as(scratch, x.dtype, kept)
    return [
        partial(t.eq, x, inputs[2].view(kept), out=dx),
        partial(t.sum, dx, axes, True, out=share),
        partial(share.clamp_min_, 1),
        partial(t.div, inputs[0].view(kept), share, out=share),
        partial(t.mul, dx, share, out=dx),
    ]


def _axis_and_kept(node: Node, inputs: Operands) -> tuple[int, bool]:
    return pick(node.attrs, "axis"), bool(node.attrs["keepdims"])


def _norm(node: Node, inputs: Operands) -> tuple[Any, ...]:
    return node.attrs["p"], *axes_and_kept(node, inputs)


def _top(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Sort all elements and copy the first k: ATen's `topk` breaks ties arbitrarily."""
    x, axis, k = inputs[0], pick(node.attrs, "axis"), pick(node.attrs, "k")
    indices = bytes_as(scratch, torch().int64, x.shape)
    values = bytes_as(scratch, x.dtype, x.shape, indices.nbytes)
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


def _cumsum_takes(node: Node) -> bool:
    return single(node) if node.attrs["reverse"] else floating(node)


KERNELS: Mapping[str, Fast] = {
    "max": Fast(calling("amax", axes_and_kept)),
    "min": Fast(calling("amin", axes_and_kept)),
    "extremum_gradient": Fast(_extremum_gradient, scratch=lambda node: spec_of(operand(node, 0)).nbytes, takes=single),
    "prod": Fast(_prod, takes=_prod_takes),
    "prod_gradient": Fast(_prod_gradient, scratch=_prod_scratch, takes=_prod_takes),
    "norm": Fast(
        calling("linalg.vector_norm", lambda node, xs: (node.attrs["p"], *axes_and_kept(node, xs))), takes=single
    ),
    "argmax": Fast(calling("argmax", _axis_and_kept)),
    "argmin": Fast(calling("argmin", _axis_and_kept)),
    "top_k": Fast(_top, _top_scratch, allocates=True),
    "cumsum": Fast(_cumsum, takes=_cumsum_takes),
}
