"""Figures of a plan that are counted, not recorded: what lies in several places, what moves, what is updated."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.plan.records import UPDATE, Edge, MemoryPlan, Region


def multiview(plan: MemoryPlan) -> tuple[str, ...]:
    """The values that live in several places in turn [NNC: multi-view tensors]."""
    regions: dict[str, set[Region]] = {}
    for place in plan.placements:
        regions.setdefault(place.value, set()).add(place.region)
    return tuple(value for value, several in regions.items() if len(several) > 1)


def bytes_by_edge(plan: MemoryPlan) -> dict[Edge, int]:
    """The most bytes that control flow moves when it passes an edge; without those that move none.

    A destination takes one source each time: which one depends on the arm, or the copy of the body.
    """
    edges: dict[Edge, dict[str, int]] = {}
    for move in plan.moves:
        to = edges.setdefault(move.edge, {})
        to[move.destination] = max(move.nbytes, to.get(move.destination, 0))
    return {edge: sum(to.values()) for edge, to in edges.items()}


@dataclass(frozen=True, slots=True)
class Updated:
    """How many inputs and weights a run leaves with another content, their bytes, and those copied to do so.

    `exchanged` counts those that get each other's memory.
    """

    count: int
    nbytes: int
    copied: int
    exchanged: int

    @property
    def words(self) -> str:
        """How many, for people."""
        exchanged = f", {self.exchanged} of which exchange their memory" if self.exchanged else ""
        return f"{self.count} value{'s' if self.count != 1 else ''}{exchanged}"


def updated(plan: MemoryPlan) -> Updated:
    """What a plan updates."""
    sizes = {place.value: place.region.nbytes for place in plan.placements}
    copied = sum(move.nbytes for move in plan.moves if move.edge.kind == UPDATE)
    exchanged = sum(map(len, plan.exchanged))
    return Updated(len(plan.updated), sum(sizes[name] for name in plan.updated), copied, exchanged)
