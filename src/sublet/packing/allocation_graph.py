"""libnnc's allocation graph: buffers pass their bytes on to later buffers.

An edge y -> x of w bytes means: w bytes of y, at some offset of their common group, are next needed
by x, so a buffer between y and x in time may use the bytes. SOURCE and TARGET are dummy ends: bytes
without an earlier, or without a later, user. A group is a range of bytes opened by its first buffer;
groups never merge, and become one arena by concatenation.

Placing a chain a -> b (one buffer, or several in sequence at one offset) on the edge y -> x:

    y --------w--------> x          y --a--> a --min(a,b)--> b --> x      the rest of w stays y -> x,
                                    y ---b-a---------------> b            the excess of a over b goes a -> x

A buffer takes the low bytes of the edge. After "The NNC Tensor Allocation Algorithm" (insertion), with
the edge costs of libnnc: the fewest hops; edges with a dummy end only if no other edge fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sublet.packing.conflicts import Cluster
from sublet.packing.problem import Problem, round_up

# The reuse order of buffers: possible successors of each buffer in the same bytes, and the distance in time (hops).
#
#     lifetimes     hops(i, j) = lower_j - upper_i + 1 when i ends before j begins (gaps ignored)
#     a precedence  hops(i, j) = distance[i, j]
#
# 0 means that j cannot follow i.

Positions = NDArray[np.int64]
Hops = NDArray[np.int64]


class ReuseOrder(Protocol):
    """The strict order "i ends before j begins" on the buffers of a problem."""

    def hops_to(self, sources: Positions, target: int) -> Hops:
        """Return the hops from the end of each source to the begin of `target`."""
        ...

    def hops_from(self, source: int, targets: Positions) -> Hops:
        """Return the hops from the end of `source` to the begin of each target."""
        ...


class LifetimeReuseOrder:
    """Reuse order of lifetimes. A gap counts as live: a buffer passes bytes on only after the whole lifetime."""

    def __init__(self, problem: Problem) -> None:
        self._lower = np.array([buffer.lower for buffer in problem.buffers], dtype=np.int64)
        self._upper = np.array([buffer.upper for buffer in problem.buffers], dtype=np.int64)

    def merge_members(self, members: tuple[int, ...]) -> None:
        """Replace the first member by all members: earliest begin to latest end."""
        chosen = list(members)
        self._lower[members[0]], self._upper[members[0]] = self._lower[chosen].min(), self._upper[chosen].max()

    def hops_to(self, sources: Positions, target: int) -> Hops:
        hops: Hops = np.maximum(self._lower[target] - self._upper[sources] + 1, 0)
        return hops

    def hops_from(self, source: int, targets: Positions) -> Hops:
        hops: Hops = np.maximum(self._lower[targets] - self._upper[source] + 1, 0)
        return hops


class PrecedenceReuseOrder:
    """Reuse order given by the distances of a precedence."""

    def __init__(self, distance: NDArray[np.int32]) -> None:
        self._distance = distance

    def merge_members(self, members: tuple[int, ...]) -> None:
        """Replace the first member by all members: related to a buffer only if every member is."""
        chosen, first = list(members), members[0]
        self._distance = self._distance.copy()
        after, before = self._distance[chosen], self._distance[:, chosen]
        self._distance[first] = np.where((after > 0).all(axis=0), after.max(axis=0), 0)
        self._distance[:, first] = np.where((before > 0).all(axis=1), before.max(axis=1), 0)
        self._distance[first, first] = 0

    def hops_to(self, sources: Positions, target: int) -> Hops:
        hops: Hops = self._distance[sources, target].astype(np.int64)
        return hops

    def hops_from(self, source: int, targets: Positions) -> Hops:
        hops: Hops = self._distance[source, targets].astype(np.int64)
        return hops


def reuse_order_of(problem: Problem, clusters: list[Cluster]) -> tuple[ReuseOrder, list[tuple[int, ...]]]:
    """Return the reuse order of a problem, and for every cluster its sized members in sequence.

    Members of a cluster not following each other (arms of one branch; a lifetime within another's
    gap) are merged: the first member represents all, and is related to a buffer only where every member is.
    """
    order: LifetimeReuseOrder | PrecedenceReuseOrder = (
        LifetimeReuseOrder(problem) if problem.precedence is None else PrecedenceReuseOrder(problem.precedence.distance)
    )
    chains = []
    for cluster in clusters:
        chain = _sequence_of(order, cluster.sized)
        if chain is None:
            order.merge_members(cluster.sized)
            chain = cluster.sized[:1]
        chains.append(chain)
    return order, chains


def _sequence_of(order: ReuseOrder, members: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the members in sequence, or None if two neighbours do not follow each other."""
    if len(members) < 2:
        return members
    everyone = np.array(members, dtype=np.int64)
    earlier = {position: int(np.count_nonzero(order.hops_to(everyone, position))) for position in members}
    chain = tuple(sorted(members, key=lambda position: (earlier[position], position)))
    follows = all(order.hops_from(a, np.array([b]))[0] > 0 for a, b in pairwise(chain))
    return chain if follows else None


SOURCE = -1
TARGET = -2


@dataclass(frozen=True, slots=True)
class Chain:
    """Buffers to place at one offset, each following the previous; `size` is the size of the largest."""

    buffers: tuple[int, ...]
    size: int
    alignment: int


class AllocationGraph:
    """The graph as growing arrays of edges; a search over all edges is a few vectorised comparisons."""

    def __init__(self, sizes: Sequence[int], succession: ReuseOrder) -> None:
        self._sizes = sizes
        self._reuse_order = succession
        self._from = np.empty(64, dtype=np.int64)
        self._to = np.empty(64, dtype=np.int64)
        self._bytes = np.empty(64, dtype=np.int64)
        self._offset = np.empty(64, dtype=np.int64)
        self._group = np.empty(64, dtype=np.int64)
        self._edges = 0
        self._group_alignment: list[int] = []
        self._group_size: list[int] = []
        self.placed_at: dict[int, tuple[int, int]] = {}  # buffer -> (group, offset in the group)

    def find_edge(self, chain: Chain) -> int | None:
        """Return the cheapest edge wide enough for the chain, or None."""
        wide = self._wide_edges(chain)
        ends = np.stack((self._from[wide], self._to[wide]))
        before, after = self._hops_around(ends, chain)
        usable = (before > 0) & (after > 0)
        real = (ends >= 0).all(axis=0)
        for candidates in (np.flatnonzero(usable & real), np.flatnonzero(usable & ~real)):
            if len(candidates):
                cost = before[candidates] + after[candidates]
                cheapest = candidates[cost == cost.min()]
                return int(wide[_first_in_scan_order(cheapest, ends, before, after)])
        return None

    def _wide_edges(self, chain: Chain) -> Positions:
        edges = slice(0, self._edges)
        wide = self._bytes[edges] >= chain.size
        if chain.alignment > 1:
            wide &= self._bytes[edges] >= chain.size + -self._offset[edges] % chain.alignment
        return np.flatnonzero(wide)

    def _hops_around(self, ends: Positions, chain: Chain) -> tuple[Hops, Hops]:
        """Return the hops from the begin of every edge to the chain, and from the chain to the end; 1 at dummies."""
        before = np.ones(ends.shape[1], dtype=np.int64)
        after = np.ones(ends.shape[1], dtype=np.int64)
        real = ends >= 0
        before[real[0]] = self._reuse_order.hops_to(ends[0][real[0]], chain.buffers[0])
        after[real[1]] = self._reuse_order.hops_from(chain.buffers[-1], ends[1][real[1]])
        return before, after

    def insert(self, chain: Chain, edge: int | None) -> None:
        """Place the chain on an edge returned by `find_edge`, or, if None, in a new group of its size."""
        if edge is None:
            group, source, target, offset = len(self._group_size), SOURCE, TARGET, 0
            self._group_size.append(chain.size)
            self._group_alignment.append(1)
        else:
            group, source, target = int(self._group[edge]), int(self._from[edge]), int(self._to[edge])
            offset = self._take_from(edge, chain)
        held = [(source, chain.size, offset)]  # (holder, bytes, begin) before the next buffer of the chain, ascending
        for buffer in chain.buffers:
            held = self._hand_over(held, buffer, offset, group)
        for holder, nbytes, begin in held:
            self._add_edge(holder, target, nbytes, begin, group)
        self._group_alignment[group] = lcm(self._group_alignment[group], chain.alignment)

    def _take_from(self, edge: int, chain: Chain) -> int:
        """Take the bytes of the chain from the low end of the edge; alignment padding becomes a separate edge."""
        low = int(self._offset[edge])
        offset = round_up(low, chain.alignment)
        taken = offset - low + chain.size
        self._bytes[edge] -= taken
        self._offset[edge] += taken
        if offset > low:
            self._add_edge(int(self._from[edge]), int(self._to[edge]), offset - low, low, int(self._group[edge]))
        return offset

    def _hand_over(
        self, held: list[tuple[int, int, int]], buffer: int, offset: int, group: int
    ) -> list[tuple[int, int, int]]:
        """Give `buffer` the low bytes of the current holders; the holders keep the rest. Return the new holders."""
        needed = self._sizes[buffer]
        remaining = [(buffer, needed, offset)]
        for holder, nbytes, begin in held:
            taken = min(nbytes, needed)
            needed -= taken
            if taken:
                self._add_edge(holder, buffer, taken, begin, group)
            if nbytes > taken:
                remaining.append((holder, nbytes - taken, begin + taken))
        self.placed_at[buffer] = (group, offset)
        return remaining

    def _add_edge(self, source: int, target: int, nbytes: int, offset: int, group: int) -> None:
        if self._edges == len(self._from):
            double = 2 * self._edges
            for name in ("_from", "_to", "_bytes", "_offset", "_group"):
                grown = np.empty(double, dtype=getattr(self, name).dtype)
                grown[: self._edges] = getattr(self, name)
                setattr(self, name, grown)
        at = self._edges
        self._from[at], self._to[at], self._group[at] = source, target, group
        self._bytes[at], self._offset[at] = nbytes, offset
        self._edges += 1

    def group_begins(self) -> list[int]:
        """Return the offset in the arena of each group, with the groups concatenated."""
        begins, top = [], 0
        for size, alignment in zip(self._group_size, self._group_alignment, strict=True):
            begins.append(round_up(top, alignment))
            top = begins[-1] + size
        return begins


def _first_in_scan_order(cheapest: Positions, ends: Positions, before: Hops, after: Hops) -> int:
    """Return the edge scanned first by libnnc among equally cheap ones: nearest before, then lowest positions."""

    def scan_order(index: int) -> tuple[int, int, int, int, int, int]:
        source, target = int(ends[0, index]), int(ends[1, index])
        return (int(source < 0), int(before[index]), source, int(after[index]), target, index)

    return min((int(index) for index in cheapest), key=scan_order)
