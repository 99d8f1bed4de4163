"""Slice maps: the slices of an op's operands needed for a slice of the results, as facts of the op.

A map describes one axis along which a node can be computed slice by slice, as a sharding rule does (GSPMD: Xu et al.
2021). Each operand has the axis, or each slice needs the whole operand; each result has the axis, or is the sum of the
results of the slices. Sliding windows need overlapping slices: the receptive field (Dumoulin and Visin 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value

Axes = range
"""Adjacent axes, flattened to one: range(1, 2) is axis 1, and range(0, 2) the rows of all matrices of a batch."""

SliceAttrs = Callable[[Mapping[str, Attr], int, int], Mapping[str, Attr]]
"""(attributes, begin, end) -> the attributes of the node computing the slice from `begin` to `end`."""


@dataclass(frozen=True)
class Window:
    """The elements needed along an axis for an element of the result: `span` many, from i * stride - before on.

    Outside of 0 to `extent`, the extent of the operand, lies padding.
    """

    stride: int
    before: int
    span: int
    extent: int

    def reach(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range under the windows from `begin` to `end`, padding included."""
        return begin * self.stride - self.before, (end - 1) * self.stride - self.before + self.span

    def padding(self, begin: int, end: int) -> tuple[int, int]:
        """Return the elements of padding before and after the operand under the windows from `begin` to `end`."""
        first, last = self.reach(begin, end)
        return max(0, -first), max(0, last - self.extent)


def keep_attributes(attrs: Mapping[str, Attr], begin: int, end: int) -> Mapping[str, Attr]:
    """Return the attributes unchanged, for a node computing every slice alike."""
    return attrs


def resize(key: str, axis: int = 0) -> SliceAttrs:
    """Return the change of an attribute that holds the extents of the result, as `shape` does."""

    def resized(attrs: Mapping[str, Attr], begin: int, end: int) -> Mapping[str, Attr]:
        extents: Any = attrs[key]
        return {**attrs, key: (*extents[:axis], end - begin, *extents[axis + 1 :])}

    return resized


@dataclass(frozen=True)
class SliceMap:
    """A way to compute a node slice by slice.

    extent   the number of elements along the sliced axes of the results, or of the operands if all results are sums
    inputs   by input, the sliced axes; None for an input of which each slice needs the whole
    outputs  by output, the sliced axes; None for the sum of the outputs of all slices
    attrs    returns the attributes of the node computing a slice
    window   the elements of the operands needed for an element of the result; None for the same element
    addend   the position of an input added to a sum once, hence read by the first slice only
    aligned  the position of an input without windows: each element of the result needs the same element
    exact    False if a slice alone differs from the slice of the results, by statistics or random numbers
    """

    extent: int
    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]
    attrs: SliceAttrs = keep_attributes
    window: Window | None = None
    addend: int | None = None
    aligned: int | None = None
    exact: bool = True

    def operand_slice(self, begin: int, end: int, position: int = 0) -> tuple[int, int]:
        """Return the range needed along the sliced axes of the input at `position`, for a range of the results.

        The range is empty if the windows hold only padding.
        """
        if self.window is None or position == self.aligned:
            return begin, end
        first, last = self.window.reach(begin, end)
        return max(0, first), min(last, self.window.extent)


SliceMaps = tuple[SliceMap, ...]
Slices = Callable[[Node], SliceMaps]
"""(node) -> the maps. Consumers take the first map that suits them."""

Sliced = Sequence[int | Axes | None]
"""The sliced axes of some values, a single axis by number."""


def no_slices(node: Node) -> SliceMaps:
    """Return no maps: the fact of an op that needs all operands for any part of the results."""
    return ()


def shape_of(value: Value | None) -> tuple[int, ...]:
    """Return the extents of a tensor; () for an absent value."""
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else ()


def one_axis(axis: int) -> Axes:
    """Return a single axis as `Axes`."""
    return range(axis, axis + 1)


def are_leading(*sliced: Axes | None) -> bool:
    """True if all sliced axes are the first axes of their tensors, so that slices are contiguous."""
    return all(axes is None or axes.start == 0 for axes in sliced)


def slice_map(node: Node, inputs: Sliced, outputs: Sliced, **facts: Any) -> SliceMaps:
    """Return the map with the given axes and fields; none for axes of different extents, or without elements."""
    ranges = [tuple(one_axis(a) if isinstance(a, int) else a for a in axes) for axes in (inputs, outputs)]
    sliced = [*zip(node.outputs, ranges[1], strict=True)]
    sliced += zip(node.inputs, ranges[0], strict=True) if "window" not in facts else ()
    extents = {_extent_along(value, axes) for value, axes in sliced if value is not None and axes is not None}
    extent = extents.pop() if len(extents) == 1 else 0
    return (SliceMap(extent, ranges[0], ranges[1], **facts),) if extent else ()


def _extent_along(value: Value, axes: Axes) -> int:
    """Return the number of elements along adjacent axes; 0 if the tensor lacks an axis."""
    shape = shape_of(value)
    return prod(shape[axes.start : axes.stop]) if axes.stop <= len(shape) else 0


def same_axes(
    node: Node, axes: Iterable[int], whole: Collection[int] = (), sums: Collection[int] = (), **facts: Any
) -> SliceMaps:
    """Return a map for each of `axes`, the same axis of all operands and results.

    Operands at the positions `whole` are needed whole; results at the positions `sums` are sums over the slices.
    """
    maps: SliceMaps = ()
    for axis in axes:
        inputs = [None if value is None or i in whole else axis for i, value in enumerate(node.inputs)]
        maps += slice_map(node, inputs, [None if i in sums else axis for i in range(len(node.outputs))], **facts)
    return maps


def leading_axis(*whole: int, sums: Collection[int] = (), **facts: Any) -> Slices:
    """Return the fact: computed sample by sample, along the first axis. See `same_axes` for the arguments."""
    return lambda node: same_axes(node, (0,), whole, sums, **facts)


def axes_beside(*whole: int, default: int | None = None, after: bool = True) -> Slices:
    """Return the fact: computed along the attribute `axis`, so slice by slice along the other axes.

    Operands at the positions `whole` are needed whole. With `after` False, only the axes before `axis`: the axes after
    are computed together, or move in the results.
    """

    def slices(node: Node) -> SliceMaps:
        axis, rank = node.attrs.get("axis", default), len(shape_of(node.inputs[0]))
        if not isinstance(axis, int) or not -rank <= axis < rank:
            return ()
        return same_axes(node, [*range(axis % rank), *(range(axis % rank + 1, rank) if after else ())], whole)

    return slices


def aligned_axis(value: Value | None, result: Value | None, axis: int) -> int | None:
    """Return the axis of an operand along `axis` of a result; None if the operand lacks or repeats the axis."""
    own, shape = shape_of(value), shape_of(result)
    at = axis - len(shape) + len(own)
    return at if at >= 0 and (own[at] != 1 or shape[axis] == 1) else None


def elementwise_axes(node: Node, attrs_along: Callable[[int], SliceAttrs] = lambda axis: keep_attributes) -> SliceMaps:
    """Return the maps along each axis of the results; operands that lack or repeat the axis are needed whole."""
    result = next(value for value in node.outputs if value is not None)
    if any(value is not None and shape_of(value) != shape_of(result) for value in node.outputs):
        return ()
    maps: SliceMaps = ()
    for axis in range(len(shape_of(result))):
        inputs = [aligned_axis(value, result, axis) for value in node.inputs]
        maps += slice_map(node, inputs, [axis] * len(node.outputs), attrs=attrs_along(axis))
    return maps


def elementwise(node: Node) -> SliceMaps:
    """Return the maps of `elementwise_axes`, and a map along all axes but the last, flattened.

    The flattened axes need operands of the shape of the results, or of the last axis alone.
    """
    shape, shapes = shape_of(node.outputs[0]), [shape_of(value) for value in node.inputs]
    if len(shape) < 2 or any(len(own) > 1 and own != shape for own in shapes):
        return elementwise_axes(node)
    rows = range(len(shape) - 1)
    return elementwise_axes(node) + slice_map(node, [rows if own == shape else None for own in shapes], [rows])


def rows_of_first(node: Node) -> SliceMaps:
    """Return the maps along all axes but the last of the first operand, flattened and one by one; others are whole."""
    rank, others = len(shape_of(node.inputs[0])), [None] * (len(node.inputs) - 1)
    kinds = dict.fromkeys((range(rank - 1), *map(one_axis, range(rank - 1)))) if rank > 1 else ()
    return tuple(found for rows in kinds for found in slice_map(node, [rows, *others], [rows]))


def reduced_axes(node: Node, reduced: Collection[int], *, keepdims: bool) -> SliceMaps:
    """Return the maps of a reduction along the axes not reduced."""
    kept = [axis for axis in range(len(shape_of(node.inputs[0]))) if axis not in reduced]
    pairs = zip(kept, kept if keepdims else range(len(kept)), strict=True)
    return tuple(found for axis, to in pairs for found in slice_map(node, [axis], [to] * len(node.outputs)))
