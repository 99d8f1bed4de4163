"""Two plans in one picture: on one axis of time and at one scale, each with addresses of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from sublet.base.errors import ProblemError
from sublet.viz.arenas import Arena, begins
from sublet.viz.groups import Groups
from sublet.viz.rectangles import Beside, Picture

NEITHER = "neither checked against its model"


def compared(first: Picture, second: Picture, names: tuple[str, str]) -> Picture:
    """The first picture with the arenas of the second above its own. Peak and figures are those of the first.

    `names` are told with the arenas. Points are compared by their number; where different nodes run at one, both
    are told. Loops and pointers are drawn if they are the same in both.
    Raises ProblemError when one of the pictures is of no plan.
    """
    if not (first.points and second.points):
        raise ProblemError("only plans can be compared: a packing has no points that another one has, too")
    drawn = (*first.arenas, *second.arenas)
    starts = begins(arena.end - arena.begin for arena in drawn)
    named = (*_named(names[0], first.arenas), *_named(names[1], second.arenas))
    arenas = tuple(replace(a, begin=b, name=name) for a, b, name in zip(drawn, starts, named, strict=True))
    moved = _moved(second, [b - a.begin for a, b in zip(second.arenas, starts[len(first.arenas) :], strict=True)])
    base = _moved(first, [b - a.begin for a, b in zip(first.arenas, starts, strict=False)])
    moved = _numbered_after(base, moved)
    return replace(
        base,
        title=f"{names[0]} and {names[1]}",
        arenas=arenas,
        claimed=NEITHER if first.claimed and second.claimed else _each(names, (first.claimed, second.claimed)),
        coverage=_each(names, (first.coverage, second.coverage)),
        assumed=_each(names, (first.assumed, second.assumed)),
        bands=first.bands if first.bands == second.bands else (),
        pointers=first.pointers if first.pointers == second.pointers else (),
        outside=(*first.outside, *second.outside),
        placements=(*base.placements, *moved.placements),
        rectangles=tuple(
            sorted(
                (*base.rectangles, *moved.rectangles), key=lambda piece: (piece.begin, -piece.nbytes, piece.placement)
            )
        ),
        blocks=(*base.blocks, *moved.blocks),
        rounds=(*base.rounds, *moved.rounds),
        points=tuple(_point(*pair) for pair in zip_longest(first.points, second.points, fillvalue="")),
        end=max(first.end, second.end),
        groups=_groups(first.groups, second.groups),
        label=names[0],
        others=(Beside(names[1], second.arena_bytes, second.curve, len(base.placements)),),
    )


def _named(name: str, arenas: tuple[Arena, ...]) -> list[str]:
    """What the arenas of a plan are called: as the plan when there is one."""
    return [name] if len(arenas) == 1 else [f"{name} {arena.name}" for arena in arenas]


def _each(names: tuple[str, str], told: tuple[str, str]) -> str:
    """What is told of each of two plans."""
    return "; ".join(f"{name}: {words}" for name, words in zip(names, told, strict=True) if words)


def _point(first: str, second: str) -> str:
    return first if first == second or not second else second if not first else f"{first} | {second}"


def _groups(first: Groups, second: Groups) -> Groups:
    """Of the points those of the longer plan."""
    longer = first if len(first.point_ops) >= len(second.point_ops) else second
    return Groups(
        longer.point_ops,
        longer.point_scopes,
        (*first.ops, *second.ops),
        (*first.scopes, *second.scopes),
        (*first.sources, *second.sources),
    )


def _moved(picture: Picture, by: list[int]) -> Picture:
    """The picture with each of its arenas elsewhere."""

    def to(address: int) -> int:
        arenas = list(enumerate(picture.arenas))
        return address + next((by[i] for i, arena in reversed(arenas) if arena.begin <= address), by[0])

    return replace(
        picture,
        placements=tuple(
            replace(place, region=replace(place.region, offset=to(place.region.offset))) for place in picture.placements
        ),
        rectangles=tuple(replace(piece, offset=to(piece.offset)) for piece in picture.rectangles),
        blocks=tuple(replace(block, offset=to(block.offset)) for block in picture.blocks),
    )


def _numbered_after(first: Picture, second: Picture) -> Picture:
    """The second picture with placements and buffers that have other numbers than those of the first."""
    buffers = 1 + max((place.buffer for place in first.placements), default=-1)
    places = len(first.placements)
    return replace(
        second,
        placements=tuple(replace(place, buffer=place.buffer + buffers) for place in second.placements),
        rectangles=tuple(replace(piece, placement=piece.placement + places) for piece in second.rectangles),
        blocks=tuple(replace(block, buffer=block.buffer + buffers) for block in second.blocks),
    )
