"""Lower bounds on the bytes of every packing of a problem.

All bounds rest on one argument: buffers in pairwise conflict (a clique) lie side by side, so the
arena holds at least the sum of their sizes. Every bound here is a clique, and is computed from the
members alone; a search without the best clique makes the bound weaker, never wrong.

    peak        the buffers live at one time (lifetimes; gaps respected)
    antichain   the heaviest set without a pair in order (a precedence), by maximum flow

A pinned buffer proves that the arena reaches beyond its end. Pairs in `may_overlap` and
`compatible` pairs of a precedence do not conflict, and so must not meet in a clique. The flow treats the pairs
as related, which separates them. The planner also tries the serial peak and the antichain of the precedence
alone, after removal of the smaller buffer of every compatible pair.

Alignment: if every alignment in the clique is a multiple of g, every offset is a multiple of g, and each member but
the topmost takes its size rounded up to g before the next can begin. Where alignments differ, the
buffers of one alignment can prove more than all buffers live with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from sublet.base.ranges import LiveCurve, holds
from sublet.packing import _core
from sublet.packing.conflicts import PrecedenceConflicts
from sublet.packing.normalize import overlaps_as_precedence
from sublet.packing.problem import Precedence, Problem, round_up

# The heaviest antichain of a partial order, by maximum flow.
#
# Weighted Dilworth: in the network S -> i (capacity w_i), i -> j' (unlimited, where i precedes j), j' -> T (capacity
# w_j), the heaviest antichain weighs the sum of all w minus the maximum flow. The set is read off the minimum cut: all
# i with i reachable from S but i' unreachable.
#
# For any relation and any rounding of the weights, no two members of the set are related (i reached and i before j make
# j' reached); rounding and an intransitive relation can only cost weight. The set is therefore a proof by itself.

_MOST_WEIGHT = 1 << 60  # below the unlimited capacity of the core


def heaviest_antichain(related: NDArray[np.bool_], weights: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of a set without any related pair.

    The set is the heaviest if `related` is a strict partial order and the weights, divided by their greatest common
    divisor, sum to at most 2^60; otherwise nearly the heaviest.
    """
    if not any(weights):
        return ()
    return tuple(_core.heaviest_antichain(np.ascontiguousarray(related), _small_weights(weights)))


def _small_weights(weights: Sequence[int]) -> NDArray[np.int64]:
    """Return the weights divided by their common divisor and, if their sum is still too large, rounded down."""
    unit = gcd(*weights)
    total = sum(weights) // unit
    unit *= -(-total // _MOST_WEIGHT)
    return np.array([weight // unit for weight in weights], dtype=np.int64)


MOST_GRIDS = 4
"""Largest alignments with a separate sweep over time each, for the peak of the buffers so aligned."""
MAX_FLOW_BUFFERS = 4_000  # beyond, the flow network has too many edges (one per ordered pair)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound: no packing has fewer `bytes`. The buffers at the positions `members` prove the bound.

    `kind` names the method: "peak", "antichain", "pinned" or "search".
    """

    bytes: int
    kind: str
    members: tuple[int, ...]


def lower_bound(problem: Problem) -> LowerBound:
    """Return the best lower bound known, in bytes. The docstring of the module proves validity."""
    problem = overlaps_as_precedence(problem)
    peak = peak_bound(problem)
    if problem.precedence is None or len(problem.buffers) > MAX_FLOW_BUFFERS:
        return peak
    antichain = _antichain_bound(problem, problem.precedence)
    return antichain if antichain.bytes >= peak.bytes else peak


def peak_bound(problem: Problem) -> LowerBound:
    """Return the bound from the times with the most live bytes. Fast: one sweep over the lifetimes."""
    problem = overlaps_as_precedence(problem)
    candidates = [_live_at_peak(problem, [buffer.size for buffer in problem.buffers])]
    candidates += [_live_at_peak(problem, _round_up_sizes(problem, step)) for step in _alignment_grids(problem)]
    if problem.precedence is not None:
        conflicts = PrecedenceConflicts(problem.precedence.conflicts())
        candidates = [clique_within(problem, conflicts, members) for members in candidates]
    return _higher_bound(_best_clique_bound(problem, "peak", candidates), _pin_bound(problem))


def _alignment_grids(problem: Problem) -> list[int]:
    """Return the greatest common divisor of all alignments, and the MOST_GRIDS largest alignments."""
    alignments = {buffer.alignment for buffer in problem.buffers if buffer.size > 0}
    common = gcd(*alignments)
    return sorted({common, *sorted(alignments)[-MOST_GRIDS:]} - {0, 1})


def _round_up_sizes(problem: Problem, step: int) -> list[int]:
    """Return the sizes rounded up to `step` of buffers with alignments divisible by `step`; 0 for all other buffers."""
    return [0 if buffer.alignment % step else round_up(buffer.size, step) for buffer in problem.buffers]


def _pin_bound(problem: Problem) -> LowerBound:
    """Return the bound from the pinned buffer with the highest end."""
    pins = [(b.pinned + b.size, i) for i, b in enumerate(problem.buffers) if b.pinned is not None and b.size]
    end, position = max(pins, default=(0, -1))
    return LowerBound(end, "pinned", (position,) if pins else ())


def _higher_bound(one: LowerBound, other: LowerBound) -> LowerBound:
    return other if other.bytes > one.bytes else one


def _antichain_bound(problem: Problem, precedence: Precedence) -> LowerBound:
    sizes = [buffer.size for buffer in problem.buffers]
    step = _common_alignment(problem, range(len(sizes)))
    weights = [round_up(size, step) for size in sizes]
    before = precedence.distance > 0
    if precedence.compatible is None:
        return _best_clique_bound(problem, "antichain", [heaviest_antichain(before, weights)])
    conflicts = PrecedenceConflicts(precedence.conflicts())
    apart = before | _directed_pairs(problem, precedence.compatible & ~before & ~before.T)
    candidates = [heaviest_antichain(apart, weights), heaviest_antichain(before, weights)]
    return _best_clique_bound(
        problem, "antichain", [clique_within(problem, conflicts, members) for members in candidates]
    )


def _directed_pairs(problem: Problem, compatible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return each compatible pair once, directed from the buffer that the serial order runs first."""
    time = sorted(range(len(problem.buffers)), key=lambda position: (problem.buffers[position].lower, position))
    rank = np.empty(len(time), dtype=np.int64)
    rank[time] = np.arange(len(time))
    directed: NDArray[np.bool_] = compatible & (rank[:, None] < rank[None, :])
    return directed


def _best_clique_bound(problem: Problem, kind: str, cliques: Iterable[tuple[int, ...]]) -> LowerBound:
    bounds = [LowerBound(bytes_of_clique(problem, members), kind, members) for members in cliques]
    return max(bounds, key=lambda bound: bound.bytes)


def bytes_of_clique(problem: Problem, members: tuple[int, ...]) -> int:
    """Return the bytes needed by buffers in pairwise conflict."""
    sizes = [problem.buffers[position].size for position in members]
    step = _common_alignment(problem, members)
    rounded = [round_up(size, step) for size in sizes]
    slack = max((whole - size for whole, size in zip(rounded, sizes, strict=True)), default=0)
    return max(sum(sizes), sum(rounded) - slack)


def _common_alignment(problem: Problem, positions: Iterable[int]) -> int:
    alignments = [problem.buffers[position].alignment for position in positions if problem.buffers[position].size > 0]
    return max(1, gcd(*alignments))


def _live_at_peak(problem: Problem, weights: list[int]) -> tuple[int, ...]:
    """Return the buffers with bytes at the first time with the largest sum of live weights."""
    lives = [tuple(buffer.pieces) for buffer in problem.buffers]
    peak, _ = LiveCurve.from_sizes(zip(lives, weights, strict=True)).peak
    return tuple(position for position, live in enumerate(lives) if weights[position] > 0 and holds(live, peak))


def clique_within(problem: Problem, conflicts: PrecedenceConflicts, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return members in pairwise conflict: largest first, each kept if in conflict with all kept before."""
    allowed = np.ones(len(problem.buffers), dtype=np.bool_)
    clique = []
    for position in sorted(members, key=lambda member: (-problem.buffers[member].size, member)):
        if allowed[position]:
            clique.append(position)
            allowed &= conflicts.row(position)
    return tuple(sorted(clique))
