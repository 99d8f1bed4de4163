"""A plan over ranges of dimensions, and its numbers at one point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sublet.base.boxes import Box, Range
from sublet.base.extents import Extent, extent_at
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.dataflow import rename_values
from sublet.ir.graph import Graph, Value
from sublet.plan.file import fingerprint
from sublet.plan.records import MemoryPlan, Placement, UnplannedValue

Numbers = Callable[[Extent | int], Any]
"""A function from an extent to another, such as its number at a point."""


@dataclass(frozen=True)
class RangedPlan:
    """A plan over ranges of dimensions.

    worst   the plan of the upper bounds of all sizes: arena, peak and bound are those of the worst point
    over    the same plan, with `Extent`s as sizes and as offsets within blocks
    graph   the graph over ranges
    ranges  the ranges of the dimensions
    """

    worst: MemoryPlan
    over: MemoryPlan
    graph: Graph
    ranges: tuple[Range, ...]

    @property
    def box(self) -> Box:
        """The box of the ranges, with dimensions numbered by steps."""
        return Box(tuple(each.dimension for each in self.ranges))

    def at(self, point: Mapping[str, int]) -> tuple[Graph, MemoryPlan]:
        """Return the graph and the plan at a point; `point` has the number of every dimension of the box."""
        graph, plan = self._with(lambda extent: extent_at(extent, point))
        return graph, replace(plan, fingerprint=fingerprint(graph, plan.schedule))

    def within(self, box: Box) -> tuple[Graph, MemoryPlan]:
        """Return the graph and the plan over a part of the box, with expressions and the fingerprint of the worst."""
        return self._with(box.substitution_from(self.box))

    def _with(self, number_of: Numbers) -> tuple[Graph, MemoryPlan]:
        """Return the graph and the plan with another extent in place of each extent."""
        graph = graph_at(self.graph, number_of)
        return graph, _plan_at(self.over, graph, number_of)


def graph_at(graph: Graph, number_of: Numbers) -> Graph:
    """Return the graph with another extent in place of each extent of its types and literals."""
    changed: dict[Value, Value] = {}
    for value in graph.values():
        spec, literal = value.spec, value.literal
        if isinstance(spec, TensorSpec) and any(isinstance(extent, Extent) for extent in spec.shape):
            spec = TensorSpec(spec.dtype, tuple(map(number_of, spec.shape)))
        if isinstance(spec, Unplannable) and any(isinstance(extent, Extent) for extent in spec.dims or ()):
            spec = replace(spec, dims=tuple(None if each is None else number_of(each) for each in spec.dims or ()))
        if literal is not None and any(isinstance(each, Extent) for each in literal):
            literal = tuple(number_of(each) if isinstance(each, Extent) else each for each in literal)
        if spec is not value.spec or literal is not value.literal:
            changed[value] = replace(value, spec=spec, literal=literal)
    return rename_values(graph, changed)


def _plan_at(plan: MemoryPlan, graph: Graph, number_of: Numbers) -> MemoryPlan:
    """Return the plan of `graph`, which has another extent in place of each extent of the plan's graph."""
    specs = {value.name: str(value.spec) for value in graph.values()}

    def placement_at(place: Placement) -> Placement:
        region = replace(place.region, offset=number_of(place.region.offset), nbytes=number_of(place.region.nbytes))
        return replace(place, spec=specs[place.value], region=region)

    def outside_at(each: UnplannedValue) -> UnplannedValue:
        spec = outside[each.value]
        return UnplannedValue.from_spec(each.value, spec, each.bound) if isinstance(spec, Unplannable) else each

    outside = {value.name: value.spec for value in graph.unplannable_values}
    return replace(
        plan,
        placements=tuple(map(placement_at, plan.placements)),
        outside=tuple(map(outside_at, plan.outside)),
        storages=tuple(replace(each, nbytes=number_of(each.nbytes)) for each in plan.storages),
    )
