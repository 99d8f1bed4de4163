"""The curve of bytes and seconds in a page: what is drawn, and of what each line is said.

A point is a program whose plan the checker has proven; its seconds are predicted. It fits every larger budget too, so
between points the curve is a stair. A bound holds for every smaller budget, so it is drawn from one budget to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sublet.planning.budget.answers import Answer, Outcome, Point
from sublet.viz.rectangles import Picture, rectangles

IN_THIS_ORDER = "in this order, every node run where it stands, and clones besides"


@dataclass(frozen=True)
class Spot:
    """A program of the curve: bytes of its arena, seconds, these more than the plain ones as a share, what was done."""

    nbytes: int
    seconds: float
    extra: float
    done: str
    in_pieces: bool


@dataclass(frozen=True)
class Step:
    """No program `of` these nodes takes fewer seconds in `begin` to `end` bytes."""

    begin: int
    end: int
    seconds: float
    of: str


@dataclass(frozen=True)
class Frontier:
    """The curve of one network.

    spots    the largest first
    steps    bounds on seconds
    floors   bytes below which there is no program, and of which programs that is said
    missed   budgets for which there is no program, and what is known of them
    costs    how seconds were told
    """

    spots: tuple[Spot, ...]
    steps: tuple[Step, ...]
    floors: tuple[tuple[int, str], ...]
    missed: tuple[tuple[int, str], ...]
    costs: str


def frontier_of(found: Sequence[Answer]) -> tuple[Frontier, list[Picture]]:
    """The curve of some answers, largest budget first, and of each spot the picture of its plan."""
    points = _points(found)
    curve = Frontier(
        tuple(Spot(p.nbytes, p.seconds, _extra(p, found[0].plain), p.done, p.split > 0) for p in points),
        tuple(_steps([answer for answer in found if answer.outcome is Outcome.FITS])),
        tuple(_floors(found[-1])),
        tuple((each.budget, _missed(each)) for each in found if each.outcome is not Outcome.FITS),
        found[0].costs,
    )
    return curve, [rectangles(point.plan) for point in points]


def _points(found: Sequence[Answer]) -> list[Point]:
    """The programs that fit some budget, and of those that need fewest bytes where none does."""
    several = {id(answer.point): answer.point for answer in found}
    return sorted(several.values(), key=lambda point: -point.nbytes)


def _extra(point: Point, plain: Point) -> float:
    return point.seconds / plain.seconds - 1 if plain.seconds else 0.0


def _steps(fitting: Sequence[Answer]) -> list[Step]:
    ends = [*(answer.budget for answer in fitting), fitting[-1].point.nbytes] if fitting else []
    return [
        Step(begin, end, answer.least_seconds, _of(answer))
        for (end, begin), answer in zip(pairwise(ends), fitting, strict=True)
        if answer.least_seconds is not None
    ]


def _of(answer: Answer) -> str:
    return f"programs of the nodes {'in the same pieces' if answer.point.split else 'as given'} {IN_THIS_ORDER}"


def _floors(last: Answer) -> list[tuple[int, str]]:
    """That of the nodes as they are given, and of the ways tried to do them in pieces."""
    away = " or brought away" if len(last.plain.plan.arenas) > 1 else ""
    floors = [(last.floor.nbytes, f"programs of the nodes as given, in any order, whatever is computed again{away}")]
    if last.finer is not None:
        floors.append((last.finer.nbytes, "programs of the nodes in pieces, in the ways that were tried"))
    return floors


def _missed(answer: Answer) -> str:
    return answer.claim if answer.outcome is Outcome.IMPOSSIBLE else "no program was found; nothing more is known"
