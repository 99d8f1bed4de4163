"""A plan as allocation intervals of buffers, for viewers of allocators and for packers.

In one stream a buffer is a list of live segments, each with its own live range. In several streams a buffer is one
rectangular block, live when any of its values is live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.base.live_segments import LiveSegment, single_segment, split_into_segments
from sublet.base.ranges import Ranges, highest, holds, levels, merge
from sublet.plan.records import MemoryPlan, Peak, Placement
from sublet.plan.schedule import is_serial

Segmenter = Callable[[Iterable[LiveSegment]], tuple[LiveSegment, ...]]


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """A buffer of a plan: number, bytes in an arena, and live range.

    members   the placements sharing the bytes on purpose
    segments  the live segments, with addresses relative to `offset`
    """

    buffer: int
    arena: str
    offset: int
    nbytes: int
    live: Ranges
    members: tuple[Placement, ...]
    segments: tuple[LiveSegment, ...]

    @property
    def owner(self) -> Placement:
        """The placement with own bytes, shared by the remaining members."""
        return next((place for place in self.members if place.how == "own"), self.members[0])

    @property
    def values(self) -> tuple[str, ...]:
        """The names of all values in the buffer, in order."""
        return tuple(dict.fromkeys(place.value for place in self.members))

    def sizes_needed_at(self, point: int) -> tuple[int, ...]:
        """Return the sizes in bytes of the segments live at a point."""
        return tuple(strip.nbytes for strip in self.segments if holds(strip.live, point))


def segmenter_of(plan: MemoryPlan) -> Segmenter:
    """Return the function from members to segments of a buffer: live segments, or one block for several streams."""
    return (
        (lambda members: split_into_segments(members, plan.alignment)) if is_serial(plan.schedule) else single_segment
    )


def planned_buffers(plan: MemoryPlan) -> Iterator[PlannedBuffer]:
    """Yield the buffers of a plan in order of their numbers, without empty placements and without slices and rows."""
    return buffers_from(
        (place for place in plan.in_arenas if place.buffer >= 0 and not place.strides), segmenter_of(plan)
    )


def buffers_from(placements: Iterable[Placement], shape: Segmenter) -> Iterator[PlannedBuffer]:
    """Yield the buffers formed by placements, in order of their numbers, without buffers never live."""
    members: dict[int, list[Placement]] = {}
    for place in placements:
        if place.region.nbytes:
            members.setdefault(place.buffer, []).append(place)
    for buffer, places in sorted(members.items()):
        low, high = min(p.region.offset for p in places), max(p.region.end for p in places)
        live = merge(piece for place in places for piece in place.live if piece[0] < piece[1])
        if live:
            needed = (LiveSegment(p.region.offset - low, p.region.end - low, merge(p.live)) for p in places)
            yield PlannedBuffer(buffer, places[0].region.storage, low, high - low, live, tuple(places), shape(needed))


def live_bytes_curve(blocks: Iterable[PlannedBuffer]) -> list[tuple[int, int]]:
    """Return (point, bytes live from then on) at every change, ending at 0; shared bytes of a buffer count once."""
    return levels((strip.live, strip.nbytes) for block in blocks for strip in block.segments)


def find_peak(plan: MemoryPlan) -> Peak:
    """Return the first point with the most live bytes, and the values live there."""
    buffers = list(planned_buffers(plan))
    point, nbytes = highest(live_bytes_curve(buffers))
    members = {id(place) for block in buffers for place in block.members}
    alive = (place.value for place in plan.placements if id(place) in members and holds(place.live, point))
    return Peak(point, nbytes, tuple(dict.fromkeys(alive)))


def require_counted(plan: MemoryPlan, form: str) -> None:
    """Raise PlanError for a plan with uncounted values: an export in `form` would claim to be complete."""
    if plan.not_counted:
        names = ", ".join(repr(value.value) for value in plan.not_counted[:3])
        raise PlanError(
            f"{plan.graph}: {names}{', ...' if len(plan.not_counted) > 3 else ''} have no size in the plan, and "
            f"{form} cannot mark them (`sublet plan` gives the reasons)"
        )
