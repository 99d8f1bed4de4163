"""Derived claims of a foreign plan: live ranges, buffers, byte sums and copies.

A foreign plan declares offsets only. The functions here compute the rest by the checker's own analysis. The completed
plan can be drawn, and a correct plan then passes the checker like a plan by Sublet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sublet.checker.buffers import JOINED, REASONED_HOWS
from sublet.checker.liveness import Ranges, must_live
from sublet.checker.moves import copies_at
from sublet.checker.sharing_reasons import PlacementSets, SharingReasons, sharing_reasons
from sublet.checker.state_space import PlacementIndex, StateSpace
from sublet.checker.timeline import build_timeline
from sublet.ir.graph import Graph
from sublet.plan import CopiedMove, MemoryPlan, Placement
from sublet.plan.intervals import find_peak
from sublet.plan.schedule import Schedule

MAX_POINTS = 1 << 22
"""Limit of program points. Beyond, `timeline` raises TooLongError."""


def derive_claims(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with points, live ranges, buffers, peak, byte sums and copies filled in.

    The result renames no loop-carried value and has a single version of each loop body.
    """
    points = build_timeline(graph, schedule, frozenset(), {}, MAX_POINTS)
    walk = StateSpace(points, PlacementIndex(plan))
    constants = {value.name for value in graph.constants}
    lasting = [i for i, place in enumerate(plan.placements) if place.value in constants]
    live = must_live(walk, lasting)
    placements = tuple(_derive_placements(plan, sharing_reasons(walk), live))
    plan = replace(plan, placements=placements, points=tuple(moment.point for moment in points.moments))
    return replace(
        plan,
        peak=find_peak(plan),
        moves=tuple(dict.fromkeys(_copies_by_control_flow(walk))),
        total_bytes=_sum_of_bytes(plan, None),
        view_bytes=_sum_of_bytes(plan, {"view", "part", "slice", "row"}),
        inplace_bytes=_sum_of_bytes(plan, {"inplace", "carry"}),
    )


def _derive_placements(plan: MemoryPlan, sharing: SharingReasons, live: Mapping[int, Ranges]) -> Iterator[Placement]:
    """Yield each placement with live range, buffer, and the reason to share bytes with another value.

    Placements tied by a relation in `sharing`, with a common storage and at least 1 byte each, form a buffer. A single
    value of each buffer has the reason "own": the representative.
    """
    arenas = {storage.name for storage in plan.arenas}
    kin = PlacementSets()
    reasons: dict[int, tuple[str, int]] = {}
    for (how, one, other), _ in sorted(sharing.items(), key=lambda entry: entry[0]):
        places = plan.placements[one], plan.placements[other]
        if one == other or places[0].region.storage != places[1].region.storage or not _have_bytes(*places):
            continue
        kin.merge_sets(one, other)
        if one not in reasons or REASONED_HOWS.index(how) < REASONED_HOWS.index(reasons[one][0]):
            reasons[one] = (how, other)
    members: dict[int, list[int]] = {}
    for i in range(len(plan.placements)):
        members.setdefault(kin.find_set(i), []).append(i)
    first = {group: _representative_of(positions, reasons) for group, positions in members.items()}
    numbers: dict[int, int] = {}
    for i, place in enumerate(plan.placements):
        group = kin.find_set(i)
        in_arena = place.region.storage in arenas and place.region.nbytes > 0
        number = numbers.setdefault(group, len(numbers)) if in_arena else -1
        how, other = ("own", -1) if i == first[group] else reasons.get(i, (JOINED, first[group]))
        shares = "" if other < 0 else plan.placements[other].value
        yield replace(place, live=live.get(i, ()), buffer=number, how=how, shares=shares)


def _have_bytes(*places: Placement) -> bool:
    """Return True if every placement has at least 1 byte."""
    return all(place.region.nbytes for place in places)


def _representative_of(members: list[int], reasons: Mapping[int, tuple[str, int]]) -> int:
    """Return a buffer's representative: the first member without a reason to share bytes, else the first member."""
    return next((i for i in members if i not in reasons), members[0])


def _sum_of_bytes(plan: MemoryPlan, kinds: set[str] | None) -> int:
    """Return the bytes of all placements in arenas, or only of placements with a reason in `kinds`."""
    return sum(place.region.nbytes for place in plan.in_arenas if kinds is None or place.how in kinds)


def _copies_by_control_flow(walk: StateSpace) -> Iterator[CopiedMove]:
    """Yield the copies made by control flow: a foreign plan renames no loop-carried value, so every carry is copied."""
    for visit in walk.visits:
        for destination, sources, nbytes in copies_at(walk, visit):
            yield CopiedMove(walk.moment_of(visit).point.edge, min(sources), destination.name, nbytes)
