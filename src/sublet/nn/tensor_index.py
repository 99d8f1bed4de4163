"""Indices of tensors: the block of elements behind `x[1:3, 0]`, and copies of a tensor with another block."""

from __future__ import annotations

from operator import index as integer
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.nn.source_location import at_line

if TYPE_CHECKING:
    from sublet.nn.tensor import Tensor


MAX_ITEM_CHARACTERS = 80
"""The number of characters of an item of an index shown in an error."""


class IndexedBlock:
    """The elements of a tensor at an index of integers, slices, `...` and None.

    ranges  the positions along each axis
    shape   the extents of the indexed tensor: without the axes of integers, with an axis of extent 1 for each None
    """

    def __init__(self, tensor: Tensor, index: Any) -> None:
        """Raises SpecError, with the user's line, for an index outside the tensor and for other items."""
        self.ranges: list[range] = []
        shape: list[int] = []
        for item in _index_per_axis(tensor, index if isinstance(index, tuple) else (index,)):
            if item is None:
                shape.append(1)
                continue
            positions, kept = _axis_positions(tensor, len(self.ranges), item)
            shape += [len(positions)] if kept else []
            self.ranges.append(positions)
        self.shape = tuple(shape)

    def slice_of(self, x: Tensor) -> Tensor:
        """Return the elements of `x`, with every axis kept."""
        return _slice(x, self.ranges)

    def replaced_in(self, x: Tensor, block: Tensor) -> Tensor:
        """Return `x` with the elements of `block`, a tensor with the axes of `x`, in place of the indexed elements."""
        return _replace(x, block, self.ranges, 0) if all(self.ranges) else x


def _slice(x: Tensor, ranges: list[range]) -> Tensor:
    """Return the elements at positions along each axis."""
    starts, ends, steps = ([getattr(each, bound) for each in ranges] for bound in ("start", "stop", "step"))
    return x._apply("nn.slice", x, starts=starts, ends=ends, steps=steps)


def _replace(x: Tensor, block: Tensor, ranges: list[range], axis: int) -> Tensor:
    """Return `x` with `block` at the positions `ranges` of the axes from `axis` on; of earlier axes all are replaced.

    The result is a concatenation of the rows before, the replaced rows and the rows after. With steps above 1 the
    replaced rows are padded to all rows, and chosen by a mask.
    """
    while axis < x.ndim and ranges[axis] == range(x.shape[axis]):
        axis += 1
    if axis == x.ndim:
        return block
    positions, extent = ranges[axis], x.shape[axis]
    rest = [range(n) for n in x.shape]
    is_last = ranges[axis + 1 :] == rest[axis + 1 :]
    inner = (
        block if is_last else _replace(_slice(x, [*rest[:axis], positions, *rest[axis + 1 :]]), block, ranges, axis + 1)
    )
    first, end = positions[0], positions[-1] + 1
    if end - first == len(positions):
        before, after = range(first), range(end, extent)
        pieces = [_slice(x, [*rest[:axis], part, *rest[axis + 1 :]]) if part else None for part in (before, after)]
        return x._apply("nn.concat", *(one for one in (pieces[0], inner, pieces[1]) if one is not None), axis=axis)
    pads, between = [0] * (2 * x.ndim), [0] * x.ndim
    pads[axis], pads[x.ndim + axis], between[axis] = first, extent - end, positions.step - 1
    mask = np.isin(np.arange(extent), positions).reshape(-1, *(1,) * (x.ndim - axis - 1))
    return x._apply("nn.where", mask, x._apply("nn.pad", inner, pads=pads, between=between), x)


class UpdatableSlices:
    """The slices of a tensor, for updated copies: `x.at[1:3].set(0)`, `x.at[..., 0].add(y)`."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> UpdatableSlice:
        return UpdatableSlice(self._tensor, index)


class UpdatableSlice:
    """A slice of a tensor, for updated copies of the tensor. The tensor keeps its elements."""

    def __init__(self, tensor: Tensor, index: Any) -> None:
        self._tensor, self._index = tensor, index

    def set(self, value: Any) -> Tensor:
        """Return the tensor with `value` at the index; see `nn.update`."""
        return updated(self._tensor, self._index, value)

    def add(self, value: Any) -> Tensor:
        """Return the tensor with `value` added at the index; a row selected twice receives both terms.

        Raises SpecError as `nn.update`; rows may be selected by a tensor of any shape.
        """
        x, rows = self._tensor, self._tensor._row_indices(self._index)
        if rows is None:
            return updated(x, self._index, x[self._index] + value)
        terms = _broadcast_value(x, value, (*rows.shape, *x.shape[1:]))
        return x + x._apply("nn.index_select_gradient", terms, rows, axis=0, extent=x.shape[0])


def updated(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return `x` with `value`, broadcast to the shape of `x[index]`, at the index. See `nn.update`."""
    rows = x._row_indices(index)
    if rows is None:
        block = IndexedBlock(x, index)
        given = _broadcast_value(x, value, block.shape)
        extents = [len(positions) for positions in block.ranges]
        return block.replaced_in(x, given if [*given.shape] == extents else given.reshape(*extents))
    if rows.ndim:
        raise SpecError(
            at_line(f"{rows._describe()} selects several rows: pass one index computed at run time, or use .add(...)")
        )
    mask = x._apply("nn.one_hot", rows, depth=x.shape[0], dtype="bool").reshape(-1, *(1,) * (x.ndim - 1))
    return x._apply("nn.where", mask, _broadcast_value(x, value, x.shape[1:]), x)


def _broadcast_value(x: Tensor, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor, an array or a number as a tensor of `shape`; a number takes the type of `x`."""
    given = x._operand(value)
    return given if given.shape == shape else x._apply("nn.broadcast_to", given, shape=shape)


def _index_per_axis(tensor: Tensor, items: tuple[Any, ...]) -> list[Any]:
    """Return an index with one item an axis: `...` and missing items at the end are replaced by slices."""
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    missing = tensor.ndim - sum(item is not None and item is not Ellipsis for item in items)
    if missing < 0 or len(places) > 1:
        expected = f"takes up to {tensor.ndim} integers or slices, not [{', '.join(map(_describe_item, items))}]"
        raise SpecError(at_line(f"{tensor._describe()} {expected}"))
    place = places[0] if places else len(items)
    return [*items[:place], *[slice(None)] * missing, *items[place + 1 :]]


def _describe_item(item: Any) -> str:
    """Return a description of an item of an index: on one line, without the elements of an array."""
    if isinstance(item, np.ndarray):
        return f"an array {item.dtype}{list(item.shape)}"
    return str(item._describe()) if hasattr(item, "_describe") else repr(item)[:MAX_ITEM_CHARACTERS]


def _axis_positions(tensor: Tensor, axis: int, item: Any) -> tuple[range, bool]:
    """Return the positions of one item of an index, and True if the axis is kept."""
    extent = tensor.shape[axis]
    if isinstance(item, slice):
        start, end, step = _slice_bounds(tensor, item, extent)
        if step < 1:
            hint = f"the step {step} along axis {axis} is not positive: use nn.flip to reverse"
            raise SpecError(at_line(f"{tensor._describe()}: {hint}"))
        return range(start, max(start, end), step), True
    try:
        position = integer(item)
    except TypeError:
        position = None
    if position is None or isinstance(item, bool):
        what = f"takes integers and slices, not {_describe_item(item)}: use nn.index_select or nn.gather"
        raise SpecError(at_line(f"{tensor._describe()} {what}"))
    if not -extent <= position < extent:
        raise SpecError(at_line(f"{tensor._describe()}: there is no index {position} along axis {axis}"))
    return range(position % extent, position % extent + 1), False


def _slice_bounds(tensor: Tensor, item: slice, extent: int) -> tuple[int, int, int]:
    """Return start, end and step of a slice. Raises SpecError for a bound known only at run time."""
    try:
        return item.indices(extent)
    except (TypeError, ValueError) as error:
        hint = f"{item}: {error}; for a start known only at run time use nn.gather"
        raise SpecError(at_line(f"{tensor._describe()}: {hint}")) from None
