"""Commands that move elements and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGER, REQUIRED_INTEGERS, Command, pick, same_bytes, spec_of
from sublet.ops.nn.rules import (
    ANY,
    elementwise_gradient,
    normalize_axes,
    normalize_axis,
    number_as,
    only_gradient,
    operand,
    require_same_type,
    require_type,
    result,
    term_by_op,
)
from sublet.ops.op import (
    Attrs,
    Emit,
    Grads,
    Share,
    Specs,
    block_offset,
    block_share,
    concat_shares,
    keeps_element_order,
)
from sublet.ops.slice_maps import SliceMaps, axes_beside, resize, same_axes, shape_of, slice_map

MAX_OPERANDS = 1 << 20
"""Maximum inputs or outputs of a command."""


def slice_attrs(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int] = (),
    axes: Sequence[int] = (),
) -> dict[str, tuple[int, ...]]:
    """Return the attributes of nn.slice for `x[starts:ends:steps]`; negative indices count from the end, as in Python.

    `axes` defaults to the first axes, `steps` to 1. Raises SpecError for a step below 1: nn.flip reverses an axis.
    """
    axes = [normalize_axis(axis, len(shape)) for axis in axes] if axes else range(len(starts))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(steps) == len(axes) <= len(shape):
        raise SpecError(f"{len(starts)} starts, {len(ends)} ends and {len(steps)} steps for {len(shape)} axes")
    ranges = [(0, extent, 1) for extent in shape]
    for start, end, step, axis in zip(starts, ends, steps, axes, strict=True):
        if step < 1:
            raise SpecError(f"step {step} along axis {axis} is below 1; nn.flip reverses an axis")
        begin, stop, _ = slice(start, end, step).indices(shape[axis])
        ranges[axis] = (begin, max(begin, stop), step)
    columns = zip(*ranges, strict=True) if ranges else ((), (), ())
    return dict(zip(("starts", "ends", "steps"), columns, strict=True))


def slice_axis(emit: Emit, x: Value, axis: int, begin: int, end: int) -> Value:
    """Return `x[begin:end]` along one axis."""
    return emit("nn.slice", x, **slice_attrs(spec_of(x).shape, (begin,), (end,), axes=(axis,)))


def _per_axis(attrs: Attrs, key: str, rank: int, smallest: int = 0) -> tuple[int, ...]:
    """Return an attribute with a number for each axis, none below `smallest`."""
    numbers = pick(attrs, key)
    if len(numbers) != rank or any(n < smallest for n in numbers):
        raise SpecError(f"{key} = {list(numbers)} must be {rank} integers, one for each axis, none below {smallest}")
    return tuple(numbers)


def _permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = tuple(pick(attrs, "axes"))
    if sorted(normalize_axis(axis, rank) for axis in axes) != list(range(rank)):
        raise SpecError(f"axes = {list(axes)} must name each of {rank} axes once")
    return tuple(axis % rank for axis in axes)


def _transpose_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], ANY)
    return (TensorSpec(x.dtype, tuple(x.shape[axis] for axis in _permutation(attrs, len(x.shape)))),)


def _transpose_views(node: Node) -> tuple[Share, ...]:
    shape = spec_of(operand(node, 0)).shape
    return same_bytes(node) if keeps_element_order(shape, _permutation(node.attrs, len(shape))) else ()


def _transpose_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    axes = _permutation(node.attrs, len(spec_of(operand(node, 0)).shape))
    return [emit("nn.transpose", only_gradient(grads), axes=tuple(axes.index(axis) for axis in range(len(axes))))]


def _slice_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], ANY)
    rank = len(x.shape)
    starts, ends = _per_axis(attrs, "starts", rank), _per_axis(attrs, "ends", rank)
    steps = _per_axis(attrs, "steps", rank, 1)
    for axis, (start, end, extent) in enumerate(zip(starts, ends, x.shape, strict=True)):
        if not start <= end <= extent:
            raise SpecError(f"{x} has no elements {start} to {end} along axis {axis}")
    return (TensorSpec(x.dtype, tuple(-(-(e - s) // step) for s, e, step in zip(starts, ends, steps, strict=True))),)


def _slice(x: Any, starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    return x[tuple(map(slice, starts, ends, steps))]


def _slice_views(node: Node) -> tuple[Share, ...]:
    shape = spec_of(result(node)).shape
    if any(step != 1 and extent > 1 for step, extent in zip(pick(node.attrs, "steps"), shape, strict=True)):
        return ()
    return block_share(0, spec_of(operand(node, 0)), shape, pick(node.attrs, "starts"))


def _slice_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return the gradient at the sliced elements, padded with zeros around and between the elements."""
    grad, shape = only_gradient(grads), spec_of(operand(node, 0)).shape
    starts, between = pick(node.attrs, "starts"), [step - 1 for step in pick(node.attrs, "steps")]
    after = [
        extent - start - n - max(0, n - 1) * gap
        for extent, start, n, gap in zip(shape, starts, spec_of(grad).shape, between, strict=True)
    ]
    return [emit("nn.pad", grad, pads=(*starts, *after), between=tuple(between))]


def _concat_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    given_specs = [require_type(spec, ANY, f"input {i}") for i, spec in enumerate(specs)]
    dtype, first = require_same_type(given_specs, ANY), given_specs[0]
    axis = normalize_axis(pick(attrs, "axis"), len(first.shape))
    for i, spec in enumerate(given_specs):
        shape = spec.shape
        if len(shape) != len(first.shape) or any(
            n != m for k, (n, m) in enumerate(zip(shape, first.shape, strict=True)) if k != axis
        ):
            raise SpecError(f"input {i} is {spec}, the first is {first}: they may only differ along axis {axis}")
    total = sum(spec.shape[axis] for spec in given_specs)
    return (TensorSpec(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _axis(node: Node) -> int:
    return int(pick(node.attrs, "axis")) % len(spec_of(operand(node, 0)).shape)


def _concat_parts(node: Node) -> tuple[Share, ...]:
    return concat_shares(spec_of(result(node)), [spec_of(value) for value in node.uses], _axis(node))


def _concat_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    gradients, begin, axis = [], 0, _axis(node)
    for value in node.uses:
        extent = spec_of(value).shape[axis]
        gradients.append(slice_axis(emit, only_gradient(grads), axis, begin, begin + extent))
        begin += extent
    return gradients


def _split_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, sizes = require_type(specs[0], ANY), pick(attrs, "sizes")
    axis = normalize_axis(pick(attrs, "axis"), len(x.shape))
    if not sizes or any(size < 0 for size in sizes):
        raise SpecError(f"sizes = {list(sizes)} must be a list of extents, none below 0")
    if sum(sizes) != x.shape[axis]:
        raise SpecError(f"sizes = {list(sizes)} add up to {sum(sizes)}, but {x} has {x.shape[axis]} along axis {axis}")
    return tuple(TensorSpec(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes)


def _split(x: Any, axis: int, sizes: tuple[int, ...]) -> Any:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def _split_views(node: Node) -> tuple[Share, ...]:
    x, axis = spec_of(operand(node, 0)), _axis(node)
    begin = [0] * len(x.shape)
    shares: list[Share] = []
    for i, size in enumerate(pick(node.attrs, "sizes")):
        if i < len(node.outputs) and node.outputs[i] is not None:
            shares += block_share(i, x, (*x.shape[:axis], size, *x.shape[axis + 1 :]), begin)
        begin[axis] += size
    return tuple(shares)


def _split_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    x, axis = operand(node, 0), _axis(node)
    shapes = [(*spec_of(x).shape[:axis], size, *spec_of(x).shape[axis + 1 :]) for size in pick(node.attrs, "sizes")]
    pieces = [grad or emit.constant(0, x, shape) for grad, shape in zip(grads, shapes, strict=True)]
    return [emit("nn.concat", *pieces, axis=axis)]


def _pad_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], ANY)
    rank, pads = len(x.shape), pick(attrs, "pads")
    if len(pads) != 2 * rank or any(n < 0 for n in pads):
        raise SpecError(
            f"pads = {list(pads)} must be {2 * rank} integers, how much before each axis of {x} and then how much "
            "after each, none below 0; use nn.slice to remove elements"
        )
    number_as(pick(attrs, "value"), x.dtype)
    between = _per_axis(attrs, "between", rank) if pick(attrs, "between") else (0,) * rank
    axes = zip(pads[:rank], x.shape, between, pads[rank:], strict=True)
    return (TensorSpec(x.dtype, tuple(before + n + max(0, n - 1) * gap + after for before, n, gap, after in axes)),)


def padded_region(shape: Sequence[int], pads: Sequence[int], between: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of a tensor's elements in the result of nn.pad, for a tensor of `shape`."""
    gaps = between or (0,) * len(shape)
    return tuple(
        slice(start, start + n + max(0, n - 1) * gap, gap + 1) for start, n, gap in zip(pads, shape, gaps, strict=False)
    )


def _pad(x: Any, pads: tuple[int, ...], value: float, between: tuple[int, ...]) -> Any:
    spread = [gap * max(0, n - 1) for gap, n in zip(between or (0,) * x.ndim, x.shape, strict=True)]
    extents = np.add(x.shape, spread) + np.reshape(pads, (2, x.ndim)).sum(0)
    y = np.full(tuple(extents.astype(int)), value, x.dtype)
    y[padded_region(x.shape, pads, between)] = x
    return y


def _pad_views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if spec_of(operand(node, 0)).size == spec_of(result(node)).size else ()


def _pad_parts(node: Node) -> tuple[Share, ...]:
    """Return the share of the input in the result, for padding along the leading axis: the kernel fills the rest."""
    x, y = spec_of(operand(node, 0)), spec_of(result(node))
    gaps = zip(pick(node.attrs, "between"), x.shape, strict=False)
    if any(gap and n > 1 for gap, n in gaps) or x.size == y.size:
        return ()
    return part_share(y, x, pick(node.attrs, "pads")[: len(x.shape)])


def part_share(y: TensorSpec, x: TensorSpec, begin: Sequence[int]) -> tuple[Share, ...]:
    """Return the share of input 0 with spec `x`, at `begin` in output 0 with spec `y`; empty if not contiguous."""
    offset = block_offset(y, x.shape, begin)
    return () if offset is None else (Share(0, 0, offset),)


def _pad_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    places = padded_region(spec_of(operand(node, 0)).shape, pick(node.attrs, "pads"), pick(node.attrs, "between"))
    return [
        emit(
            "nn.slice",
            only_gradient(grads),
            starts=tuple(place.start for place in places),
            ends=tuple(place.stop for place in places),
            steps=tuple(place.step for place in places),
        )
    ]


def _flip_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], ANY)
    normalize_axes(pick(attrs, "axes"), len(x.shape))
    return (x,)


def _flip_views(node: Node) -> tuple[Share, ...]:
    shape = spec_of(operand(node, 0)).shape
    return (
        same_bytes(node)
        if all(shape[axis] == 1 for axis in normalize_axes(pick(node.attrs, "axes"), len(shape)))
        else ()
    )


def _tile_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], ANY)
    repeats = _per_axis(attrs, "repeats", len(x.shape), 1)
    return (TensorSpec(x.dtype, tuple(n * times for n, times in zip(x.shape, repeats, strict=True))),)


def _tile_views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if set(pick(node.attrs, "repeats")) <= {1} else ()


def _tile_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    shape, repeats = spec_of(operand(node, 0)).shape, pick(node.attrs, "repeats")
    apart = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    if set(repeats) <= {1}:
        return [only_gradient(grads)]
    return [emit("nn.sum", emit("nn.reshape", only_gradient(grads), shape=apart), axes=tuple(range(0, len(apart), 2)))]


def _transpose_slices(node: Node) -> SliceMaps:
    axes = _permutation(node.attrs, len(shape_of(node.inputs[0])))
    return tuple(found for to, axis in enumerate(axes) for found in slice_map(node, [axis], [to]))


def _slice_slices(node: Node) -> SliceMaps:
    """Return the maps along the axes not sliced."""
    ranges = zip(*(pick(node.attrs, key) for key in ("starts", "ends", "steps")), strict=True)
    kept = [axis for axis, each in enumerate(ranges) if each == (0, shape_of(node.inputs[0])[axis], 1)]
    return tuple(found for axis in kept for found in same_axes(node, (axis,), attrs=resize("ends", axis)))


COMMANDS = (
    Command(
        "transpose",
        "The axes in another order: axis k of the result is axis axes[k] of x.",
        _transpose_infer,
        lambda x, axes: x.transpose(axes),
        _transpose_back,
        {"axes": REQUIRED_INTEGERS},
        views=_transpose_views,
        slices=_transpose_slices,
    ),
    Command(
        "slice",
        "x[starts:ends:steps], with a number for each axis, counted from the front.",
        _slice_infer,
        _slice,
        _slice_back,
        {"starts": REQUIRED_INTEGERS, "ends": REQUIRED_INTEGERS, "steps": REQUIRED_INTEGERS},
        views=_slice_views,
        slices=_slice_slices,
    ),
    Command(
        "concat",
        "The concatenation of the inputs along an axis.",
        _concat_infer,
        lambda *xs, axis: np.concatenate(xs, axis),
        _concat_back,
        {"axis": REQUIRED_INTEGER},
        inputs=(1, MAX_OPERANDS),
        parts=_concat_parts,
        slices=axes_beside(),
    ),
    Command(
        "split",
        "Parts along an axis, of the extents `sizes`.",
        _split_infer,
        _split,
        _split_back,
        {"axis": REQUIRED_INTEGER, "sizes": REQUIRED_INTEGERS},
        outputs=(1, MAX_OPERANDS),
        views=_split_views,
        slices=axes_beside(),
    ),
    Command(
        "pad",
        "`pads`, before each axis and then after each, filled with `value`. `between` is how many go between two "
        "elements of each axis, none for (): the gradient of a slice with steps.",
        _pad_infer,
        _pad,
        _pad_back,
        {"pads": REQUIRED_INTEGERS, "value": 0.0, "between": ()},
        views=_pad_views,
        parts=_pad_parts,
    ),
    Command(
        "flip",
        "The elements backwards along axes; along all for ().",
        _flip_infer,
        lambda x, axes: np.flip(x, axes or None),
        elementwise_gradient(term_by_op("nn.flip")),
        {"axes": ()},
        views=_flip_views,
    ),
    Command(
        "tile",
        "The tensor repeated along each axis.",
        _tile_infer,
        lambda x, repeats: np.tile(x, repeats),
        _tile_back,
        {"repeats": REQUIRED_INTEGERS},
        views=_tile_views,
    ),
)
