"""The strategies by name: plain functions from a Problem to a Packing.

A package can add strategies under the entry-point group "sublet.strategies" (name -> function). Entry points
are loaded only when requested by name or listed, and never run by `auto`. `pack` passes normalized problems
(see `normalize`), possibly with pins. Strategies break ties by the position of a buffer;
`pack` first sorts the buffers by id, so that shuffled rows get the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.metadata import entry_points

from sublet.base.errors import ProblemError
from sublet.packing.allocation_order import allocation_graph
from sublet.packing.bounds import lower_bound
from sublet.packing.greedy import (
    best_fit_by_area,
    best_fit_by_interference,
    best_fit_by_lifetime,
    best_fit_by_size,
    first_fit,
    first_fit_by_tightness,
    no_reuse,
    sweep,
)
from sublet.packing.interference_order import allocation_graph_by_interference
from sublet.packing.normalize import normalize
from sublet.packing.problem import Packing, Problem
from sublet.packing.search import MOST_OVERLAPS, SEARCH, can_search, search

Strategy = Callable[[Problem], Packing]

ENTRY_POINTS = "sublet.strategies"


def search_strategy(problem: Problem) -> Packing:
    """Return the packing found by the search from first fit on, with the default effort.

    Raises ProblemError when too many buffers are live together for the search to hold.
    """
    if not can_search(problem):
        raise ProblemError(f"more than {MOST_OVERLAPS} pairs of buffers are live together: too many to search")
    result = search(problem, lower_bound(problem), first_fit(problem))
    return replace(result.packing, strategy=SEARCH)


_BUILT_IN: dict[str, Strategy] = {
    "no_reuse": no_reuse,
    "first_fit": first_fit,
    "first_fit_by_tightness": first_fit_by_tightness,
    "sweep": sweep,
    "best_fit_by_size": best_fit_by_size,
    "best_fit_by_lifetime": best_fit_by_lifetime,
    "best_fit_by_area": best_fit_by_area,
    "best_fit_by_interference": best_fit_by_interference,
    "allocation_graph": allocation_graph,
    "allocation_graph_by_interference": allocation_graph_by_interference,
    SEARCH: search_strategy,
}
WITHOUT_PINS = ("allocation_graph", "allocation_graph_by_interference")
"""Strategies without support for pinned offsets."""


def can_pack(name: str, problem: Problem) -> bool:
    """True if a built-in strategy respects every constraint of the problem."""
    return name not in WITHOUT_PINS or not problem.has_pins


def _accept_any_problem(name: str, strategy: Strategy) -> Strategy:
    """Return a strategy for all problems, given a strategy for normalized problems."""

    @wraps(strategy)
    def pack_normalized(problem: Problem) -> Packing:
        form = normalize(problem)
        if not can_pack(name, form.problem):
            able = ", ".join(other for other in _BUILT_IN if can_pack(other, form.problem))
            raise ProblemError(f"strategy {name} cannot keep pinned offsets. Use auto, {able}.")
        return form.original_packing(strategy(form.problem))

    return pack_normalized


STRATEGIES: dict[str, Strategy] = {name: _accept_any_problem(name, strategy) for name, strategy in _BUILT_IN.items()}


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies: the built-in ones in order, then other packages' by name."""
    foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*STRATEGIES, *sorted(foreign - STRATEGIES.keys()))


def strategy_named(name: str) -> Strategy:
    """Return the strategy with the given name; built-in strategies go first.

    Raises ProblemError listing the known names, or naming the package whose strategy fails to load.
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
