"""What a run that failed midway left of the state: told from the plan, for which nothing is kept while running.

The bytes of an updated value are written at known points: where another value that lies there is defined, and at the
end, if its new content does not lie there already. Memory that is exchanged changes hands after all points. Before the
first of these points the value is as it was; after the last it holds what the run gave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.base.printable import listed, printable
from sublet.ir.graph import Graph, Value
from sublet.plan import UPDATE, MemoryPlan, Region
from sublet.plan.exchange import placed
from sublet.runtime.moments import Moment

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Points [begin, end): what one call runs."""

    begin: int
    end: int


UNBEGUN = Span(0, 0)
"""Nothing has run."""


@dataclass(frozen=True, slots=True)
class Left:
    """Updated values by what they hold after a run that failed.

    as_before   what they held when it began
    updated     what it gave them
    uncertain   maybe half of either, or something else
    """

    as_before: tuple[Value, ...]
    updated: tuple[Value, ...]
    uncertain: tuple[Value, ...]

    @property
    def words(self) -> str:
        """A sentence for people."""
        parts = [
            f"{len(values)} {what}"
            for values, what in ((self.as_before, "as before the run"), (self.updated, "updated by it"))
            if values
        ]
        if self.uncertain:
            names = [repr(printable(value.name)) for value in self.uncertain]
            parts.append(f"{len(names)} maybe half written: {listed(names, SHOWN)}")
        return f"state: {', '.join(parts)}"


def left_by(graph: Graph, plan: MemoryPlan, points: Sequence[Moment], failed: Span) -> Left:
    """What a run left in which the points of `failed` may or may not have run, and all before them have."""
    found: dict[str, list[Value]] = {"as_before": [], "updated": [], "uncertain": []}
    writes = _writes(graph, plan, points)
    for target in graph.updated:
        if all(point >= failed.end for point in writes[target]):
            found["as_before"].append(target)
        elif all(point < failed.begin for point in writes[target]):
            found["updated"].append(target)
        else:
            found["uncertain"].append(target)
    return Left(**{what: tuple(values) for what, values in found.items()})


def _writes(graph: Graph, plan: MemoryPlan, points: Sequence[Moment]) -> dict[Value, list[int]]:
    """The points at which the bytes of each updated value may be written, by anybody but the caller."""
    homes = {placement.value: placement.region for placement in plan.placements}
    defined: dict[str, list[int]] = {}
    for number, point in enumerate(points[1:], 1):
        if point.kind != UPDATE:
            for value in point.writes:
                defined.setdefault(value.name, []).append(number)
    last = next(number for number, point in enumerate(points) if point.kind == UPDATE)
    writes: dict[Value, list[int]] = {}
    exchanged = {name for cycle in plan.exchanged for name in cycle}
    for target, source in placed(graph, plan.exchanged).updates:
        home = homes.get(target.name)
        writes[target] = [
            number
            for placement in plan.placements
            if home is not None and placement.value != target.name and _touches(placement.region, home)
            for number in defined.get(placement.value, ())
        ]
        if home is None or homes.get(source.name) != home:
            writes[target].append(last)
        if target.name in exchanged:  # after all points: what lies in its memory was another value's
            writes[target].append(len(points))
    return writes


def _touches(one: Region, other: Region) -> bool:
    return one.storage == other.storage and one.offset < other.end and other.offset < one.end
