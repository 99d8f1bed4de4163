"""Several ways to write one step of training: the cheapest of them that fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.base.errors import CapacityError
from sublet.ir.model import Model
from sublet.nn.graph import Graph
from sublet.planning.budget.answers import Answer, Outcome, most
from sublet.planning.budget.within import Budgets


class _TakenBack(Exception):
    """Ends the writing of what is only tried."""


def taken_back(graph: Graph, write: Callable[[], None], made: Callable[[Graph], Model]) -> Model:
    """What is made of a graph when `write` has written to it; the graph is afterwards as it was before."""
    found: list[Model] = []
    try:
        with graph.whole():
            write()
            found.append(made(graph))
            raise _TakenBack
    except _TakenBack:
        return found[0]


def cheapest(ways: Mapping[str, Callable[[], Model]], budget: int | str) -> tuple[str, Model]:
    """The way that fits so many bytes at the least predicted time, and its model with what is computed again.

    The first of the ways is the plainest: where it fits as it is, no other is tried. Raises CapacityError with the
    argument of the way that needs the fewest bytes.
    """
    answers: dict[str, Answer] = {}
    for name, make in ways.items():
        answers[name] = Budgets(make()).within(most(budget))
        if answers[name].outcome is Outcome.FITS and not answers[name].point.changed:
            break
    fitting = {name: answer.point for name, answer in answers.items() if answer.outcome is Outcome.FITS}
    if fitting:
        name = min(fitting, key=lambda name: (fitting[name].seconds, fitting[name].plan.arena_bytes))
        return name, fitting[name].model
    name = min(answers, key=lambda name: answers[name].point.plan.arena_bytes)
    which = "" if len(ways) == 1 else f" ({name}, the least of {len(ways)} ways)"
    raise CapacityError(f"{answers[name].words}{which}")
