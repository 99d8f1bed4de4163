"""Shape rules of operators with indices or axes: valid index ranges, and shapes of gathered and scattered slices."""

from __future__ import annotations

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import Rule, Seen, alike, counted, demand, once, same


def gather(seen: Seen) -> None:
    """Require constant indices within the axis."""
    data = seen.shape(0)
    if data is not None:
        _inside(seen, data[seen.axis(0, len(data))], f"an axis of {shown(data)}")


def gather_elements(seen: Seen) -> None:
    """Require at most as many indices as elements along every axis except the gathered axis."""
    data, indices = seen.shape(0), seen.shape(1)
    if data is None or indices is None:
        return
    axis = seen.axis(0, len(data))
    demand(len(data) == len(indices), f"{shown(data)} and the indices {shown(indices)} differ in rank")
    for place, (a, b) in enumerate(zip(data, indices, strict=True)):
        small = place == axis or a is None or b is None or b <= a
        demand(small, f"the indices {shown(indices)} are more than {shown(data)} on axis {place}")
    _inside(seen, data[axis], f"an axis of {shown(data)}")


def scatter_elements(seen: Seen) -> None:
    """Require one update for each index."""
    indices, updates = seen.shape(1), seen.shape(2)
    gather_elements(seen)
    if indices is not None and updates is not None:
        what = f"the updates {shown(updates)} are not one for each of the indices {shown(indices)}"
        demand(alike(indices, updates), what)


def gather_nd(seen: Seen) -> None:
    """Require a last axis of the indices no longer than the rank of the operand behind the batch axes."""
    data, indices, batch = seen.shape(0), seen.shape(1), seen.whole("batch_dims")
    if data is None or indices is None:
        return
    demand(bool(data) and bool(indices), "neither the operand nor the indices may be a scalar")
    demand(batch < min(len(data), len(indices)), f"there are no {batch} batch axes")
    for a, b in zip(data[:batch], indices[:batch], strict=True):
        same(a, b, f"{shown(data)} and the indices {shown(indices)} differ in a batch axis")
    fits = indices[-1] is None or 1 <= indices[-1] <= len(data) - batch
    demand(fits, f"indices of {indices[-1]} numbers do not point into {shown(data)}")


def scatter_nd(seen: Seen) -> None:
    """Require updates of the shape of the indexed slices."""
    data, indices, updates = seen.shape(0), seen.shape(1), seen.shape(2)
    if data is None or indices is None or updates is None:
        return
    demand(bool(data) and bool(indices), "neither the operand nor the indices may be a scalar")
    depth = indices[-1]
    if depth is None:
        return
    demand(depth <= len(data), f"indices of {depth} numbers do not point into {shown(data)}")
    wanted = (*indices[:-1], *data[depth:])
    demand(alike(wanted, updates), f"the updates are {shown(updates)}, and would have to be {shown(wanted)}")


def top(seen: Seen) -> None:
    """Require K to be at most the extent of the axis."""
    data = seen.shape(0)
    k = seen.numbers.get(1, (seen.whole("k"),) if "k" in seen.attributes else ())
    if data is not None:
        extent = data[seen.axis(-1, len(data))]
        demand(extent is None or not k or 0 <= k[0] <= extent, f"{k} are taken of an axis of {shown(data)}")


def cumulative(seen: Seen) -> None:
    """Require an operand with the axis."""
    data, axis = seen.shape(0), seen.numbers.get(1)
    demand(data != (), "a scalar has no axis to sum along")
    if data is not None and axis is not None and len(axis) == 1:
        counted(axis[0], len(data))


def compress(seen: Seen) -> None:
    """Require a vector as condition, and an operand with the axis."""
    data, keep = seen.shape(0), seen.shape(1)
    demand(keep is None or len(keep) == 1, f"the condition is {shown(keep)}, not a vector")
    if data is not None and "axis" in seen.attributes:
        seen.axis(0, len(data))


def on_axis(default: int = -1, *, scalars: bool = True) -> Rule:
    """Return the rule of an operator along one axis; `scalars` is True if the operand may be a scalar."""

    def rule(seen: Seen) -> None:
        data = seen.shape(0)
        demand(scalars or data != (), "a scalar has no axis")
        if data is not None and data:
            seen.axis(default, len(data))

    return rule


def reduction(seen: Seen) -> None:
    """Require distinct axes of the operand."""
    data, axes = seen.shape(0), seen.numbers.get(1, seen.wholes("axes"))
    if data is not None and axes:
        once(axes, len(data))


def _inside(seen: Seen, extent: int | None, what: str) -> None:
    """Raise ShapeConflict if a constant index lies outside an axis of `extent` elements."""
    indices = seen.numbers.get(1)
    if indices and extent is not None:
        low, high = min(indices), max(indices)
        worst = high if high >= extent else low
        demand(-extent <= low and high < extent, f"the index {worst} lies outside {what}, which has {extent}")
