"""Shape rules of data movement: reshaping, concatenation, splitting, padding and slicing."""

from __future__ import annotations

from math import prod

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import (
    Contradiction,
    Seen,
    broadcast,
    counted,
    demand,
    once,
    same,
    size_of,
)


def reshape(seen: Seen) -> None:
    """Require an equal element count; 0 copies an extent, -1 takes the remaining elements."""
    data, target = seen.shape(0), seen.numbers.get(1, seen.wholes("shape"))
    if data is None or target is None:
        return
    copies = seen.whole("allowzero") == 0
    asked: list[int | None] = []
    for axis, extent in enumerate(target):
        demand(extent >= -1, f"the shape {list(target)} has the extent {extent}")
        if extent == 0 and copies:
            demand(axis < len(data), f"the shape {list(target)} copies axis {axis} of {shown(data)}, which has none")
        asked.append(data[axis] if extent == 0 and copies else extent)
    size, known = size_of(data), [extent for extent in asked if extent is not None and extent != -1]
    demand(target.count(-1) < 2, f"the shape {list(target)} leaves two extents open")
    if size is None or None in asked:
        return
    if -1 not in target:
        demand(prod(known) == size, _count(seen, target, size, prod(known)))
    elif prod(known) == 0:
        raise Contradiction(f"the shape {list(target)} leaves an extent open next to one of 0")
    else:
        demand(size % prod(known) == 0, _count(seen, target, size, prod(known)))


def _count(seen: Seen, target: tuple[int, ...], size: int, asked: int) -> str:
    """Return the message for a wrong element count, with a corrected extent where one exists."""
    whole = f"{asked}" if -1 not in target else f"a multiple of {asked}"
    what = f"{shown(seen.shape(0))} has {size} elements, the shape {list(target)} asks for {whole}"
    for axis, extent in enumerate(target):
        rest = asked // extent if extent > 0 else 0
        if rest and -1 not in target and size % rest == 0:
            return f"{what}: axis {axis} would have to be {size // rest}, and is {extent}"
    return what


def squeeze(seen: Seen) -> None:
    """Require extent 1 on every removed axis."""
    data, axes = seen.shape(0), seen.numbers.get(1, seen.wholes("axes"))
    if data is None or not axes:
        return
    for axis in axes:
        extent = data[counted(axis, len(data))]
        demand(extent in (1, None), f"axis {axis} of {shown(data)} is {extent}, not 1")


def unsqueeze(seen: Seen) -> None:
    """Require distinct new axes of the result."""
    data, axes = seen.shape(0), seen.numbers.get(1, seen.wholes("axes"))
    if data is None or axes is None:
        return
    places = {counted(axis, len(data) + len(axes)) for axis in axes}
    demand(len(places) == len(axes), f"the axes {list(axes)} name one twice")


def flatten(seen: Seen) -> None:
    """Require an axis from -rank to rank, inclusive."""
    data = seen.shape(0)
    if data is not None:
        axis = seen.whole("axis", 1)
        demand(-len(data) <= axis <= len(data), f"there is no axis {axis} in {shown(data)}")


def transpose(seen: Seen) -> None:
    """Require a permutation of all axes."""
    data, order = seen.shape(0), seen.wholes("perm")
    if data is not None and order is not None:
        demand(sorted(order) == list(range(len(data))), f"perm {list(order)} is no order of the axes of {shown(data)}")


def expand(seen: Seen) -> None:
    """Require a target shape broadcasting with the operand."""
    target = seen.numbers.get(1)
    if target is not None:
        demand(min(target, default=0) >= 0, f"the shape {list(target)} has a negative extent")
        broadcast([seen.shape(0), target], "the operand does not broadcast to the shape")


def tile(seen: Seen) -> None:
    """Require one repeat count for each axis."""
    data, repeats = seen.shape(0), seen.shape(1)
    if data is not None and repeats is not None:
        demand(len(repeats) == 1, f"the repeats are {shown(repeats)}, not a vector")
        same(repeats[0], len(data), f"the repeats do not have a number for each axis of {shown(data)}")


def concat(seen: Seen) -> None:
    """Require operands equal except on the concatenated axis."""
    shapes = [shape for shape in seen.inputs if shape is not None]
    if not shapes:
        return
    first = shapes[0]
    axis = seen.axis(1 if seen.version < 4 else 0, len(first))
    for other in shapes[1:]:
        demand(len(other) == len(first), f"{shown(first)} and {shown(other)} differ in rank")
        for place, (a, b) in enumerate(zip(first, other, strict=True)):
            if place != axis:
                same(a, b, f"{shown(first)} and {shown(other)} are joined on axis {axis} and differ on axis {place}")


def split(seen: Seen) -> None:
    """Require parts adding up to the axis."""
    data, parts = seen.shape(0), seen.numbers.get(1, seen.wholes("split"))
    if data is None:
        return
    extent, count = data[seen.axis(0, len(data))], len(seen.outputs)
    if parts is not None:
        demand(len(parts) == count, f"there are {count} outputs and {len(parts)} parts, {list(parts)}")
        demand(min(parts, default=0) >= 0, f"a part of {list(parts)} is negative")
        same(sum(parts), extent, f"the parts {list(parts)} do not make up the axis of {shown(data)}")
    elif "num_outputs" in seen.attributes:
        wanted = seen.whole("num_outputs")
        demand(wanted == count, f"there are {count} outputs, and num_outputs is {wanted}")
        fits = extent is None or -(-extent // count) * (count - 1) < extent
        demand(fits, f"{extent} of {shown(data)} cannot be split in {count} parts")
    elif seen.version < 18 and extent is not None and not seen.present(1):
        demand(extent % count == 0, f"{extent} of {shown(data)} cannot be split in {count} equal parts")


def pad(seen: Seen) -> None:
    """Require two pads for each padded axis, and no axis of negative extent."""
    data, pads, axes = seen.shape(0), seen.numbers.get(1, seen.wholes("pads")), seen.numbers.get(3)
    if data is None or pads is None or (seen.present(3) and axes is None):
        return
    places = [counted(axis, len(data)) for axis in axes] if axes is not None else list(range(len(data)))
    demand(len(pads) == 2 * len(places), f"{len(pads)} pads for {len(places)} axes of {shown(data)}")
    for place, before, after in zip(places, pads, pads[len(places) :], strict=False):
        extent = data[place]
        left = None if extent is None else extent + before + after
        demand(left is None or left >= 0, f"axis {place} of {shown(data)} is cut by more than it has")
        if seen.text("mode") == "reflect" and extent is not None:
            demand(max(before, after) < max(extent, 1), f"axis {place} of {shown(data)} is too short to reflect")


def slices(seen: Seen) -> None:
    """Require distinct axes and no step of 0."""
    data, axes, steps = seen.shape(0), seen.numbers.get(3, seen.wholes("axes")), seen.numbers.get(4, ())
    demand(0 not in steps, "a step is 0")
    if data is not None and axes is not None:
        once(axes, len(data))


def depth_to_space(seen: Seen) -> None:
    """Require channels divisible into whole blocks."""
    data, block = seen.shape(0), seen.whole("blocksize", 1)
    if data is not None:
        demand(len(data) == 4, f"{shown(data)} does not have four dimensions")
        demand(data[1] is None or data[1] % (block * block) == 0, f"{data[1]} channels make no blocks of {block}")


def space_to_depth(seen: Seen) -> None:
    """Require a height and a width divisible into whole blocks."""
    data, block = seen.shape(0), seen.whole("blocksize", 1)
    if data is not None:
        demand(len(data) == 4, f"{shown(data)} does not have four dimensions")
        fits = all(extent is None or extent % block == 0 for extent in data[2:])
        demand(fits, f"{shown(data)} makes no blocks of {block}")
