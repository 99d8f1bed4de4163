"""Greedy strategies: take the buffers in some order, put each into a hole between those it conflicts with.

    first_fit                  in order of birth, into the lowest hole that fits
    best_fit_by_size           largest first, into the smallest hole that fits
    best_fit_by_lifetime       longest alive first
    best_fit_by_area           largest size x lifetime first
    best_fit_by_interference   most conflicts first

If no hole fits, a buffer goes on top of its neighbours. Ties go to the larger buffer, then to the
earlier position. Companions are placed together: their neighbours are those of any of them.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.packing.addresses import address_type, round_up
from sublet.packing.conflicts import Cluster, Conflicts, Mask, clusters_of, conflicts_of
from sublet.packing.deadline import stop_when_late
from sublet.packing.problem import Buffer, Packing, Problem

Addresses = NDArray[Any]
ChooseHole = Callable[[Addresses, Addresses, int, int], int]


class PlacedBuffers:
    """The buffers placed so far, kept in order of their offsets."""

    def __init__(self, problem: Problem) -> None:
        count = len(problem.buffers)
        self._begin = np.zeros(count, dtype=address_type(problem))
        self._end = np.zeros(count, dtype=address_type(problem))
        self._by_offset = np.empty(count, dtype=np.int32)
        self._offsets: list[int] = []

    def put(self, position: int, offset: int, size: int) -> None:
        """Place a buffer. It may overlap others: whoever calls has looked at the conflicts."""
        self._begin[position] = offset
        self._end[position] = offset + size
        if size == 0:
            return  # an empty buffer is in nobody's way
        rank, count = bisect(self._offsets, offset), len(self._offsets)
        self._offsets.insert(rank, offset)
        self._by_offset[rank + 1 : count + 1] = self._by_offset[rank:count]
        self._by_offset[rank] = position

    def among(self, mask: Mask) -> tuple[Addresses, Addresses]:
        """Begins and ends of the placed buffers that `mask` marks, in order of begin."""
        placed = self._by_offset[: len(self._offsets)]
        marked = placed[mask[placed]]
        return self._begin[marked], self._end[marked]

    def packing(self, strategy: str) -> Packing:
        arena_bytes = max((int(end) for end in self._end), default=0)
        return Packing(tuple(int(begin) for begin in self._begin), arena_bytes, strategy)


def lowest_hole(begins: Addresses, ends: Addresses, size: int, alignment: int) -> int:
    """The lowest offset that fits between neighbours sorted by begin."""
    starts, fits, _ = _holes(begins, ends, size, alignment)
    found = int(fits.argmax()) if fits.any() else -1
    return int(starts[found])


def smallest_hole(begins: Addresses, ends: Addresses, size: int, alignment: int) -> int:
    """The start of the smallest hole that fits, the lowest of several; else on top of all neighbours."""
    starts, fits, widths = _holes(begins, ends, size, alignment)
    fitting = np.flatnonzero(fits)
    found = int(fitting[widths[fitting].argmin()]) if len(fitting) else -1
    return int(starts[found])


def _holes(begins: Addresses, ends: Addresses, size: int, alignment: int) -> tuple[Addresses, Mask, Addresses]:
    """Aligned start of the hole below each neighbour (and above the last); whether it fits; its bytes."""
    starts = np.zeros(len(begins) + 1, dtype=begins.dtype)
    if len(begins):
        np.maximum.accumulate(ends, out=starts[1:])
    if alignment > 1:
        starts = -(-starts // alignment) * alignment
    widths = begins - starts[:-1]
    return starts, widths >= size, widths


def place_in_order(problem: Problem, order: Sequence[Cluster], choose: ChooseHole, strategy: str) -> Packing:
    """Place clusters one after another. Inner loop of all greedy strategies."""
    conflicts = conflicts_of(problem)
    placed = PlacedBuffers(problem)
    for cluster in order:
        stop_when_late()
        if not cluster.sized:
            continue
        near = conflicts.row(cluster.sized[0])
        for position in cluster.sized[1:]:
            near = near | conflicts.row(position)
        begins, ends = placed.among(near)
        offset = choose(begins, ends, cluster.size, cluster.alignment)
        for position in cluster.members:
            placed.put(position, offset, problem.buffers[position].size)
    return placed.packing(strategy)


def alive_for(buffer: Buffer) -> int:
    """For how much time the buffer needs its bytes."""
    return sum(end - begin for begin, end in buffer.pieces)


def no_reuse(problem: Problem) -> Packing:
    """Every buffer gets bytes of its own, in order of position; companions get the same. For debugging."""
    offsets = [0] * len(problem.buffers)
    top = 0
    for cluster in clusters_of(problem, conflicts_of(problem)):
        offset = round_up(top, cluster.alignment) if cluster.sized else 0
        for position in cluster.members:
            offsets[position] = offset
        top = max(top, offset + cluster.size)
    return Packing(tuple(offsets), top, "no_reuse")


def first_fit(problem: Problem) -> Packing:
    clusters = clusters_of(problem, conflicts_of(problem))
    born = [min(problem.buffers[position].lower for position in cluster.members) for cluster in clusters]
    order = sorted(range(len(clusters)), key=lambda index: (born[index], -clusters[index].size, index))
    return place_in_order(problem, [clusters[index] for index in order], lowest_hole, "first_fit")


def best_fit_by_size(problem: Problem) -> Packing:
    sizes = [buffer.size for buffer in problem.buffers]
    return _best_fit(problem, conflicts_of(problem), sizes, max, "best_fit_by_size")


def best_fit_by_lifetime(problem: Problem) -> Packing:
    lifetimes = [alive_for(buffer) for buffer in problem.buffers]
    return _best_fit(problem, conflicts_of(problem), lifetimes, sum, "best_fit_by_lifetime")


def best_fit_by_area(problem: Problem) -> Packing:
    areas = [alive_for(buffer) * buffer.size for buffer in problem.buffers]
    return _best_fit(problem, conflicts_of(problem), areas, sum, "best_fit_by_area")


def best_fit_by_interference(problem: Problem) -> Packing:
    conflicts = conflicts_of(problem)
    degrees = [int(degree) for degree in conflicts.degrees()]
    return _best_fit(problem, conflicts, degrees, sum, "best_fit_by_interference")


def _best_fit(
    problem: Problem,
    conflicts: Conflicts,
    weights: Sequence[int],
    join: Callable[[Sequence[int]], int],
    strategy: str,
) -> Packing:
    """Heaviest cluster first; `join` makes one weight of its members' weights."""
    clusters = clusters_of(problem, conflicts)
    heaviness = [join([weights[position] for position in cluster.members]) for cluster in clusters]
    order = sorted(range(len(clusters)), key=lambda index: (-heaviness[index], -clusters[index].size, index))
    return place_in_order(problem, [clusters[index] for index in order], smallest_hole, strategy)
