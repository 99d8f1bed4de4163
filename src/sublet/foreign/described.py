"""What a plan says besides where values lie, worked out for one that says nothing: lives, buffers, sums, copies.

A foreign plan tells offsets only. Its lives and what shares bytes are found here as the checker finds them when it
judges what a plan claims, so that the plan can be drawn, and be judged as any other if it is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sublet.checker.blocks import HOWS, JOINED
from sublet.checker.kinship import Kin, Ties, ties
from sublet.checker.lives import Ranges, needed
from sublet.checker.moves import copied
from sublet.checker.timeline import timeline
from sublet.checker.walk import Places, Walk
from sublet.ir.graph import Graph
from sublet.plan import CopiedMove, MemoryPlan, Placement
from sublet.plan.schedule import Schedule
from sublet.plan.slots import peak

MOST_POINTS = 1 << 22


def described(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> MemoryPlan:
    """The plan with points, lives, buffers, peak, sums and copies. It has no pointers and no copies of bodies."""
    points = timeline(graph, schedule, frozenset(), {}, MOST_POINTS)
    walk = Walk(points, Places(plan))
    constants = {value.name for value in graph.constants}
    lasting = [i for i, place in enumerate(plan.placements) if place.value in constants]
    live = needed(walk, lasting)
    placements = tuple(_placements(plan, ties(walk), live))
    plan = replace(plan, placements=placements, points=tuple(moment.point for moment in points.moments))
    return replace(
        plan,
        peak=peak(plan),
        moves=tuple(dict.fromkeys(_moves(walk))),
        total_bytes=_sum(plan, None),
        view_bytes=_sum(plan, {"view", "part", "slice", "row"}),
        inplace_bytes=_sum(plan, {"inplace", "carry"}),
    )


def _placements(plan: MemoryPlan, found: Ties, live: Mapping[int, Ranges]) -> Iterator[Placement]:
    """The placements with their lives, and why values are the same bytes: one of each buffer came first."""
    arenas = {storage.name for storage in plan.arenas}
    kin = Kin()
    reasons: dict[int, tuple[str, int]] = {}
    for (how, one, other), _ in sorted(found.items(), key=lambda entry: entry[0]):
        places = plan.placements[one], plan.placements[other]
        if one == other or places[0].region.storage != places[1].region.storage or not _sized(*places):
            continue
        kin.join(one, other)
        if one not in reasons or HOWS.index(how) < HOWS.index(reasons[one][0]):
            reasons[one] = (how, other)
    members: dict[int, list[int]] = {}
    for i in range(len(plan.placements)):
        members.setdefault(kin.of(i), []).append(i)
    first = {group: _first(several, reasons) for group, several in members.items()}
    numbers: dict[int, int] = {}
    for i, place in enumerate(plan.placements):
        group = kin.of(i)
        in_arena = place.region.storage in arenas and place.region.nbytes > 0
        number = numbers.setdefault(group, len(numbers)) if in_arena else -1
        how, other = ("own", -1) if i == first[group] else reasons.get(i, (JOINED, first[group]))
        shares = "" if other < 0 else plan.placements[other].value
        yield replace(place, live=live.get(i, ()), buffer=number, how=how, shares=shares)


def _sized(*places: Placement) -> bool:
    return all(place.region.nbytes for place in places)


def _first(members: list[int], reasons: Mapping[int, tuple[str, int]]) -> int:
    """Of a buffer the value that has no reason to share bytes."""
    return next((i for i in members if i not in reasons), members[0])


def _sum(plan: MemoryPlan, kinds: set[str] | None) -> int:
    return sum(place.region.nbytes for place in plan.in_arenas if kinds is None or place.how in kinds)


def _moves(walk: Walk) -> Iterator[CopiedMove]:
    """What control flow copies, since no value of such a plan is a pointer."""
    for visit in walk.visits:
        for destination, sources, nbytes in copied(walk, visit):
            yield CopiedMove(walk.moment(visit).point.edge, min(sources), destination.name, nbytes)
