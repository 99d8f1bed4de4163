"""Statistics computed from a plan: values in several regions, bytes copied by control flow, updated values."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.plan.records import UPDATE, Edge, MemoryPlan, Region


def multiview_values(plan: MemoryPlan) -> tuple[str, ...]:
    """Return the values with several regions in turn [NNC: multi-view tensors]."""
    regions: dict[str, set[Region]] = {}
    for place in plan.placements:
        regions.setdefault(place.value, set()).add(place.region)
    return tuple(value for value, places in regions.items() if len(places) > 1)


def bytes_by_edge(plan: MemoryPlan) -> dict[Edge, int]:
    """Return, for each control-flow edge with copies, the most bytes copied when the run passes the edge once.

    A destination receives one source at a time; the arm or the body version selects the source.
    """
    edges: dict[Edge, dict[str, int]] = {}
    for move in plan.moves:
        to = edges.setdefault(move.edge, {})
        to[move.destination] = max(move.nbytes, to.get(move.destination, 0))
    return {edge: sum(to.values()) for edge, to in edges.items()}


@dataclass(frozen=True, slots=True)
class UpdateStatistics:
    """The number of inputs and weights updated by a run, their total bytes, and the bytes copied by the updates.

    `exchanged` counts the values in storage swaps.
    """

    count: int
    nbytes: int
    copied: int
    exchanged: int

    @property
    def description(self) -> str:
        """The count and the storage swaps in words."""
        exchanged = f", {self.exchanged} of which exchange their memory" if self.exchanged else ""
        return f"{self.count} value{'s' if self.count != 1 else ''}{exchanged}"


def update_statistics(plan: MemoryPlan) -> UpdateStatistics:
    """Return the statistics of a plan's updates."""
    sizes = {place.value: place.region.nbytes for place in plan.placements}
    copied = sum(move.nbytes for move in plan.moves if move.edge.kind == UPDATE)
    exchanged = sum(map(len, plan.exchanged))
    return UpdateStatistics(len(plan.updated), sum(sizes[name] for name in plan.updated), copied, exchanged)
