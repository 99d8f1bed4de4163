"""Greedy strategies: take the buffers in some order, put each into a hole between those it conflicts with.

    first_fit                  in order of birth, into the lowest hole that fits
    best_fit_by_size           largest first, into the smallest hole that fits
    best_fit_by_lifetime       longest alive first
    best_fit_by_area           largest size x lifetime first
    best_fit_by_interference   most conflicts first
    first_fit_by_tightness     classes of size raised where the load comes near the peak, then by birth
    sweep                      one sweep over time, into the smallest hole at birth

If no hole fits, a buffer goes on top of its neighbours. Ties go to the larger buffer, then to the
earlier position. Companions are placed together, at the turn of the heaviest or of all in sum; pinned
buffers before all others. The placing itself is the core's. Problems here are plain (see `plain`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.packing._core import Hole
from sublet.packing.conflicts import clusters_of, conflicts_of
from sublet.packing.native import core_of
from sublet.packing.problem import Packing, Problem, round_up

Weights = NDArray[Any]


def no_reuse(problem: Problem) -> Packing:
    """Every buffer gets bytes of its own, in order of position; companions get the same. For debugging."""
    offsets = [buffer.pinned or 0 for buffer in problem.buffers]
    top = max((b.pinned + b.size for b in problem.buffers if b.pinned is not None and b.size), default=0)
    for cluster in clusters_of(problem, conflicts_of(problem)):
        if problem.buffers[cluster.members[0]].pinned is not None:
            continue
        offset = round_up(top, cluster.alignment) if cluster.sized else 0
        for position in cluster.members:
            offsets[position] = offset
        top = max(top, offset + cluster.size)
    return Packing(tuple(offsets), top, "no_reuse")


def first_fit(problem: Problem) -> Packing:
    births = np.array([-buffer.lower for buffer in problem.buffers], dtype=np.int64)
    return _place(problem, births, np.maximum, Hole.lowest, "first_fit")


def best_fit_by_size(problem: Problem) -> Packing:
    return _place(problem, _sizes(problem), np.maximum, Hole.smallest, "best_fit_by_size")


def best_fit_by_lifetime(problem: Problem) -> Packing:
    return _place(problem, _lifetimes(problem), np.add, Hole.smallest, "best_fit_by_lifetime")


def best_fit_by_area(problem: Problem) -> Packing:
    # Products can exceed 64 bits, and the order of near ties does not matter.
    areas = _lifetimes(problem).astype(np.float64) * _sizes(problem)
    return _place(problem, areas, np.add, Hole.smallest, "best_fit_by_area")


def best_fit_by_interference(problem: Problem) -> Packing:
    degrees = conflicts_of(problem).degrees()
    return _place(problem, degrees, np.add, Hole.smallest, "best_fit_by_interference")


def first_fit_by_tightness(problem: Problem) -> Packing:
    """The best order on large problems. A partial order has no load: there largest first."""
    if problem.precedence is not None:
        return replace(best_fit_by_size(problem), strategy="first_fit_by_tightness")
    return packing_of(problem, core_of(problem).greedy_by_tightness(), "first_fit_by_tightness")


def sweep(problem: Problem) -> Packing:
    """A simulated allocator, for problems too dense for the others. Lifetimes only: else in order of birth."""
    if problem.precedence is not None or problem.companions or problem.pinned:
        return replace(first_fit(problem), strategy="sweep")
    return packing_of(problem, core_of(problem).sweep(), "sweep")


def packing_of(problem: Problem, offsets: NDArray[np.int64], strategy: str) -> Packing:
    """Offsets from the core as a packing; its arena ends where the last buffer does."""
    sizes = _sizes(problem)
    ends = (offsets + sizes) * (sizes > 0)
    return Packing(tuple(offsets.tolist()), int(ends.max(initial=0)), strategy)


def _place(problem: Problem, weights: Weights, join: np.ufunc, hole: Hole, strategy: str) -> Packing:
    """Heaviest first; `join` makes one weight of those of companions."""
    weights = _joined(problem, weights, join)
    sizes = _joined(problem, _sizes(problem), np.maximum)
    order = np.lexsort((np.arange(len(weights)), -sizes, -weights)).astype(np.int32)
    try:
        offsets = core_of(problem).greedy_in_order(order, hole)
    except ValueError as error:
        raise ProblemError(f"the problem has no packing: {error}") from None
    return packing_of(problem, offsets, strategy)


def _joined(problem: Problem, weights: Weights, join: np.ufunc) -> Weights:
    """The weights, with those of companions joined into one that all of them get."""
    if not problem.companions:
        return weights
    joined = weights.copy()
    for cluster in clusters_of(problem, conflicts_of(problem)):
        members = list(cluster.members)
        joined[members] = join.reduce(weights[members])
    return joined


def _sizes(problem: Problem) -> NDArray[np.int64]:
    return np.array([buffer.size for buffer in problem.buffers], dtype=np.int64)


def _lifetimes(problem: Problem) -> NDArray[np.int64]:
    """For how much time each buffer needs its bytes."""
    return np.array([sum(end - begin for begin, end in b.pieces) for b in problem.buffers], dtype=np.int64)
