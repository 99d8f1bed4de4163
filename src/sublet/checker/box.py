"""The check of a plan over ranges: two proofs cover every point of a box.

Within a block. The replay of `checker/replay.py` runs unchanged over a graph and a plan whose sizes and offsets are
`Extent`s, each block of the arena in a storage of its own. Extents compare alike at every point, or raise `Undecided`.
A replay without an exception takes one path, the same at every point, and finds the same violations at every point.
`==` of Extents is False where equality is not proven: for the checker, two positions that are not equal never make a
plan valid. Where a comparison differs within the box, as `bytes == 0` in a range that begins at 0, both halves of the
box are checked.

Between blocks. The *room* of a value holds its region at every point. Two values of different blocks with a common byte
in their rooms are never live at the same program point. Live ranges do not depend on sizes: the check of the claims at
the upper bounds has proven them.

Iterations. The extents of a loop's body may depend on the iteration, a dimension of the box. Such a value is defined
and read in the body alone, between the check of the condition and the end of the iteration. So no such value is live
where the iteration changes, and the proof for every number of the iteration covers a run through all of them.

Measured extents. A run begins at some number of an extent that depends on data, and goes on at the measured number. A
value whose size or place depends on the number is defined by the measurement or later. So no such value is live where
the number changes: the run is at first as at the one number, then as at the other, and both are proven.

Corners and some points are checked with numbers besides, in the arena as a whole.

Rules: unproven-box, rooms-overlap, iteration, measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from sublet.base.boxes import Box
from sublet.base.errors import Finding
from sublet.base.extents import Extent, Undecided, bounds_of, upper_bound
from sublet.base.tensor import TensorSpec
from sublet.checker import check_bytes
from sublet.checker.layout import overlapping_pairs
from sublet.ir.dataflow import iteration_of
from sublet.ir.graph import Graph, Value, While
from sublet.ops import dimensions_of, measured_axes, measured_dimensions
from sublet.ops.op import MEASURE
from sublet.plan import ARENA, MemoryPlan, Placement, Region

MOST_PARTS = 128
"""Parts of a box with a replay each. The check gives up on a plan that needs more."""

MOST_CORNERS, RANDOM_POINTS = 8, 2
"""Points checked with numbers, besides the proof."""

Within = Callable[[Box], tuple[Graph, MemoryPlan]]
At = Callable[[Mapping[str, int]], tuple[Graph, MemoryPlan]]


def check_box(box: Box, within: Within, at: At) -> tuple[Finding, ...]:
    """Return the violations of a plan over a box; an empty result proves the plan at every point.

    The live ranges of the plan must be proven: the plan of the upper bounds has passed the check of claims.

    box     the ranges
    within  returns graph and plan over a part of the box
    at      returns graph and plan at a point
    """
    whole = within(box)
    clashes = (*_values_beyond_iterations(*whole), *_values_before_measurement(*whole), *_overlapping_rooms(*whole))
    if clashes:
        return clashes
    todo, parts = [box], 0
    while todo:
        part, parts = todo.pop(), parts + 1
        graph, plan = within(part)
        try:
            apart = _with_blocks_apart(plan)
            findings = check_bytes(graph, plan.schedule, apart)
        except Undecided as undecided:
            halves = part.split(undecided.difference) if parts < MOST_PARTS else None
            if halves is None:
                what = f"{undecided}, so the plan is not proven for {part}"
                return (Finding("unproven-box", "the plan", what, "use narrower ranges, or tiers"),)
            todo += halves
            continue
        if findings:
            return findings
    return _check_points(box, at)


def _values_beyond_iterations(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield a finding for each value whose place depends on an iteration and is used beyond the iteration."""
    loops = [node for node in graph.walk() if isinstance(node, While)]
    for loop in loops:
        iteration = iteration_of(loop)
        if iteration is None:
            continue
        inside = loop.body.nodes[loop.check :]
        own = {v for node in inside for v in (*node.defs, *(v for sub in node.subgraphs for v in sub.values()))}
        own -= {*loop.body.outputs, loop.condition}
        for value, dimensions in _dimensions_of_values(graph, plan):
            if iteration.name in dimensions and value not in own:
                what = f"depends on the iteration of loop {loop.name}, and is used beyond an iteration"
                yield Finding("iteration", f"value %{value.name}", what, "plan a buffer of a fixed size")


def _values_before_measurement(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield a finding for each value whose place depends on a measured extent, and that is defined earlier."""
    nodes = {node.name: node for node in graph.nodes}
    order = [nodes[step.node] for step in plan.schedule.steps]
    measured_at: dict[str, int] = {}
    defined_at: dict[Value, int] = {}
    for at, node in enumerate(order):
        defined_at.update(dict.fromkeys((*node.defs, *(v for sub in node.subgraphs for v in sub.values())), at))
        for _, name in measured_axes(node) if node.op == MEASURE else ():
            measured_at.setdefault(name, at)
    late = measured_dimensions(graph)
    for value, dimensions in _dimensions_of_values(graph, plan) if late else ():
        for name in dimensions & late:
            if defined_at.get(value, -1) < measured_at[name]:
                what = f"has a place that depends on {name}, and is defined before node {order[measured_at[name]].name}"
                yield Finding("measurement", f"value %{value.name}", what, "place the value apart")


def _dimensions_of_values(graph: Graph, plan: MemoryPlan) -> Iterator[tuple[Value, set[str]]]:
    """Yield the values with the names of the dimensions in size, place and literal. A counter has no literal here."""
    counters = {node.counter for node in graph.walk() if isinstance(node, While)}
    places = {place.value: place.region for place in plan.placements}
    for value in graph.values():
        region = places.get(value.name)
        parts: list[Any] = [region.offset, region.nbytes] if region else []
        parts += () if value in counters else value.literal or ()
        names = {each.name for part in parts if isinstance(part, Extent) for each in part.dimensions}
        yield value, names | dimensions_of([value])


def _with_blocks_apart(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with a storage for each block of an arena, as large as the arena."""
    arenas = {storage.name: storage for storage in plan.arenas}
    storages = {storage.name: storage for storage in plan.storages if storage.kind != ARENA}
    placements = []
    for place in plan.placements:
        arena = arenas.get(place.region.storage)
        if arena is not None:
            block = replace(arena, name=f"{arena.name} block {place.buffer}")
            storages[block.name] = block
            place = replace(place, region=replace(place.region, storage=block.name))
        placements.append(place)
    listed = tuple(storages.values())
    arena_bytes = sum(storage.nbytes for storage in listed if storage.kind == ARENA)
    return replace(plan, storages=listed, placements=tuple(placements), arena_bytes=arena_bytes)


def _overlapping_rooms(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield a finding for two placements of different blocks with common bytes and a common live point."""
    arenas, values = {storage.name for storage in plan.arenas}, {value.name: value for value in graph.values()}
    places = {place.value: place for place in plan.placements if place.region.storage in arenas}
    rooms = ((_room_of(place, values[name]), name) for name, place in places.items())
    for (_, one), (_, other) in overlapping_pairs((room, name) for room, name in rooms if room.nbytes > 0):
        if places[one].buffer != places[other].buffer and _share_point(places[one].live, places[other].live):
            what = f"may overlap %{one} at some points of the ranges, while both are live"
            yield Finding("rooms-overlap", f"value %{other}", what, "place the blocks apart")


def _room_of(place: Placement, value: Value) -> Region:
    """Return the room of a placement: the upper bound of its end, or of its offset and of each extent if lower."""
    begin, last = bounds_of(place.region.offset)
    end = bounds_of(place.region.end)[1]
    if isinstance(value.spec, TensorSpec):
        end = min(end, last + TensorSpec(value.spec.dtype, tuple(map(upper_bound, value.spec.shape))).nbytes)
    return Region(place.region.storage, begin, end - begin)


def _share_point(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> bool:
    """True if two lists of half-open ranges share a point."""
    return any(begin < stop and start < end for begin, end in one for start, stop in other)


def _check_points(box: Box, at: At) -> tuple[Finding, ...]:
    """Return the violations at corners and random points of the box, found with numbers."""
    corners = list(box.corners())
    draw = Random(len(corners))
    chosen = [*corners[:MOST_CORNERS], *corners[-1:]]
    chosen += [{each.name: draw.randint(each.low, each.high) for each in box.ranges} for _ in range(RANDOM_POINTS)]
    for point in {tuple(point.items()): point for point in chosen}.values():
        graph, plan = at(point)
        findings = check_bytes(graph, plan.schedule, plan)
        if findings:
            return findings
    return ()
