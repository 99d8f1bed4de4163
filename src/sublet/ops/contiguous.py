"""Contiguous slices: the blocks of a row-major tensor with a contiguous range of bytes.

Let k be the last dimension with a smaller extent in the block than in the tensor. The block is contiguous if every
dimension before k has extent 1 in the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sublet.base.tensor import DType, TensorSpec
from sublet.ops.op import Share


def block_offset(whole: TensorSpec, shape: Sequence[int], begin: Sequence[int]) -> int | None:
    """Return the byte offset of the block of `shape` at `begin` in `whole`.

    None if the block is empty, not contiguous or not inside `whole`.
    """
    if len(shape) != len(whole.shape) or 0 in shape:
        return None
    if any(start < 0 or start + n > extent for start, n, extent in zip(begin, shape, whole.shape, strict=True)):
        return None
    smaller = [k for k, (n, extent) in enumerate(zip(shape, whole.shape, strict=True)) if n != extent]
    if smaller and prod(shape[: smaller[-1]]) != 1:
        return None
    strides = [prod(whole.shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(start * stride for start, stride in zip(begin, strides, strict=True))
    return byte_offset(whole.dtype, first, prod(shape))


def block_share(
    output: int, source: TensorSpec, shape: Sequence[int], begin: Sequence[int], operand: int = 0
) -> tuple[Share, ...]:
    """Return the share of output number `output`, the block of `shape` at `begin` in an input.

    `operand` is the number of the input and `source` the spec. Empty if the block is not contiguous.
    """
    offset = block_offset(source, shape, begin)
    return () if offset is None else (Share(output, operand, offset),)


def byte_offset(dtype: DType, first: int, size: int) -> int | None:
    """Return the byte offset of element `first`; None if the first byte or the length is not whole bytes."""
    if first * dtype.bits % 8 or size * dtype.bits % 8:
        return None
    return first * dtype.bits // 8


def concat_shares(result: TensorSpec, specs: Sequence[TensorSpec], axis: int) -> tuple[Share, ...]:
    """Return the shares of inputs lying one after another in `result`, the concatenation along `axis`.

    Empty if a dimension before the axis is larger than 1.
    """
    if prod(result.shape[:axis]) != 1:
        return ()
    shares: list[Share] = []
    begin = 0
    for i, spec in enumerate(specs):
        offset = byte_offset(spec.dtype, begin, spec.size)
        if spec.nbytes and spec.dtype is result.dtype and offset is not None:
            shares.append(Share(0, i, offset))
        begin += spec.size
    return tuple(shares)


def keeps_element_order(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """True if a transposition by `axes` keeps the order of elements: only dimensions of extent 1 move."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)
