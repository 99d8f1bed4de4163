"""Greedy strategies: place the buffers in a fixed order, each into a hole between its conflicting neighbours.

    first_fit                  by begin of the live range, into the lowest hole that fits
    best_fit_by_size           largest first, into the smallest hole that fits
    best_fit_by_lifetime       longest lifetime first
    best_fit_by_area           largest size x lifetime first
    best_fit_by_interference   most conflicts first
    first_fit_by_tightness     size classes, raised where the load comes near the peak, then by begin
    sweep                      one sweep over time, into the smallest hole at the begin of each live range

Without a fitting hole, a buffer goes on top of its neighbours. Ties go to the larger buffer, then to the
lower position. Companions are placed together, at the turn of the heaviest member or by the sum of the
members; pinned buffers are placed first. The C++ core places the buffers. Problems here are normalized
(see `normalize`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.packing._core import Hole
from sublet.packing.conflicts import clusters_of, conflicts_of
from sublet.packing.normalize import core_of
from sublet.packing.problem import Packing, Problem, round_up

Weights = NDArray[Any]


def no_reuse(problem: Problem) -> Packing:
    """Give every buffer bytes without sharing, in order of position; companions share. For debugging."""
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
    """Pack by begin of the live range, into the lowest fitting hole."""
    births = np.array([-buffer.lower for buffer in problem.buffers], dtype=np.int64)
    return _place(problem, births, np.maximum, Hole.lowest, "first_fit")


def best_fit_by_size(problem: Problem) -> Packing:
    """Pack the largest buffers first, into the smallest fitting hole."""
    return _place(problem, _sizes(problem), np.maximum, Hole.smallest, "best_fit_by_size")


def best_fit_by_lifetime(problem: Problem) -> Packing:
    """Pack the buffers with the longest lifetimes first, into the smallest fitting hole."""
    return _place(problem, _live_times(problem), np.add, Hole.smallest, "best_fit_by_lifetime")


def best_fit_by_area(problem: Problem) -> Packing:
    # In float64, since products can exceed 64 bits; the order of near ties does not matter.
    """Pack the buffers with the largest size x lifetime first, into the smallest fitting hole."""
    areas = _live_times(problem).astype(np.float64) * _sizes(problem)
    return _place(problem, areas, np.add, Hole.smallest, "best_fit_by_area")


def best_fit_by_interference(problem: Problem) -> Packing:
    """Pack the buffers with the most conflicts first, into the smallest fitting hole."""
    degrees = conflicts_of(problem).degrees()
    return _place(problem, degrees, np.add, Hole.smallest, "best_fit_by_interference")


def first_fit_by_tightness(problem: Problem) -> Packing:
    """Pack by tightness classes: the best order on large problems.

    A partial order has no load over time; largest first then.
    """
    if problem.precedence is not None:
        return replace(best_fit_by_size(problem), strategy="first_fit_by_tightness")
    return packing_of(problem, core_of(problem).greedy_by_tightness(), "first_fit_by_tightness")


def sweep(problem: Problem) -> Packing:
    """Simulate an allocator over time, for problems too dense for orders over all pairs.

    Needs lifetimes without companions and pins; falls back to `first_fit` otherwise.
    """
    if problem.precedence is not None or problem.companions or problem.has_pins:
        return replace(first_fit(problem), strategy="sweep")
    return packing_of(problem, core_of(problem).sweep(), "sweep")


def packing_of(problem: Problem, offsets: NDArray[np.int64], strategy: str) -> Packing:
    """Return the offsets of the core as a packing; the arena ends with the last buffer."""
    sizes = _sizes(problem)
    ends = (offsets + sizes) * (sizes > 0)
    return Packing(tuple(offsets.tolist()), int(ends.max(initial=0)), strategy)


def _place(problem: Problem, weights: Weights, join: np.ufunc, hole: Hole, strategy: str) -> Packing:
    """Place the heaviest buffers first; `join` merges the weights of companions."""
    weights = _merge_cluster_weights(problem, weights, join)
    sizes = _merge_cluster_weights(problem, _sizes(problem), np.maximum)
    order = np.lexsort((np.arange(len(weights)), -sizes, -weights)).astype(np.int32)
    try:
        offsets = core_of(problem).greedy_in_order(order, hole)
    except ValueError as error:
        raise ProblemError(f"the problem has no packing: {error}") from None
    return packing_of(problem, offsets, strategy)


def _merge_cluster_weights(problem: Problem, weights: Weights, join: np.ufunc) -> Weights:
    """Return the weights with the weights of each cluster merged by `join`."""
    if not problem.companions:
        return weights
    merged = weights.copy()
    for cluster in clusters_of(problem, conflicts_of(problem)):
        members = list(cluster.members)
        merged[members] = join.reduce(weights[members])
    return merged


def _sizes(problem: Problem) -> NDArray[np.int64]:
    return np.array([buffer.size for buffer in problem.buffers], dtype=np.int64)


def _live_times(problem: Problem) -> NDArray[np.int64]:
    """Return the live time of each buffer, gaps excluded."""
    return np.array([sum(end - begin for begin, end in b.pieces) for b in problem.buffers], dtype=np.int64)
