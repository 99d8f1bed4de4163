"""The view model: all data shown by a picture of a plan or a packing.

Time runs over the points of the plan (or the times of the problem), addresses from 0 to the size of the arena. A
placement gives one rectangle for each of its live ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sublet.base.errors import ProblemError
from sublet.base.formatting import human, percent
from sublet.base.ranges import LiveCurve, holds, single_segment
from sublet.packing.problem import Packing, Problem
from sublet.plan import (
    ARENA,
    POINTER,
    RUN,
    UNLIMITED,
    MemoryPlan,
    NodeDescription,
    Peak,
    Placement,
    PlanPoint,
    Region,
    Storage,
    fragmentation,
)
from sublet.plan.statistics import (
    PlannedBuffer,
    Segmenter,
    assumptions,
    buffers_from,
    bytes_outside,
    coverage,
    live_curve_of,
    segmenter_of,
)
from sublet.plan.verdict import Advised
from sublet.viz.loop_bands import Band, iterations_at, loop_bands

# The arenas of a picture: each arena has separate addresses, so several arenas are drawn as bands, stacked upwards.

GAP_DIVISOR = 20
"""The gap between two arenas is the height of all arenas divided by this number."""


@dataclass(frozen=True, slots=True)
class DrawnArena:
    """An arena with byte 0 drawn at the address `begin`.

    nbytes     the size of the arena
    bound      a lower bound for the size, over all placements of the buffers in the arena
    capacity   the maximum size of the memory region, or UNLIMITED
    """

    name: str
    begin: int
    nbytes: int
    bound: int
    capacity: int = UNLIMITED

    @property
    def end(self) -> int:
        """The highest address drawn."""
        return self.begin + max(self.nbytes, self.bound)


def drawn_begins(heights: Iterable[int]) -> list[int]:
    """Return the drawn begin addresses of arenas with the given heights, with gaps between the arenas."""
    sizes = list(heights)
    gap = max(1, sum(sizes) // GAP_DIVISOR)
    begin_addresses, begin = [], 0
    for height in sizes:
        begin_addresses.append(begin)
        begin += height + gap
    return begin_addresses


# Groups of nodes in a picture: by op, and by scope, the part of the network containing the node.
#
# The scope comes from names: "/layer1/0/conv/Conv" lies in "layer1/0". Exporters and people write the path of a module
# into the names of nodes, with "/" or "." between the parts, or note the path separately. A picture groups nodes by the
# first parts of the path, with as many parts as give distinguishable groups.

MAX_GROUPS = 16
"""Maximum of distinguishable groups in a picture."""

MIN_GROUPS = 3
"""Minimum of groups: with fewer groups, a picture by scope is useless."""

_SEPARATOR = re.compile(r"[/.]")
_MODULE = re.compile(r"in ([^,]+)")


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """Op, scope and source by point and by placement; "" if unknown."""

    point_ops: tuple[str, ...] = ()
    point_scopes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


NO_GROUPS = NodeGroups()


def group_nodes(points: Sequence[PlanPoint], nodes: Sequence[NodeDescription], producers: Sequence[str]) -> NodeGroups:
    """Return the groups of points by the nodes running there, and of placements by the producing nodes."""
    by_name = {node.name: node for node in nodes}
    scope_of = dict(zip(by_name, scopes_of(list(by_name.values())), strict=True))
    running = [by_name.get(point.node) if point.kind == RUN else None for point in points]
    producing = [by_name.get(name) for name in producers]
    return NodeGroups(
        tuple(_op_name(node) for node in running),
        tuple(scope_of[node.name] if node else "" for node in running),
        tuple(_op_name(node) for node in producing),
        tuple(scope_of[node.name] if node else "" for node in producing),
        tuple(node.source if node else "" for node in producing),
    )


def _op_name(node: NodeDescription | None) -> str:
    """Return the op without its dialect: "FusedConv" for "onnx.com.microsoft.FusedConv"."""
    return node.op.rpartition(".")[2] if node else ""


def scopes_of(nodes: Sequence[NodeDescription]) -> tuple[str, ...]:
    """Return the scope of each node; "" for a node without a scope, and for all nodes if there are too few scopes.

    The scopes are cut to the number of parts with the most distinguishable groups.
    """
    paths = [_module_path(node) for node in nodes]
    deepest = max(map(len, paths), default=0)
    selected = [""] * len(nodes)
    for depth in range(1, deepest + 1):
        prefixes = ["/".join(path[:depth]) for path in paths]
        count = _count_groups(prefixes)
        if depth > 1 and count > MAX_GROUPS:
            break
        selected = prefixes
    return tuple(selected) if _count_groups(selected) >= MIN_GROUPS else ("",) * len(nodes)


def _module_path(node: NodeDescription) -> tuple[str, ...]:
    """Return the path of the module noted by the front-end, or the name of the node without the last part."""
    module = _MODULE.match(node.source)
    parts = _SEPARATOR.split(module[1]) if module else _SEPARATOR.split(node.name)[:-1]
    return tuple(part for part in parts if part)


def _count_groups(scopes_: Iterable[str]) -> int:
    """Return the number of distinct scopes."""
    return len({scope for scope in scopes_ if scope})


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Points [begin, end) x bytes [offset, offset + nbytes) of the placement at position `placement`."""

    begin: int
    end: int
    offset: int
    nbytes: int
    placement: int


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """Another plan in the same picture: label, figures, and the position of the first placement."""

    label: str
    arena_bytes: int
    curve: LiveCurve
    first_placement: int


@dataclass(frozen=True)
class Picture:
    """All data of a drawing.

    placements  the values in the arena; `buffer` is never -1
    rectangles  in drawing order: by begin, larger first
    blocks      one a buffer, by first use; the position selects the colour
    curve       the live bytes over the points
    bound       storages outside the arena: (kind, bytes)
    begin, end  the range of time
    arenas      from the lowest address upwards, each at its drawn address
    groups      ops and scopes of points and of placements
    budget      the memory budget in bytes; None without one
    label       the name of the plan, if further plans are drawn; "" for a single plan
    others      further plans on the same axis; title, arenas, placements and drawn parts cover all plans
    bands       the body versions of loops
    rounds      for each placement, the iterations with the value at the placement; "" for always
    pointers    the renamed loop-carried values, without their own bytes
    advice      changes with a smaller arena, if requested
    claimed     the reason for missing proof; "" if a check has proven the plan
    coverage    a text on values not counted by the figures; "" if all values are counted
    outside     the values not counted: name, type and reason
    assumed     a text on shapes assumed by the caller or the file
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
    blocks: tuple[PlannedBuffer, ...]
    curve: LiveCurve
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
    arenas: tuple[DrawnArena, ...] = ()
    groups: NodeGroups = NO_GROUPS
    budget: int | None = None
    label: str = ""
    others: tuple[ComparedPlan, ...] = ()

    @property
    def heading(self) -> str:
        """The title, with the reason for missing proof."""
        return f"{self.title} ({self.claimed})" if self.claimed else self.title

    @property
    def plan_suffix(self) -> str:
        """The suffix with the plan of peak and curve, if several plans are drawn."""
        return f" of {self.label}" if self.others else ""

    @property
    def arena_sizes(self) -> str:
        """The arenas of all drawn plans, as text."""
        named = [(self.label, self.arena_bytes), *((other.label, other.arena_bytes) for other in self.others)]
        return f"arena {', '.join(f'{human(nbytes)} of {label}' for label, nbytes in named)}"

    @property
    def gap(self) -> float | None:
        """The fragmentation over the lower bound; None with uncounted values, several arenas, or without a bound."""
        if self.coverage or len(self.arenas) > 1 or not self.has_bound:
            return None
        return fragmentation(self.arena_bytes, self.lower_bound_bytes)

    @property
    def has_bound(self) -> bool:
        """True if a lower bound is known."""
        return self.lower_bound_bytes > 0 or self.arena_bytes == 0

    @property
    def bound_words(self) -> str:
        """The lower bound as text."""
        return f"lower bound {human(self.lower_bound_bytes)}" if self.has_bound else "no lower bound"

    def without_bound(self) -> Picture:
        """Return the picture of a wrong plan: a plan refused by the checker has neither a bound nor a gap."""
        arenas = tuple(replace(arena, bound=0) for arena in self.arenas)
        return replace(self, lower_bound_bytes=0, arenas=arenas)

    @property
    def proof_words(self) -> str:
        """The proven part of the claims on the arena, as text; "" without a bound."""
        if not self.has_bound:
            return ""
        together = f"of {len(self.arenas)} arenas together"
        return self.coverage or (together if self.gap is None else f"gap {percent(self.gap)}")

    @cached_property
    def top_address(self) -> int:
        """The highest address drawn, at least 1."""
        tops = (block.offset + block.nbytes for block in self.blocks)
        return max([1, *(arena.end for arena in self.arenas), *tops])


def picture_of_plan(plan: MemoryPlan, claimed: str = "") -> Picture:
    """Return the picture of a plan's arena; storages outside the arena are only summed.

    Several arenas are drawn one above the other, the first arena at the bottom.
    """
    arenas = _drawn_arenas(plan)
    placements = _with_buffer_numbers(_drawn_placements(plan, arenas))
    buffers = _ordered_buffers(placements, segmenter_of(plan))
    groups = group_nodes(plan.points, plan.nodes, [place.producer for place in placements])
    rectangles, bands = _placement_rectangles(placements), loop_bands(plan)
    rounds = tuple(iterations_at(place, plan) for place in placements)
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
        bound=tuple(bytes_outside(plan).items()),
        placements=placements,
        rectangles=rectangles,
        blocks=buffers,
        curve=live_curve_of(buffers),
        peak=plan.peak,
        points=tuple(map(str, plan.points)),
        begin=0,
        end=max([len(plan.points), 1, *(place.end for place in placements)]),
        bands=bands,
        rounds=rounds,
        pointers=tuple(place for place in plan.placements if place.how == POINTER),
        claimed=claimed,
        coverage=coverage(plan),
        outside=tuple((value.value, value.type, value.reason) for value in plan.not_counted),
        assumed=assumptions(plan),
        arenas=arenas,
        groups=groups,
    )


def _drawn_arenas(plan: MemoryPlan) -> tuple[DrawnArena, ...]:
    """Return the drawn arenas. A single arena has the bound of the plan; several arenas have separate bounds."""
    if len(plan.arenas) < 2:
        capacity = max((arena.capacity for arena in plan.arenas), default=UNLIMITED)
        return (DrawnArena(ARENA, 0, plan.arena_bytes, plan.lower_bound_bytes, capacity),)
    needed = segmenter_of(plan)
    bounds = [
        live_curve_of(buffers_from(_with_buffer_numbers(_placements_in(plan, storage)), needed)).peak_bytes
        for storage in plan.arenas
    ]
    starts = drawn_begins(max(storage.nbytes, bound) for storage, bound in zip(plan.arenas, bounds, strict=True))
    return tuple(
        DrawnArena(storage.name, begin, storage.nbytes, bound, storage.capacity)
        for storage, begin, bound in zip(plan.arenas, starts, bounds, strict=True)
    )


def _placements_in(plan: MemoryPlan, storage: Storage) -> Iterator[Placement]:
    """Yield the placements in an arena."""
    return (place for place in plan.in_arenas if place.region.storage == storage.name)


def _drawn_placements(plan: MemoryPlan, arenas: tuple[DrawnArena, ...]) -> Iterator[Placement]:
    """Yield the placements in arenas, at drawn addresses."""
    begin = {storage.name: arena.begin for storage, arena in zip(plan.arenas, arenas, strict=False)}
    for place in plan.in_arenas:
        region = place.region
        yield replace(place, region=replace(region, offset=begin[region.storage] + region.offset))


def picture_of_packing(
    problem: Problem, packing: Packing, lower_bound_bytes: int | None = None, bound: str = "peak"
) -> Picture:
    """Return the picture of a packing. Without `lower_bound_bytes`, the peak of the lifetimes serves as the bound.

    Raises ProblemError if the packing has another number of buffers than the problem.
    """
    if len(packing.offsets) != len(problem.buffers):
        raise ProblemError(
            f"the packing has {len(packing.offsets)} offsets for the {len(problem.buffers)} buffers of the problem"
        )
    placements = tuple(_placements_of(problem, packing))
    buffers = _ordered_buffers(placements, single_segment)
    curve = live_curve_of(buffers)
    peak = _first_peak(curve, placements)
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
        rectangles=_placement_rectangles(placements),
        blocks=buffers,
        curve=curve,
        peak=peak,
        points=(),
        begin=min((place.begin for place in placements), default=0),
        end=max((place.end for place in placements), default=1),
        arenas=(DrawnArena(ARENA, 0, packing.arena_bytes, low),),
    )


def point_label(picture: Picture, point: int) -> str:
    """Return the label of a point, or the time for a packing."""
    if 0 <= point < len(picture.points):
        return picture.points[point]
    return f"t = {point}"


def partly_used_buffers(picture: Picture) -> tuple[tuple[int, PlannedBuffer], ...]:
    """Return the buffers with some smaller value, and their positions; the rest is reserved for larger values."""
    smallest: dict[int, int] = {}
    for place in picture.placements:
        smallest[place.buffer] = min(place.region.nbytes, smallest.get(place.buffer, place.region.nbytes))
    candidates = ((i, block) for i, block in enumerate(picture.blocks) if len(block.segments) == 1)
    return tuple((i, block) for i, block in candidates if smallest[block.buffer] < block.nbytes)


def _placements_of(problem: Problem, packing: Packing) -> Iterator[Placement]:
    """Yield a placement for each buffer of a problem."""
    for position, (buffer, offset) in enumerate(zip(problem.buffers, packing.offsets, strict=True)):
        yield Placement(
            value=buffer.id,
            spec="",
            region=Region(ARENA, offset, buffer.size),
            live=tuple(buffer.pieces),
            buffer=position,
        )


def _with_buffer_numbers(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    """Return the placements with new buffer numbers for those without a buffer, to keep separate values apart."""
    placed = tuple(placements)
    next_number = 1 + max((place.buffer for place in placed), default=-1)
    numbered: list[Placement] = []
    for place in placed:
        if place.buffer < 0:
            place = replace(place, buffer=next_number)
            next_number += 1
        numbered.append(place)
    return tuple(numbered)


def drawn_offsets(placements: Sequence[Placement]) -> list[int]:
    """Return the offset of each placement in a drawing, where the rows of a value lie together in their buffer."""
    lowest: dict[int, int] = {}
    for place in placements:
        lowest[place.buffer] = min(place.region.offset, lowest.get(place.buffer, place.region.offset))
    return [
        lowest[place.buffer] + (place.region.offset - lowest[place.buffer]) * place.region.rows
        if place.region.rows > 1
        else place.region.offset
        for place in placements
    ]


def _placement_rectangles(placements: tuple[Placement, ...]) -> tuple[Rectangle, ...]:
    """Return the rectangles of the placements, in drawing order."""
    offsets = drawn_offsets(placements)
    pieces = [
        Rectangle(begin, end, offsets[position], place.region.nbytes, position)
        for position, place in enumerate(placements)
        for begin, end in place.live
        if begin < end and place.region.nbytes > 0
    ]
    return tuple(sorted(pieces, key=lambda piece: (piece.begin, -piece.nbytes, piece.placement)))


def _ordered_buffers(placements: tuple[Placement, ...], shape: Segmenter) -> tuple[PlannedBuffer, ...]:
    """Return the buffers of the placements, by first use."""
    return tuple(
        sorted(buffers_from(placements, shape), key=lambda block: (block.live[0][0], block.offset, block.buffer))
    )


def _first_peak(curve: LiveCurve, placements: tuple[Placement, ...]) -> Peak:
    """Return the first point with the most live bytes, and the values live there."""
    point, nbytes = curve.peak
    alive = tuple(place.value for place in placements if holds(place.live, point))
    return Peak(point, nbytes, alive)
