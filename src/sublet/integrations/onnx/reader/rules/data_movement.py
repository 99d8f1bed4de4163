"""Shape rules of data movement: reshaping, concatenation, splitting, padding and slicing."""

from __future__ import annotations

from math import prod

from sublet.base.tensor import format_dims
from sublet.integrations.onnx.reader.rules.shape_rule import (
    NodeShapes,
    ShapeConflict,
    ShapeRule,
    axis_from_front,
    element_count_of,
    may_be_equal,
    require_broadcastable,
    require_distinct_axes,
    require_equal,
    require_that,
)


def require_reshape(node: NodeShapes) -> None:
    """Require an equal element count; 0 copies an extent, -1 takes the remaining elements."""
    data, target = node.shape(0), node.constant_inputs.get(1, node.integers_attribute("shape"))
    if data is None or target is None:
        return
    copies = node.integer_attribute("allowzero") == 0
    requested: list[int | None] = []
    for axis, extent in enumerate(target):
        require_that(extent >= -1, f"the shape {list(target)} has the extent {extent}")
        if extent == 0 and copies:
            require_that(
                axis < len(data),
                f"the shape {list(target)} copies axis {axis} of {format_dims(data)}, which has no such axis",
            )
        requested.append(data[axis] if extent == 0 and copies else extent)
    size, known = element_count_of(data), [extent for extent in requested if extent is not None and extent != -1]
    require_that(target.count(-1) < 2, f"the shape {list(target)} leaves two extents open")
    if size is None or None in requested:
        return
    if -1 not in target:
        require_that(prod(known) == size, _element_count_message(node, target, size, prod(known)))
    elif prod(known) == 0:
        raise ShapeConflict(f"the shape {list(target)} leaves an extent open next to one of 0")
    else:
        require_that(size % prod(known) == 0, _element_count_message(node, target, size, prod(known)))


def _element_count_message(node: NodeShapes, target: tuple[int, ...], size: int, requested: int) -> str:
    """Return the message for a wrong element count, with a corrected extent where one exists."""
    whole = f"{requested}" if -1 not in target else f"a multiple of {requested}"
    what = f"{format_dims(node.shape(0))} has {size} elements, the shape {list(target)} requires {whole}"
    for axis, extent in enumerate(target):
        rest = requested // extent if extent > 0 else 0
        if rest and -1 not in target and size % rest == 0:
            return f"{what}: axis {axis} is {extent}; expected {size // rest}"
    return what


def require_squeeze(node: NodeShapes) -> None:
    """Require extent 1 on every removed axis."""
    data, axes = node.shape(0), node.constant_inputs.get(1, node.integers_attribute("axes"))
    if data is None or not axes:
        return
    for axis in axes:
        extent = data[axis_from_front(axis, len(data))]
        require_that(extent in (1, None), f"axis {axis} of {format_dims(data)} is {extent}, not 1")


def require_unsqueeze(node: NodeShapes) -> None:
    """Require distinct new axes of the result."""
    data, axes = node.shape(0), node.constant_inputs.get(1, node.integers_attribute("axes"))
    if data is None or axes is None:
        return
    places = {axis_from_front(axis, len(data) + len(axes)) for axis in axes}
    require_that(len(places) == len(axes), f"the axes {list(axes)} name one twice")


def require_flatten(node: NodeShapes) -> None:
    """Require an axis from -rank to rank, inclusive."""
    data = node.shape(0)
    if data is not None:
        axis = node.integer_attribute("axis", 1)
        require_that(-len(data) <= axis <= len(data), f"there is no axis {axis} in {format_dims(data)}")


def require_transpose(node: NodeShapes) -> None:
    """Require a permutation of all axes."""
    data, order = node.shape(0), node.integers_attribute("perm")
    if data is not None and order is not None:
        require_that(
            sorted(order) == list(range(len(data))),
            f"perm {list(order)} is not an order of the axes of {format_dims(data)}",
        )


def require_expand(node: NodeShapes) -> None:
    """Require a target shape broadcasting with the operand."""
    target = node.constant_inputs.get(1)
    if target is not None:
        require_that(min(target, default=0) >= 0, f"the shape {list(target)} has a negative extent")
        require_broadcastable([node.shape(0), target], "the operand does not broadcast to the shape")


def require_tile(node: NodeShapes) -> None:
    """Require one repeat count for each axis."""
    data, repeats = node.shape(0), node.shape(1)
    if data is not None and repeats is not None:
        require_that(len(repeats) == 1, f"the repeats are {format_dims(repeats)}, not a vector")
        require_equal(repeats[0], len(data), f"the repeats do not have a number for each axis of {format_dims(data)}")


def require_concat(node: NodeShapes) -> None:
    """Require operands equal except on the concatenated axis."""
    shapes = [shape for shape in node.inputs if shape is not None]
    if not shapes:
        return
    first = shapes[0]
    axis = node.axis_attribute(1 if node.version < 4 else 0, len(first))
    for other in shapes[1:]:
        require_that(len(other) == len(first), f"{format_dims(first)} and {format_dims(other)} differ in rank")
        for place, (a, b) in enumerate(zip(first, other, strict=True)):
            if place != axis:
                require_equal(
                    a,
                    b,
                    f"{format_dims(first)} and {format_dims(other)} are concatenated on axis {axis} "
                    f"and differ on axis {place}",
                )


def require_split(node: NodeShapes) -> None:
    """Require parts adding up to the axis."""
    data, parts = node.shape(0), node.constant_inputs.get(1, node.integers_attribute("split"))
    if data is None:
        return
    extent, count = data[node.axis_attribute(0, len(data))], len(node.outputs)
    if parts is not None:
        require_that(len(parts) == count, f"there are {count} outputs and {len(parts)} parts, {list(parts)}")
        require_that(min(parts, default=0) >= 0, f"a part of {list(parts)} is negative")
        require_equal(sum(parts), extent, f"the parts {list(parts)} do not add up to the axis of {format_dims(data)}")
    elif "num_outputs" in node.attributes:
        num_outputs = node.integer_attribute("num_outputs")
        require_that(num_outputs == count, f"there are {count} outputs, and num_outputs is {num_outputs}")
        fits = extent is None or -(-extent // count) * (count - 1) < extent
        require_that(fits, f"{extent} of {format_dims(data)} cannot be split in {count} parts")
    elif node.version < 18 and extent is not None and not node.is_present(1):
        require_that(extent % count == 0, f"{extent} of {format_dims(data)} cannot be split in {count} equal parts")


def require_pad(node: NodeShapes) -> None:
    """Require two pads for each padded axis, and no axis of negative extent."""
    data, pads, axes = (
        node.shape(0),
        node.constant_inputs.get(1, node.integers_attribute("pads")),
        node.constant_inputs.get(3),
    )
    if data is None or pads is None or (node.is_present(3) and axes is None):
        return
    places = [axis_from_front(axis, len(data)) for axis in axes] if axes is not None else list(range(len(data)))
    require_that(len(pads) == 2 * len(places), f"{len(pads)} pads for {len(places)} axes of {format_dims(data)}")
    for place, before, after in zip(places, pads, pads[len(places) :], strict=False):
        extent = data[place]
        left = None if extent is None else extent + before + after
        require_that(left is None or left >= 0, f"axis {place} of {format_dims(data)} would have a negative extent")
        if node.text_attribute("mode") == "reflect" and extent is not None:
            require_that(
                max(before, after) < max(extent, 1), f"axis {place} of {format_dims(data)} is too short to reflect"
            )


def require_slice(node: NodeShapes) -> None:
    """Require distinct axes and no step of 0."""
    data, axes, steps = (
        node.shape(0),
        node.constant_inputs.get(3, node.integers_attribute("axes")),
        node.constant_inputs.get(4, ()),
    )
    require_that(0 not in steps, "a step is 0")
    if data is not None and axes is not None:
        require_distinct_axes(axes, len(data))


def require_depth_to_space(node: NodeShapes) -> None:
    """Require channels divisible into whole blocks."""
    data, block = node.shape(0), node.integer_attribute("blocksize", 1)
    if data is not None:
        require_that(len(data) == 4, f"{format_dims(data)} does not have four dimensions")
        require_that(
            data[1] is None or data[1] % (block * block) == 0,
            f"{data[1]} channels cannot be split into blocks of {block}",
        )


def require_space_to_depth(node: NodeShapes) -> None:
    """Require a height and a width divisible into whole blocks."""
    data, block = node.shape(0), node.integer_attribute("blocksize", 1)
    if data is not None:
        require_that(len(data) == 4, f"{format_dims(data)} does not have four dimensions")
        fits = all(extent is None or extent % block == 0 for extent in data[2:])
        require_that(fits, f"{format_dims(data)} cannot be split into blocks of {block}")


# Shape rules of operators with indices or axes: valid index ranges, and shapes of gathered and scattered slices.


def require_gather(node: NodeShapes) -> None:
    """Require constant indices within the axis."""
    data = node.shape(0)
    if data is not None:
        _require_in_range(node, data[node.axis_attribute(0, len(data))], f"an axis of {format_dims(data)}")


def require_gather_elements(node: NodeShapes) -> None:
    """Require at most as many indices as elements along every axis except the gathered axis."""
    data, indices = node.shape(0), node.shape(1)
    if data is None or indices is None:
        return
    axis = node.axis_attribute(0, len(data))
    require_that(
        len(data) == len(indices), f"{format_dims(data)} and the indices {format_dims(indices)} differ in rank"
    )
    for place, (a, b) in enumerate(zip(data, indices, strict=True)):
        small = place == axis or a is None or b is None or b <= a
        require_that(small, f"the indices {format_dims(indices)} are more than {format_dims(data)} on axis {place}")
    _require_in_range(node, data[axis], f"an axis of {format_dims(data)}")


def require_scatter_elements(node: NodeShapes) -> None:
    """Require one update for each index."""
    indices, updates = node.shape(1), node.shape(2)
    require_gather_elements(node)
    if indices is not None and updates is not None:
        what = f"the updates {format_dims(updates)} are not one for each of the indices {format_dims(indices)}"
        require_that(may_be_equal(indices, updates), what)


def require_gather_nd(node: NodeShapes) -> None:
    """Require a last axis of the indices no longer than the rank of the operand behind the batch axes."""
    data, indices, batch = node.shape(0), node.shape(1), node.integer_attribute("batch_dims")
    if data is None or indices is None:
        return
    require_that(bool(data) and bool(indices), "neither the operand nor the indices may be a scalar")
    require_that(batch < min(len(data), len(indices)), f"there are no {batch} batch axes")
    for a, b in zip(data[:batch], indices[:batch], strict=True):
        require_equal(a, b, f"{format_dims(data)} and the indices {format_dims(indices)} differ in a batch axis")
    fits = indices[-1] is None or 1 <= indices[-1] <= len(data) - batch
    require_that(fits, f"indices of {indices[-1]} numbers do not index {format_dims(data)}")


def require_scatter_nd(node: NodeShapes) -> None:
    """Require updates of the shape of the indexed slices."""
    data, indices, updates = node.shape(0), node.shape(1), node.shape(2)
    if data is None or indices is None or updates is None:
        return
    require_that(bool(data) and bool(indices), "neither the operand nor the indices may be a scalar")
    depth = indices[-1]
    if depth is None:
        return
    require_that(depth <= len(data), f"indices of {depth} numbers do not index {format_dims(data)}")
    expected = (*indices[:-1], *data[depth:])
    require_that(
        may_be_equal(expected, updates),
        f"the updates are {format_dims(updates)}; expected {format_dims(expected)}",
    )


def require_top_k(node: NodeShapes) -> None:
    """Require K to be at most the extent of the axis."""
    data = node.shape(0)
    k = node.constant_inputs.get(1, (node.integer_attribute("k"),) if "k" in node.attributes else ())
    if data is not None:
        extent = data[node.axis_attribute(-1, len(data))]
        require_that(
            extent is None or not k or 0 <= k[0] <= extent,
            f"{k} elements are requested from an axis of {format_dims(data)}",
        )


def require_cumulative(node: NodeShapes) -> None:
    """Require an operand with the axis."""
    data, axis = node.shape(0), node.constant_inputs.get(1)
    require_that(data != (), "a scalar has no axis to sum along")
    if data is not None and axis is not None and len(axis) == 1:
        axis_from_front(axis[0], len(data))


def require_compress(node: NodeShapes) -> None:
    """Require a vector as condition, and an operand with the axis."""
    data, keep = node.shape(0), node.shape(1)
    require_that(keep is None or len(keep) == 1, f"the condition is {format_dims(keep)}, not a vector")
    if data is not None and "axis" in node.attributes:
        node.axis_attribute(0, len(data))


def axis_rule(default: int = -1, *, scalars: bool = True) -> ShapeRule:
    """Return the rule of an operator along one axis; `scalars` is True if the operand may be a scalar."""

    def rule(node: NodeShapes) -> None:
        data = node.shape(0)
        require_that(scalars or data != (), "a scalar has no axis")
        if data is not None and data:
            node.axis_attribute(default, len(data))

    return rule


def require_reduction(node: NodeShapes) -> None:
    """Require distinct axes of the operand."""
    data, axes = node.shape(0), node.constant_inputs.get(1, node.integers_attribute("axes"))
    if data is not None and axes:
        require_distinct_axes(axes, len(data))


def _require_in_range(node: NodeShapes, extent: int | None, what: str) -> None:
    """Raise ShapeConflict if a constant index lies outside an axis of `extent` elements."""
    indices = node.constant_inputs.get(1)
    if indices and extent is not None:
        low, high = min(indices), max(indices)
        worst = high if high >= extent else low
        require_that(-extent <= low and high < extent, f"the index {worst} lies outside {what}, which has {extent}")
