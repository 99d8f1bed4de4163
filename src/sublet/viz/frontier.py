"""The trade-off curve of bytes and seconds as drawn on a page, with the claim of each line.

A point is a program with a plan proven by the checker, and a predicted time. A program fits all larger budgets too:
between points, the curve is a step function. A time bound holds for all smaller budgets, so a line goes from one budget
to the next.
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
    """A program of the curve: arena bytes, predicted seconds, additional time as a share of the plain time, changes."""

    nbytes: int
    seconds: float
    extra: float
    done: str
    in_pieces: bool


@dataclass(frozen=True)
class Step:
    """A time bound: no program of the class `of` takes fewer seconds within `begin` to `end` bytes."""

    begin: int
    end: int
    seconds: float
    of: str


@dataclass(frozen=True)
class Frontier:
    """The curve of one network.

    points   the programs, largest first
    bounds   lower bounds on the time
    floors   memory bounds in bytes, each with the class of programs covered by the bound
    missed   budgets without a program, with the reason
    costs    the source of the predicted times
    """

    spots: tuple[Spot, ...]
    steps: tuple[Step, ...]
    floors: tuple[tuple[int, str], ...]
    missed: tuple[tuple[int, str], ...]
    costs: str


def frontier_of(found: Sequence[Answer]) -> tuple[Frontier, list[Picture]]:
    """Return the curve of budget results (largest budget first), and a picture of the plan at each point."""
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
    """Return the distinct programs, largest first: those that fit a budget, and the smallest if no program fits."""
    by_identity = {id(answer.point): answer.point for answer in found}
    return sorted(by_identity.values(), key=lambda point: -point.nbytes)


def _extra(point: Point, plain: Point) -> float:
    """Return the additional time of a program, as a share of the plain time."""
    return point.seconds / plain.seconds - 1 if plain.seconds else 0.0


def _steps(fitting: Sequence[Answer]) -> list[Step]:
    """Return the time bounds of the results within the budget."""
    ends = [*(answer.budget for answer in fitting), fitting[-1].point.nbytes] if fitting else []
    return [
        Step(begin, end, answer.least_seconds, _of(answer))
        for (end, begin), answer in zip(pairwise(ends), fitting, strict=True)
        if answer.least_seconds is not None
    ]


def _of(answer: Answer) -> str:
    """Return a description of the programs covered by a time bound."""
    return f"programs of the nodes {'in the same pieces' if answer.point.split else 'as given'} {IN_THIS_ORDER}"


def _floors(last: Answer) -> list[tuple[int, str]]:
    """Return the memory bounds: for the nodes as given, and for the tried ways of splitting nodes."""
    extra_words = " or brought away" if len(last.plain.plan.arenas) > 1 else ""
    floors = [
        (last.floor.nbytes, f"programs of the nodes as given, in any order, whatever is computed again{extra_words}")
    ]
    if last.finer is not None:
        floors.append((last.finer.nbytes, "programs of the nodes in pieces, in the ways that were tried"))
    return floors


def _missed(answer: Answer) -> str:
    """Return the reason for a budget without a program."""
    return answer.claim if answer.outcome is Outcome.IMPOSSIBLE else "no program was found; nothing more is known"
