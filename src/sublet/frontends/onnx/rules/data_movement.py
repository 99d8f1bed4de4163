"""Shape rules of data movement: reshaping, concatenation, splitting, padding and slicing."""

from __future__ import annotations

from math import prod

from sublet.base.tensor import format_dims
from sublet.frontends.onnx.rules.shape_rule import (
    NodeShapes,
    ShapeConflict,
    axis_from_front,
    element_count_of,
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
