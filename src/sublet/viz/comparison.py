"""Two plans in one picture: one time axis and one scale, with separate addresses for each plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from sublet.base.errors import ProblemError
from sublet.viz.view_model import ComparedPlan, DrawnArena, NodeGroups, Picture, drawn_begins

NEITHER_CHECKED = "neither checked against its model"


def compare_pictures(first: Picture, second: Picture, names: tuple[str, str]) -> Picture:
    """Return a picture of two plans, the second above the first; the peak and the figures are of the first plan.

    `names` label the arenas. Points correspond by number; a point with different nodes shows both. Loops and renamed
    loop-carried values are drawn only if equal in both plans. Raises ProblemError if a picture shows a packing, not a
    plan.
    """
    if not (first.points and second.points):
        raise ProblemError("only plans can be compared: a packing has no points in common with another picture")
    all_arenas = (*first.arenas, *second.arenas)
    starts = drawn_begins(arena.end - arena.begin for arena in all_arenas)
    labels = (*_arena_labels(names[0], first.arenas), *_arena_labels(names[1], second.arenas))
    arenas = tuple(replace(a, begin=b, name=name) for a, b, name in zip(all_arenas, starts, labels, strict=True))
    above = _shift_arenas(
        second, [b - a.begin for a, b in zip(second.arenas, starts[len(first.arenas) :], strict=True)]
    )
    base = _shift_arenas(first, [b - a.begin for a, b in zip(first.arenas, starts, strict=False)])
    above = _renumber_after(base, above)
    return replace(
        base,
        title=f"{names[0]} and {names[1]}",
        arenas=arenas,
        claimed=NEITHER_CHECKED
        if first.claimed and second.claimed
        else _join_remarks(names, (first.claimed, second.claimed)),
        coverage=_join_remarks(names, (first.coverage, second.coverage)),
        assumed=_join_remarks(names, (first.assumed, second.assumed)),
        bands=first.bands if first.bands == second.bands else (),
        pointers=first.pointers if first.pointers == second.pointers else (),
        outside=(*first.outside, *second.outside),
        placements=(*base.placements, *above.placements),
        rectangles=tuple(
            sorted(
                (*base.rectangles, *above.rectangles), key=lambda piece: (piece.begin, -piece.nbytes, piece.placement)
            )
        ),
        blocks=(*base.blocks, *above.blocks),
        rounds=(*base.rounds, *above.rounds),
        points=tuple(_point_label(*pair) for pair in zip_longest(first.points, second.points, fillvalue="")),
        end=max(first.end, second.end),
        groups=_merge_groups(first.groups, second.groups),
        label=names[0],
        others=(ComparedPlan(names[1], second.arena_bytes, second.curve, len(base.placements)),),
    )


def _arena_labels(name: str, arenas: tuple[DrawnArena, ...]) -> list[str]:
    """Return the labels of a plan's arenas: the name of the plan, plus the arena's name if the plan has several."""
    return [name] if len(arenas) == 1 else [f"{name} {arena.name}" for arena in arenas]


def _join_remarks(names: tuple[str, str], remarks: tuple[str, str]) -> str:
    """Return the remarks on both plans, prefixed by the names."""
    return "; ".join(f"{name}: {words}" for name, words in zip(names, remarks, strict=True) if words)


def _point_label(first: str, second: str) -> str:
    """Return the label of a point from the labels in both plans."""
    return first if first == second or not second else second if not first else f"{first} | {second}"


def _merge_groups(first: NodeGroups, second: NodeGroups) -> NodeGroups:
    """Return the groups of both plans; the groups of points come from the longer plan."""
    longer = first if len(first.point_ops) >= len(second.point_ops) else second
    return NodeGroups(
        longer.point_ops,
        longer.point_scopes,
        (*first.ops, *second.ops),
        (*first.scopes, *second.scopes),
        (*first.sources, *second.sources),
    )


def _shift_arenas(picture: Picture, by: list[int]) -> Picture:
    """Return the picture with each arena shifted by its number of bytes in `by`."""

    def moved_address(address: int) -> int:
        arenas = list(enumerate(picture.arenas))
        return address + next((by[i] for i, arena in reversed(arenas) if arena.begin <= address), by[0])

    return replace(
        picture,
        placements=tuple(
            replace(place, region=replace(place.region, offset=moved_address(place.region.offset)))
            for place in picture.placements
        ),
        rectangles=tuple(replace(piece, offset=moved_address(piece.offset)) for piece in picture.rectangles),
        blocks=tuple(replace(block, offset=moved_address(block.offset)) for block in picture.blocks),
    )


def _renumber_after(first: Picture, second: Picture) -> Picture:
    """Return the second picture, with placements and buffers renumbered after the first picture's."""
    buffers = 1 + max((place.buffer for place in first.placements), default=-1)
    places = len(first.placements)
    return replace(
        second,
        placements=tuple(replace(place, buffer=place.buffer + buffers) for place in second.placements),
        rectangles=tuple(replace(piece, placement=piece.placement + places) for piece in second.rectangles),
        blocks=tuple(replace(block, buffer=block.buffer + buffers) for block in second.blocks),
    )
