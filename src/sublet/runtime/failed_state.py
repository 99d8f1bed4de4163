"""State of the updated values after a failed run, derived from the plan; a run records nothing.

The bytes of an updated value are written at known points: at the definition of every other value in the same bytes,
and at the end, unless the new content is already in place. Swapped storages change hands after all points. Before
the first of these points the value is unchanged; after the last the value is updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.base.escape import abbreviated_list, printable
from sublet.ir.graph import Graph, Value
from sublet.plan import UPDATE, MemoryPlan, Region
from sublet.plan.storage_swap import graph_with_swapped_updates
from sublet.runtime.point_accesses import PointAccesses

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class PointRange:
    """The half-open range [begin, end) of points run by one call."""

    begin: int
    end: int


NO_POINTS = PointRange(0, 0)
"""The range before the first point: no point has run."""


@dataclass(frozen=True, slots=True)
class StateAfterFailure:
    """The updated values, by content after a failed run.

    as_before   unchanged since the run began
    updated     fully updated by the run
    uncertain   possibly half-written, or other content
    """

    as_before: tuple[Value, ...]
    updated: tuple[Value, ...]
    uncertain: tuple[Value, ...]

    @property
    def sentence(self) -> str:
        """A sentence for the error message."""
        parts = [
            f"{len(values)} {what}"
            for values, what in ((self.as_before, "as before the run"), (self.updated, "updated by the run"))
            if values
        ]
        if self.uncertain:
            names = [repr(printable(value.name)) for value in self.uncertain]
            parts.append(f"{len(names)} possibly half-written: {abbreviated_list(names, MAX_NAMED)}")
        return f"state: {', '.join(parts)}"


def state_after_failure(
    graph: Graph, plan: MemoryPlan, points: Sequence[PointAccesses], failed: PointRange
) -> StateAfterFailure:
    """Return the state after a failed run: points before `failed` have run, points in `failed` may have run."""
    by_content: dict[str, list[Value]] = {"as_before": [], "updated": [], "uncertain": []}
    writes = _write_points(graph, plan, points)
    for target in graph.updated_values:
        if all(point >= failed.end for point in writes[target]):
            by_content["as_before"].append(target)
        elif all(point < failed.begin for point in writes[target]):
            by_content["updated"].append(target)
        else:
            by_content["uncertain"].append(target)
    return StateAfterFailure(**{what: tuple(values) for what, values in by_content.items()})


def _write_points(graph: Graph, plan: MemoryPlan, points: Sequence[PointAccesses]) -> dict[Value, list[int]]:
    """Return the points that may write bytes of each updated value, writes by the caller excluded."""
    homes = {placement.value: placement.region for placement in plan.placements}
    defined: dict[str, list[int]] = {}
    for number, point in enumerate(points[1:], 1):
        if point.kind != UPDATE:
            for value in point.writes:
                defined.setdefault(value.name, []).append(number)
    last = next(number for number, point in enumerate(points) if point.kind == UPDATE)
    writes: dict[Value, list[int]] = {}
    exchanged = {name for cycle in plan.exchanged for name in cycle}
    for target, source in graph_with_swapped_updates(graph, plan.exchanged).updates:
        home = homes.get(target.name)
        writes[target] = [
            number
            for placement in plan.placements
            if home is not None and placement.value != target.name and _regions_overlap(placement.region, home)
            for number in defined.get(placement.value, ())
        ]
        if home is None or homes.get(source.name) != home:
            writes[target].append(last)
        if target.name in exchanged:  # swapped after all points: until then the storage holds another value
            writes[target].append(len(points))
    return writes


def _regions_overlap(one: Region, other: Region) -> bool:
    return one.storage == other.storage and one.offset < other.end and other.offset < one.end
