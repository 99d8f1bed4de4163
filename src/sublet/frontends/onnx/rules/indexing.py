"""Shape rules of operators with indices or axes: valid index ranges, and shapes of gathered and scattered slices."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.frontends.onnx.rules.shape_rule import (
    NodeShapes,
    ShapeRule,
    axis_from_front,
    may_be_equal,
    require_distinct_axes,
    require_equal,
    require_that,
)


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
