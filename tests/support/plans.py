"""Memory plans made by hand, for tests of those who read plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.base.tensor import Unplannable
from sublet.checker.liveness import must_live
from sublet.checker.moves import redirect_updates
from sublet.checker.state_space import PlacementIndex, StateSpace, TooManyStatesError
from sublet.checker.timeline import build_timeline
from sublet.ir.graph import Graph, Value
from sublet.plan import ARENA, MemoryPlan, Peak, Placement, Region, Storage, UnplannedValue, bound_storage_name
from sublet.plan.file import fingerprint
from sublet.plan.schedule import Schedule, serial_schedule

MOST_POINTS = 1 << 20

Place = int | tuple[str, int]
"""An offset in the arena, or a storage and an offset in it."""


def plan_at(
    graph: Graph,
    places: Mapping[str, Place],
    arena_bytes: int,
    alignment: int = 1,
    bound: Mapping[str, str] | None = None,
    schedule: Schedule | None = None,
) -> MemoryPlan:
    """A plan that puts each named value where `places` says. `bound` maps values to kinds of storage."""
    values = {value.name: value for value in graph.values()}
    bound = bound or {}
    storages = [Storage(ARENA, "arena", arena_bytes)]
    storages += [Storage(bound_storage_name(name), kind, values[name].nbytes) for name, kind in bound.items()]
    placements = []
    for name, place in places.items():
        storage, offset = (ARENA, place) if isinstance(place, int) else place
        storage = bound_storage_name(storage) if storage in bound else storage
        value = values[name]
        placements.append(Placement(name, str(value.spec), Region(storage, offset, value.nbytes), ((0, 1),), 0))
    return MemoryPlan(
        graph=graph.name,
        fingerprint="",
        schedule=schedule or serial_schedule(graph),
        alignment=alignment,
        strategy="by hand",
        arena_bytes=arena_bytes,
        lower_bound_bytes=0,
        bound="peak",
        total_bytes=sum(value.nbytes for value in values.values()),
        view_bytes=0,
        inplace_bytes=0,
        storages=tuple(storages),
        placements=tuple(placements),
        outside=tuple(
            UnplannedValue(value.name, value.spec.type, value.spec.reason)
            for value in values.values()
            if isinstance(value.spec, Unplannable)
        ),
        peak=Peak(0, 0, ()),
        points=(),
        updated=tuple(value.name for value in graph.updated_values),
    )


def own_bytes(graph: Graph, alignment: int = 1, bound: bool = False, schedule: Schedule | None = None) -> MemoryPlan:
    """Every value in bytes of its own; with `bound`, inputs and weights in storages of their own."""
    places: dict[str, Place] = {}
    kinds: dict[str, str] = {}
    if bound:
        groups: tuple[tuple[str, tuple[Value, ...]], ...] = (("input", graph.inputs), ("weight", graph.weights))
        kinds = {value.name: kind for kind, group in groups for value in group if value.plannable}
    end = 0
    for value in graph.values():
        if value.name in kinds:
            places[value.name] = (value.name, 0)
        elif value.plannable:
            places[value.name] = end
            end += -(-value.nbytes // alignment) * alignment
    return plan_at(graph, places, end, alignment, kinds, schedule)


def moved(plan: MemoryPlan, places: Mapping[str, Place]) -> MemoryPlan:
    """The plan with some values somewhere else."""

    def region(placement: Placement) -> Region:
        place = places.get(placement.value, (placement.region.storage, placement.region.offset))
        storage, offset = (ARENA, place) if isinstance(place, int) else place
        storage = (
            bound_storage_name(storage)
            if bound_storage_name(storage) in {known.name for known in plan.storages}
            else storage
        )
        return Region(storage, offset, placement.region.nbytes)

    return replace(plan, placements=tuple(replace(p, region=region(p)) for p in plan.placements))


def with_arena(plan: MemoryPlan, arena_bytes: int) -> MemoryPlan:
    """The plan with an arena of another size."""
    storages = tuple(replace(s, nbytes=arena_bytes) if s.name == ARENA else s for s in plan.storages)
    return replace(plan, arena_bytes=arena_bytes, storages=storages)


def told_anew(graph: Graph, plan: MemoryPlan) -> MemoryPlan:
    """A plan whose schedule or copies were changed, with the fingerprint, points and lives that go with them.

    Where its renamed values have too many states to tell, lives stay as they were.
    """
    places, rolled = PlacementIndex(plan), {(record.loop, record.within): record for record in plan.rolled}
    points = build_timeline(redirect_updates(graph, plan), plan.schedule, places.pointers, rolled, MOST_POINTS)
    constants = {value.name for value in graph.constants}
    lasting = [i for i, place in enumerate(plan.placements) if place.value in constants]
    try:
        lives = must_live(StateSpace(points, places), lasting)
    except TooManyStatesError:
        lives = {i: place.live for i, place in enumerate(plan.placements)}
    return replace(
        plan,
        fingerprint=fingerprint(graph, plan.schedule),
        points=tuple(moment.point for moment in points.moments),
        placements=tuple(replace(place, live=lives.get(i, ())) for i, place in enumerate(plan.placements)),
    )
