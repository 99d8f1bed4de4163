"""The reuse order of buffers: possible successors of each buffer in the same bytes, and the distance in time (hops).

    lifetimes     hops(i, j) = lower_j - upper_i + 1 when i ends before j begins (gaps ignored)
    a precedence  hops(i, j) = distance[i, j]

0 means that j cannot follow i.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sublet.packing.conflicts import Cluster
from sublet.packing.problem import Problem

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
