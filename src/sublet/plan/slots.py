"""A plan as blocks of bytes that are taken and given back: what viewers of allocators, and packers, know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.base.ranges import Ranges, levels, merge
from sublet.plan.records import MemoryPlan, Placement


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of a buffer, by number, in its arena, and when they are needed; `members` share them on purpose."""

    buffer: int
    arena: str
    offset: int
    nbytes: int
    live: Ranges
    members: tuple[Placement, ...]

    @property
    def first(self) -> Placement:
        """The value whose bytes the others share."""
        return next((place for place in self.members if place.how == "own"), self.members[0])

    @property
    def values(self) -> tuple[str, ...]:
        """The names of all values in it, in order."""
        return tuple(dict.fromkeys(place.value for place in self.members))


def slots(plan: MemoryPlan) -> Iterator[Block]:
    """The buffers of a plan in order of their numbers; what has no bytes, or is a step of a whole, is none."""
    return blocks(place for place in plan.in_arenas if place.buffer >= 0 and not place.strides)


def blocks(placements: Iterable[Placement]) -> Iterator[Block]:
    """The buffers of placements in order of their numbers, but those that never live."""
    members: dict[int, list[Placement]] = {}
    for place in placements:
        if place.region.nbytes:
            members.setdefault(place.buffer, []).append(place)
    for buffer, places in sorted(members.items()):
        low, high = min(p.region.offset for p in places), max(p.region.end for p in places)
        live = merge(piece for place in places for piece in place.live if piece[0] < piece[1])
        if live:
            yield Block(buffer, places[0].region.storage, low, high - low, live, tuple(places))


def curve(blocks: Iterable[Block]) -> list[tuple[int, int]]:
    """(point, bytes that live from there on), a step function that ends at 0: a buffer counts whole, and once."""
    return levels((block.live, block.nbytes) for block in blocks)


def require_counted(plan: MemoryPlan, form: str) -> None:
    """Raise PlanError for a plan that does not count everything: its picture elsewhere would claim that it does."""
    if plan.not_counted:
        names = ", ".join(repr(value.value) for value in plan.not_counted[:3])
        raise PlanError(
            f"{plan.graph}: {names}{', ...' if len(plan.not_counted) > 3 else ''} have no place in the plan, which "
            f"{form} could not tell (`sublet plan` says why)"
        )
