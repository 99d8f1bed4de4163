"""The strategies by name: plain functions from a Problem to a Packing.

A package can add its own under the entry-point group "sublet.strategies" (name -> function); those are
looked up only when asked for by name or listed, and never by `auto`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.metadata import entry_points

import numpy as np

from sublet.errors import ProblemError
from sublet.packing.allocation_order import allocation_graph
from sublet.packing.greedy import (
    best_fit_by_area,
    best_fit_by_interference,
    best_fit_by_lifetime,
    best_fit_by_size,
    first_fit,
    no_reuse,
)
from sublet.packing.interference_order import allocation_graph_by_interference
from sublet.packing.problem import Packing, Precedence, Problem

Strategy = Callable[[Problem], Packing]

ENTRY_POINTS = "sublet.strategies"


def in_order_of_ids(strategy: Strategy) -> Strategy:
    """Show a strategy the buffers sorted by id, so that shuffled rows get the same offsets.

    Shorter ids come first, so numbers ascend. A strategy's ties then end with the id.
    """

    @wraps(strategy)
    def sorted_strategy(problem: Problem) -> Packing:
        buffers = problem.buffers
        order = sorted(range(len(buffers)), key=lambda position: (len(buffers[position].id), buffers[position].id))
        if order == list(range(len(buffers))):
            return strategy(problem)
        packing = strategy(_rearranged(problem, order))
        offsets = [0] * len(order)
        for rank, position in enumerate(order):
            offsets[position] = packing.offsets[rank]
        return replace(packing, offsets=tuple(offsets))

    return sorted_strategy


def _rearranged(problem: Problem, order: list[int]) -> Problem:
    rank = {position: rank for rank, position in enumerate(order)}
    precedence = problem.precedence
    if precedence is not None:
        chosen = np.ix_(order, order)
        compatible = None if precedence.compatible is None else precedence.compatible[chosen]
        precedence = Precedence(precedence.distance[chosen], compatible)
    companions = sorted((rank[first], rank[second]) for first, second in problem.companions)
    return replace(
        problem,
        buffers=tuple(problem.buffers[position] for position in order),
        precedence=precedence,
        companions=tuple(companions),
    )


STRATEGIES: dict[str, Strategy] = {
    "no_reuse": in_order_of_ids(no_reuse),
    "first_fit": in_order_of_ids(first_fit),
    "best_fit_by_size": in_order_of_ids(best_fit_by_size),
    "best_fit_by_lifetime": in_order_of_ids(best_fit_by_lifetime),
    "best_fit_by_area": in_order_of_ids(best_fit_by_area),
    "best_fit_by_interference": in_order_of_ids(best_fit_by_interference),
    "allocation_graph": in_order_of_ids(allocation_graph),
    "allocation_graph_by_interference": in_order_of_ids(allocation_graph_by_interference),
}


def strategy_names() -> tuple[str, ...]:
    """Names of all strategies: our own in order, then those of other packages by name."""
    foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*STRATEGIES, *sorted(foreign - STRATEGIES.keys()))


def strategy_named(name: str) -> Strategy:
    """The strategy of that name; our own go before those of other packages.

    Raises ProblemError listing the known names, or naming the package whose strategy does not load.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    for point in sorted(entry_points(group=ENTRY_POINTS, name=name), key=lambda point: point.value):
        try:
            strategy: Strategy = point.load()
        except Exception as error:
            raise ProblemError(f"strategy {name} ({point.value}) cannot be loaded: {error!r}") from error
        if not callable(strategy):
            raise ProblemError(f"strategy {name} ({point.value}) is not a function of a Problem")
        return strategy
    raise ProblemError(f"there is no strategy {name!r}; known are auto, {', '.join(strategy_names())}")
