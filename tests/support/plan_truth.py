"""Whether a changed plan still tells the truth: held against the plan it was made from, and the facts of the program.

Independent of the checker: what a plan says of its program was derived by the planner, so a changed one must say the
same, in whatever order and with whatever numbers for its buffers. What it may say in other words, such as a weaker
bound, or another reason why two values are the same bytes, is worked out again here, by brute force.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from sublet.ir.graph import CaseOf, Graph, While
from sublet.ops.op import lookup
from sublet.plan import OPEN, POINTER, MemoryPlan, Placement

Key = tuple[str, frozenset[Any]]


def lies(graph: Graph, plan: MemoryPlan, was: MemoryPlan) -> list[str]:
    """What a plan says that is not so; `was` is a true plan of the same graph, which it was made from."""
    found = [name for name, one in _told(plan).items() if one != _told(was)[name]]
    found += _lives(plan, was)
    found += [f"sum {name}" for name, one in _sums(plan).items() if getattr(plan, name) != one]
    found += _heads(plan, was)
    found += [f"how of {place.value}" for place in plan.placements if not _shared(graph, plan, place)]
    return [*found, *_bound(plan, was)]


def _key(plan: MemoryPlan, place: Placement) -> Key:
    """A value, and in which copies of bodies it is there; to be in all copies of a body is to be in the body."""
    there = set(place.copies)
    for record in sorted(plan.rolled, key=lambda record: -len(record.within)):
        depth = len(record.within)
        ends = {copy[depth + 1 :] for copy in there if copy[:depth] == record.within}
        for end in ends:
            every = {(*record.within, (record.loop, number), *end) for number in range(record.copies)}
            if every <= there:
                there = (there - every) | {(*record.within, *end)}
    return place.value, frozenset(there - {()})


def _lives(plan: MemoryPlan, was: MemoryPlan) -> Iterator[str]:
    """Lives are those of the plan as it was made; but what pointers stand for may be kept on ways that no run takes."""
    before = {_key(was, place): _points(place) for place in was.placements}
    pointed = {value for place in plan.placements for value in place.stands_for}
    for place in plan.placements:
        more = _points(place) - before.get(_key(plan, place), set())
        first = min(before.get(_key(plan, place), set()), default=0)
        kept = place.value in pointed and all(point > first for point in more)
        if not before.get(_key(plan, place), set()) <= _points(place) or (more and not kept):
            yield f"live of {place.value}"


def _heads(plan: MemoryPlan, was: MemoryPlan) -> Iterator[str]:
    """Pointers begin each copy where they did, or it is left to the run to tell."""
    before = {(record.loop, record.within): record.heads for record in was.rolled}
    for record in plan.rolled:
        for heads, known in zip(record.heads, before[record.loop, record.within], strict=True):
            for number, one in zip(heads, known, strict=True):
                if number != OPEN and (one == OPEN or _at(plan, number) != _at(was, one)):
                    yield f"heads of {record.loop}"


def _at(plan: MemoryPlan, number: int) -> Key:
    return _key(plan, plan.placements[number])


def _points(place: Placement) -> set[int]:
    return {point for begin, end in place.live for point in range(begin, min(end, begin + 10_000))}


def _groups(plan: MemoryPlan) -> dict[int, frozenset[Key]]:
    groups: dict[int, set[Key]] = {}
    for place in plan.placements:
        if place.buffer >= 0:
            groups.setdefault(place.buffer, set()).add(_key(plan, place))
    return {number: frozenset(keys) for number, keys in groups.items()}


def _told(plan: MemoryPlan) -> dict[str, Any]:
    """What a plan says of its program, without the order and the numbers that mean nothing."""
    rolled = {
        (r.loop, r.within): (r.copies, r.first, frozenset((j.copy, frozenset(j.ways), j.next) for j in r.jumps))
        for r in plan.rolled
    }
    return {
        "graph": (plan.graph, plan.recipe.optimize, plan.recipe.changed, plan.recipe.scratch),
        "read": (plan.dims, plan.max_trips),
        "nodes": [(node.name, node.op) for node in plan.nodes],
        "points": plan.points,
        "updated": plan.updated,
        "exchanged": sorted(tuple(min(cycle[i:] + cycle[:i] for i in range(len(cycle)))) for cycle in plan.exchanged),
        "rolled": (rolled, len(plan.rolled)),
        "outside": (frozenset(plan.outside), len(plan.outside)),
        "peak": (plan.peak.point, plan.peak.nbytes, sorted(plan.peak.values)),
        "moves": sorted((str(m.edge), m.source, m.destination, m.nbytes) for m in plan.moves),
        "buffers": frozenset(_groups(plan).values()),
        "placed": {
            _key(plan, p): (
                p.spec,
                p.region.nbytes,
                p.producer,
                frozenset(p.stands_for),
                len(p.stands_for),
                p.how == POINTER,
            )
            for p in plan.placements
        },
        "count": len(plan.placements),
        "bound storages": sorted((s.name, s.kind, s.nbytes) for s in plan.storages if s not in plan.arenas),
    }


def _sums(plan: MemoryPlan) -> dict[str, int]:
    arenas = {arena.name for arena in plan.arenas}
    sizes: dict[str, int] = {}
    hows: dict[str, set[str]] = {}
    for place in plan.placements:
        if place.region.storage in arenas or place.how == POINTER:
            sizes[place.value] = place.region.nbytes
            hows.setdefault(place.value, set()).add(place.how)
    ends = dict.fromkeys(arenas, 0)
    for place in plan.placements:
        if place.region.storage in arenas and not place.strides and place.region.nbytes:
            ends[place.region.storage] = max(ends[place.region.storage], place.region.end)
    return {
        "total_bytes": sum(sizes.values()),
        "view_bytes": sum(sizes[v] for v, how in hows.items() if how <= {"view", "part", "slice", "row"}),
        "inplace_bytes": sum(sizes[v] for v, how in hows.items() if how <= {"inplace", "carry"}),
        "arena_bytes": sum(ends.values()),
    }


def _shared(graph: Graph, plan: MemoryPlan, place: Placement) -> bool:
    """Whether the program can make a value the same bytes as another in the way that is said."""
    if place.how in ("own", POINTER):
        return not place.shares
    same = [p for p in plan.placements if p.region.storage == place.region.storage and p.buffer == place.buffer]
    if place.how == "joined":
        return any(place.shares in (p.value, *_pointers(plan, p.value)) for p in same)
    around = {place.shares} | {p.value for p in same if place.shares in _pointers(plan, p.value)}
    names = {place.value, *_pointers(plan, place.value)}
    pairs = list(_pairs(graph, place.how, plan))
    return any((one, other) in pairs for one in names for name in around for other in (name, *_pointers(plan, name)))


def _pointers(plan: MemoryPlan, value: str) -> list[str]:
    return [place.value for place in plan.placements if value in place.stands_for]


def _pairs(graph: Graph, how: str, plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    """All (value, whose bytes it may take) of one kind."""
    for node in graph.walk():
        if isinstance(node, While):
            ends = [*zip(node.inits, node.parameters, strict=True), *zip(node.updates, node.parameters, strict=True),
                    *zip(node.parameters, node.finals, strict=True)]  # fmt: skip
            parts = {
                "slice": zip(node.slices, node.sequences, strict=True),
                "row": zip(node.rows, node.stacked_outputs, strict=True),
            }
            yield from ((one.name, whole.name) for one, whole in parts.get(how, ()) if whole is not None)
        elif isinstance(node, CaseOf):
            ends = [pair for arm in node.arms for pair in zip(arm.outputs, node.outputs, strict=True)]
            ends += zip(node.fallbacks, node.outputs, strict=False)
        else:
            op = lookup(node.op)
            shares = {"view": op.views, "inplace": op.inplace, "part": op.parts}.get(how, lambda node: ())(node)
            for share in shares:
                output, source = node.outputs[share.output], node.inputs[share.input]
                if output is not None and source is not None:
                    yield (source.name, output.name) if how == "part" else (output.name, source.name)
            continue
        if how == "carry":
            for source, to in ends:
                if to is not None:
                    yield from ((source.name, to.name), (to.name, source.name))
    if how == "carry":
        places = {name: cycle[(i + 1) % len(cycle)] for cycle in plan.exchanged for i, name in enumerate(cycle)}
        for target, source in ((places.get(to.name, to.name), source.name) for to, source in graph.updates):
            yield from ((target, source), (source, target))
        for place in plan.placements:
            yield from ((one, other) for one in place.stands_for for other in place.stands_for)


def _bound(plan: MemoryPlan, was: MemoryPlan) -> Iterator[str]:
    """A bound is no higher than the proven one, and the buffers that prove it are in each other's way."""
    if plan.lower_bound_bytes > was.lower_bound_bytes or (plan.arena_bytes and not plan.lower_bound_bytes):
        yield "lower bound"
    if plan.bound == "search" and plan.proof:
        yield "proof"
    groups, known = _groups(plan), _groups(was)
    before = {known[number] for number in was.proof}
    points: dict[int, set[int]] = {}
    for place in plan.placements:
        for begin, end in place.live:
            points.setdefault(place.buffer, set()).update(range(begin, end))
    if len(set(plan.proof)) != len(plan.proof) or not set(plan.proof) <= set(groups):
        yield "proof"
        return
    if {groups[number] for number in plan.proof} <= before and plan.bound != "peak":
        return
    if any(not points[one] & points[other] for one, other in combinations(plan.proof, 2)):
        yield "proof"
    if plan.bound == "peak" and plan.proof and not set.intersection(*(points[number] for number in plan.proof)):
        yield "kind of bound"
