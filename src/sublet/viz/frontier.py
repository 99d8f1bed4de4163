"""The trade-off curve of bytes and seconds as drawn on a page, with the claim of each line.

A point is a program with a plan proven by the checker, and a predicted time. A program fits all larger budgets too:
between points, the curve is a step function. A time bound holds for all smaller budgets, so a line goes from one budget
to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sublet.planning.budget.result import BudgetResult, PlannedProgram, SearchOutcome
from sublet.viz.view_model import Picture, picture_of_plan

IN_THIS_ORDER = "in this order, each node at its place, plus recomputed nodes"


@dataclass(frozen=True)
class FrontierPoint:
    """A program of the curve: arena bytes, predicted seconds, additional time as a share of the plain time, changes."""

    nbytes: int
    seconds: float
    extra: float
    changes: str
    in_pieces: bool


@dataclass(frozen=True)
class TimeBound:
    """A time bound: no program of the class `of` takes fewer seconds within `begin` to `end` bytes."""

    begin: int
    end: int
    seconds: float
    programs: str


@dataclass(frozen=True)
class Frontier:
    """The curve of one network.

    points   the programs, largest first
    bounds   lower bounds on the time
    floors   memory bounds in bytes, each with the class of programs covered by the bound
    missed   budgets without a program, with the reason
    costs    the source of the predicted times
    """

    points: tuple[FrontierPoint, ...]
    bounds: tuple[TimeBound, ...]
    floors: tuple[tuple[int, str], ...]
    missed: tuple[tuple[int, str], ...]
    costs: str


def frontier_of(results: Sequence[BudgetResult]) -> tuple[Frontier, list[Picture]]:
    """Return the curve of budget results (largest budget first), and a picture of the plan at each point."""
    points = _distinct_programs(results)
    curve = Frontier(
        tuple(
            FrontierPoint(p.nbytes, p.seconds, _extra_share(p, results[0].plain), p.changes_in_words, p.split_count > 0)
            for p in points
        ),
        tuple(_time_bounds([answer for answer in results if answer.outcome is SearchOutcome.FITS])),
        tuple(_memory_floors(results[-1])),
        tuple((each.budget, _describe_miss(each)) for each in results if each.outcome is not SearchOutcome.FITS),
        results[0].cost_source,
    )
    return curve, [picture_of_plan(point.plan) for point in points]


def _distinct_programs(results: Sequence[BudgetResult]) -> list[PlannedProgram]:
    """Return the distinct programs, largest first: those that fit a budget, and the smallest if no program fits."""
    by_identity = {id(answer.program): answer.program for answer in results}
    return sorted(by_identity.values(), key=lambda point: -point.nbytes)


def _extra_share(point: PlannedProgram, plain: PlannedProgram) -> float:
    """Return the additional time of a program, as a share of the plain time."""
    return point.seconds / plain.seconds - 1 if plain.seconds else 0.0


def _time_bounds(fitting: Sequence[BudgetResult]) -> list[TimeBound]:
    """Return the time bounds of the results within the budget."""
    ends = [*(answer.budget for answer in fitting), fitting[-1].program.nbytes] if fitting else []
    return [
        TimeBound(begin, end, answer.least_seconds, _describe_programs(answer))
        for (end, begin), answer in zip(pairwise(ends), fitting, strict=True)
        if answer.least_seconds is not None
    ]


def _describe_programs(answer: BudgetResult) -> str:
    """Return a description of the programs covered by a time bound."""
    return f"programs of the nodes {'in the same pieces' if answer.program.split_count else 'as given'} {IN_THIS_ORDER}"


def _memory_floors(last: BudgetResult) -> list[tuple[int, str]]:
    """Return the memory bounds: for the nodes as given, and for the tried ways of splitting nodes."""
    extra_words = " or offloaded" if len(last.plain.plan.arenas) > 1 else ""
    floors = [
        (last.floor.nbytes, f"programs of the nodes as given, in any order, with any values recomputed{extra_words}")
    ]
    if last.split_floor is not None:
        floors.append((last.split_floor.nbytes, "programs of the nodes in pieces, split in the tried ways"))
    return floors


def _describe_miss(answer: BudgetResult) -> str:
    """Return the reason for a budget without a program."""
    return (
        answer.bound_in_words
        if answer.outcome is SearchOutcome.IMPOSSIBLE
        else "no program was found; nothing more is known"
    )
