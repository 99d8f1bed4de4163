"""A plan as buffers that are taken and given back: what viewers of allocators, and packers, know.

In one stream a buffer needs what its values need: it is strips of bytes, each with a life of its own. In several
streams it is one block as long as any of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.base.ranges import Ranges, highest, holds, levels, merge
from sublet.base.strips import Strip, strips, whole
from sublet.plan.records import MemoryPlan, Peak, Placement
from sublet.plan.schedule import is_serial

Shape = Callable[[Iterable[Strip]], tuple[Strip, ...]]


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of a buffer, by number, in its arena, and when any of them are needed.

    members  share the bytes on purpose
    strips   which of the bytes are needed when, from `offset` on
    """

    buffer: int
    arena: str
    offset: int
    nbytes: int
    live: Ranges
    members: tuple[Placement, ...]
    strips: tuple[Strip, ...]

    @property
    def first(self) -> Placement:
        """The value whose bytes the others share."""
        return next((place for place in self.members if place.how == "own"), self.members[0])

    @property
    def values(self) -> tuple[str, ...]:
        """The names of all values in it, in order."""
        return tuple(dict.fromkeys(place.value for place in self.members))

    def needed(self, point: int) -> tuple[int, ...]:
        """The sizes of the strips that are needed at a point."""
        return tuple(strip.nbytes for strip in self.strips if holds(strip.live, point))


def shape(plan: MemoryPlan) -> Shape:
    """What the buffers of a plan need."""
    return (lambda members: strips(members, plan.alignment)) if is_serial(plan.schedule) else whole


def slots(plan: MemoryPlan) -> Iterator[Block]:
    """The buffers of a plan in order of their numbers; what has no bytes, or is a step of a whole, is none."""
    return blocks((place for place in plan.in_arenas if place.buffer >= 0 and not place.strides), shape(plan))


def blocks(placements: Iterable[Placement], shape: Shape) -> Iterator[Block]:
    """The buffers of placements in order of their numbers, but those that never live."""
    members: dict[int, list[Placement]] = {}
    for place in placements:
        if place.region.nbytes:
            members.setdefault(place.buffer, []).append(place)
    for buffer, places in sorted(members.items()):
        low, high = min(p.region.offset for p in places), max(p.region.end for p in places)
        live = merge(piece for place in places for piece in place.live if piece[0] < piece[1])
        if live:
            needed = (Strip(p.region.offset - low, p.region.end - low, merge(p.live)) for p in places)
            yield Block(buffer, places[0].region.storage, low, high - low, live, tuple(places), shape(needed))


def curve(blocks: Iterable[Block]) -> list[tuple[int, int]]:
    """(point, bytes that live from there on), a step function that ends at 0: bytes of a buffer count once."""
    return levels((strip.live, strip.nbytes) for block in blocks for strip in block.strips)


def peak(plan: MemoryPlan) -> Peak:
    """The first of the points with the most live bytes, and the values that are alive there."""
    known = list(slots(plan))
    point, nbytes = highest(curve(known))
    members = {id(place) for block in known for place in block.members}
    alive = (place.value for place in plan.placements if id(place) in members and holds(place.live, point))
    return Peak(point, nbytes, tuple(dict.fromkeys(alive)))


def require_counted(plan: MemoryPlan, form: str) -> None:
    """Raise PlanError for a plan that does not count everything: its picture elsewhere would claim that it does."""
    if plan.not_counted:
        names = ", ".join(repr(value.value) for value in plan.not_counted[:3])
        raise PlanError(
            f"{plan.graph}: {names}{', ...' if len(plan.not_counted) > 3 else ''} have no place in the plan, which "
            f"{form} could not tell (`sublet plan` says why)"
        )
