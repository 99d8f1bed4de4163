"""The view model: everything a picture of a plan or of a packing shows, as plain data.

Time runs over the points of the plan (or the times of the problem), addresses from 0 to the arena's
size. A placement is one rectangle for each range of points at which it is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from sublet.base.bytesize import human, percent
from sublet.base.errors import ProblemError
from sublet.base.ranges import highest, holds
from sublet.base.strips import whole
from sublet.packing.problem import Packing, Problem
from sublet.plan import ARENA, POINTER, UNLIMITED, MemoryPlan, Peak, Placement, Region, Storage, fragmentation
from sublet.plan.advised import Advised
from sublet.plan.coverage import assumptions, coverage
from sublet.plan.slots import Block, Shape, blocks, curve, shape
from sublet.viz.arenas import Arena, begins
from sublet.viz.groups import NO_GROUPS, Groups, groups
from sublet.viz.loops import Band, bands, when

Curve = tuple[tuple[int, int], ...]
"""(point, bytes live from there on)."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Points [begin, end) x bytes [offset, offset + nbytes) of the placement at this position."""

    begin: int
    end: int
    offset: int
    nbytes: int
    placement: int


@dataclass(frozen=True, slots=True)
class Beside:
    """Another plan in the same picture: what it is called, its figures, and the first of its placements there."""

    label: str
    arena_bytes: int
    curve: Curve
    first: int


@dataclass(frozen=True)
class Picture:
    """What is drawn.

    placements  the values in the arena; `buffer` is never -1 here
    rectangles  in the order of drawing: by begin, larger first
    blocks      one a buffer, by first use; the position is the buffer's colour
    curve       (point, bytes live from there on), a step function that ends at 0
    bound       storages outside the arena: (kind, bytes)
    begin, end  the range of time
    arenas      from the lowest address upwards; of each the bytes begin at an address of the picture
    groups      ops and scopes, of the points and of what makes each placement
    budget      bytes that the arena is held against, None for no budget
    label       what the plan is called where others are drawn beside it, "" for alone
    others      other plans on the same axis; title, arenas, placements and what is drawn of them are of all
    bands       the copies of the bodies of loops
    rounds      for each placement in which rounds of loops its value is there; "" for always
    pointers    the values that have no bytes of their own
    advice      what would lower the arena, if that was asked
    claimed     why what is drawn is not proven; "" when a check has proven it
    coverage    what the figures do not count, in words; "" when they count everything
    outside     the values that are not counted: name, type and reason
    assumed     what caller and file told of shapes, in words
    """

    title: str
    strategy: str
    alignment: int
    arena_bytes: int
    lower_bound_bytes: int
    lower_bound_source: str
    total_bytes: int
    view_bytes: int
    inplace_bytes: int
    bound: tuple[tuple[str, int], ...]
    placements: tuple[Placement, ...]
    rectangles: tuple[Rectangle, ...]
    blocks: tuple[Block, ...]
    curve: Curve
    peak: Peak
    points: tuple[str, ...]
    begin: int
    end: int
    bands: tuple[Band, ...] = ()
    rounds: tuple[str, ...] = ()
    pointers: tuple[Placement, ...] = ()
    advice: Advised | None = None
    claimed: str = ""
    coverage: str = ""
    outside: tuple[tuple[str, str, str], ...] = ()
    assumed: str = ""
    arenas: tuple[Arena, ...] = ()
    groups: Groups = NO_GROUPS
    budget: int | None = None
    label: str = ""
    others: tuple[Beside, ...] = ()

    @property
    def heading(self) -> str:
        """The title, and why what is drawn is not proven."""
        return f"{self.title} ({self.claimed})" if self.claimed else self.title

    @property
    def whose(self) -> str:
        """Of which plan peak and curve are, where several are drawn."""
        return f" of {self.label}" if self.others else ""

    @property
    def sizes(self) -> str:
        """The arenas of all plans that are drawn, in words."""
        named = [(self.label, self.arena_bytes), *((other.label, other.arena_bytes) for other in self.others)]
        return f"arena {', '.join(f'{human(nbytes)} of {label}' for label, nbytes in named)}"

    @property
    def gap(self) -> float | None:
        """Fragmentation over the lower bound; None when something is not counted, or there are several arenas."""
        if self.coverage or len(self.arenas) > 1:
            return None
        return fragmentation(self.arena_bytes, self.lower_bound_bytes)

    @property
    def proof(self) -> str:
        """What is proven of the arena, in words that claim no more."""
        together = f"of {len(self.arenas)} arenas together"
        return self.coverage or (together if self.gap is None else f"gap {percent(self.gap)}")

    @cached_property
    def height(self) -> int:
        """The highest address drawn, at least 1."""
        tops = (block.offset + block.nbytes for block in self.blocks)
        return max([1, *(arena.end for arena in self.arenas), *tops])


def rectangles(plan: MemoryPlan, claimed: str = "") -> Picture:
    """The picture of the arena of a plan; what is bound outside the arena is only summed up.

    Several arenas are drawn one above the other, the first one lowest.
    """
    arenas = _arenas(plan)
    placements = _own_buffers(_drawn(plan, arenas))
    drawn = _blocks(placements, shape(plan))
    ends = [place.end for place in placements]
    sums: dict[str, int] = {}
    for storage in plan.storages:
        if storage.kind != ARENA:
            sums[storage.kind] = sums.get(storage.kind, 0) + storage.nbytes
    return Picture(
        title=plan.graph,
        strategy=plan.strategy,
        alignment=plan.alignment,
        arena_bytes=plan.arena_bytes,
        lower_bound_bytes=plan.lower_bound_bytes,
        lower_bound_source=plan.bound,
        total_bytes=plan.total_bytes,
        view_bytes=plan.view_bytes,
        inplace_bytes=plan.inplace_bytes,
        bound=tuple(sums.items()),
        placements=placements,
        rectangles=_rectangles(placements),
        blocks=drawn,
        curve=tuple(curve(drawn)),
        peak=plan.peak,
        points=tuple(map(str, plan.points)),
        begin=0,
        end=max([len(plan.points), 1, *ends]),
        bands=bands(plan),
        rounds=tuple(when(place, plan) for place in placements),
        pointers=tuple(place for place in plan.placements if place.how == POINTER),
        claimed=claimed,
        coverage=coverage(plan),
        outside=tuple((value.value, value.type, value.reason) for value in plan.not_counted),
        assumed=assumptions(plan),
        arenas=arenas,
        groups=groups(plan.points, plan.nodes, [place.producer for place in placements]),
    )


def _arenas(plan: MemoryPlan) -> tuple[Arena, ...]:
    """Where the arenas are drawn. One has the bound of the plan, of several each that of what lies in it."""
    if len(plan.arenas) < 2:
        capacity = max((arena.capacity for arena in plan.arenas), default=UNLIMITED)
        return (Arena(ARENA, 0, plan.arena_bytes, plan.lower_bound_bytes, capacity),)
    needed = shape(plan)
    bounds = [highest(curve(blocks(_own_buffers(_in(plan, storage)), needed)))[1] for storage in plan.arenas]
    starts = begins(max(storage.nbytes, bound) for storage, bound in zip(plan.arenas, bounds, strict=True))
    return tuple(
        Arena(storage.name, begin, storage.nbytes, bound, storage.capacity)
        for storage, begin, bound in zip(plan.arenas, starts, bounds, strict=True)
    )


def _in(plan: MemoryPlan, storage: Storage) -> Iterator[Placement]:
    return (place for place in plan.in_arenas if place.region.storage == storage.name)


def _drawn(plan: MemoryPlan, arenas: tuple[Arena, ...]) -> Iterator[Placement]:
    """The placements in arenas, at the addresses of the picture."""
    begin = {storage.name: arena.begin for storage, arena in zip(plan.arenas, arenas, strict=False)}
    for place in plan.in_arenas:
        region = place.region
        yield replace(place, region=replace(region, offset=begin[region.storage] + region.offset))


def packing_rectangles(
    problem: Problem, packing: Packing, lower_bound_bytes: int | None = None, bound: str = "peak"
) -> Picture:
    """The picture of a packing. Without a lower bound, the peak of the lifetimes is drawn as one.

    Raises ProblemError when the packing has another number of buffers.
    """
    if len(packing.offsets) != len(problem.buffers):
        raise ProblemError(
            f"the packing has {len(packing.offsets)} offsets for the {len(problem.buffers)} buffers of the problem"
        )
    placements = tuple(_placements_of(problem, packing))
    drawn = _blocks(placements, whole)
    steps = tuple(curve(drawn))
    peak = _peak(steps, placements)
    low = peak.nbytes if lower_bound_bytes is None else lower_bound_bytes
    return Picture(
        title=problem.name,
        strategy=packing.strategy,
        alignment=max((buffer.alignment for buffer in problem.buffers), default=1),
        arena_bytes=packing.arena_bytes,
        lower_bound_bytes=low,
        lower_bound_source=bound,
        total_bytes=sum(buffer.size for buffer in problem.buffers),
        view_bytes=0,
        inplace_bytes=0,
        bound=(),
        placements=placements,
        rectangles=_rectangles(placements),
        blocks=drawn,
        curve=steps,
        peak=peak,
        points=(),
        begin=min((place.begin for place in placements), default=0),
        end=max((place.end for place in placements), default=1),
        arenas=(Arena(ARENA, 0, packing.arena_bytes, low),),
    )


def point_name(picture: Picture, point: int) -> str:
    """What runs at a point, or the bare time when the picture is of a packing."""
    if 0 <= point < len(picture.points):
        return picture.points[point]
    return f"t = {point}"


def reserved(picture: Picture) -> tuple[tuple[int, Block], ...]:
    """The blocks of which some value needs only a part, with their positions, where the rest is kept for the others."""
    smallest: dict[int, int] = {}
    for place in picture.placements:
        smallest[place.buffer] = min(place.region.nbytes, smallest.get(place.buffer, place.region.nbytes))
    kept = ((i, block) for i, block in enumerate(picture.blocks) if len(block.strips) == 1)
    return tuple((i, block) for i, block in kept if smallest[block.buffer] < block.nbytes)


def live_columns(picture: Picture, columns: int) -> list[int]:
    """The most live bytes in each of so many equal parts of the time."""
    highest = [0] * columns
    span = picture.end - picture.begin
    ends = [point for point, _ in picture.curve[1:]] + [picture.end]
    for (point, level), end in zip(picture.curve, ends, strict=False):
        first = (point - picture.begin) * columns // span
        last = -(-(end - picture.begin) * columns // span)
        for column in range(first, min(max(last, first + 1), columns)):
            highest[column] = max(highest[column], level)
    return highest


def _placements_of(problem: Problem, packing: Packing) -> Iterator[Placement]:
    for position, (buffer, offset) in enumerate(zip(problem.buffers, packing.offsets, strict=True)):
        yield Placement(
            value=buffer.id,
            spec="",
            region=Region(ARENA, offset, buffer.size),
            live=tuple(buffer.pieces),
            buffer=position,
        )


def _own_buffers(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    """Placements without a buffer get one of their own, so that nothing is counted together by mistake."""
    placed = tuple(placements)
    free = 1 + max((place.buffer for place in placed), default=-1)
    numbered: list[Placement] = []
    for place in placed:
        if place.buffer < 0:
            place = replace(place, buffer=free)
            free += 1
        numbered.append(place)
    return tuple(numbered)


def _rectangles(placements: tuple[Placement, ...]) -> tuple[Rectangle, ...]:
    pieces = [
        Rectangle(begin, end, place.region.offset, place.region.nbytes, position)
        for position, place in enumerate(placements)
        for begin, end in place.live
        if begin < end and place.region.nbytes > 0
    ]
    return tuple(sorted(pieces, key=lambda piece: (piece.begin, -piece.nbytes, piece.placement)))


def _blocks(placements: tuple[Placement, ...], shape: Shape) -> tuple[Block, ...]:
    return tuple(sorted(blocks(placements, shape), key=lambda block: (block.live[0][0], block.offset, block.buffer)))


def _peak(steps: Curve, placements: tuple[Placement, ...]) -> Peak:
    """The first point with the most live bytes, and who is alive there."""
    point, nbytes = highest(steps)
    alive = tuple(place.value for place in placements if holds(place.live, point))
    return Peak(point, nbytes, alive)
