"""The interference graph of a problem, one row at a time, and the clusters of buffers with one offset.

A problem of 28,000 buffers has 400 million pairs, too many to store. A row is one vectorised
comparison of all lifetimes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sublet.base.disjoint_sets import DisjointSets
from sublet.base.errors import ProblemError
from sublet.packing.problem import Problem

Mask = NDArray[np.bool_]


class Conflicts(Protocol):
    """The interference graph of a problem. Sizes are ignored: an empty buffer conflicts too."""

    def row(self, position: int) -> Mask:
        """Return a mask: True at every buffer in conflict with the buffer at `position`, False at `position` itself."""
        ...

    def degrees(self) -> NDArray[np.int64]:
        """Return the number of conflicts of each buffer."""
        ...


class LifetimeConflicts:
    """Interference of lifetimes without gaps: two buffers conflict when both are live at some time."""

    def __init__(self, problem: Problem) -> None:
        self._lower = np.array([buffer.lower for buffer in problem.buffers], dtype=np.int64)
        self._upper = np.array([buffer.upper for buffer in problem.buffers], dtype=np.int64)

    def row(self, position: int) -> Mask:
        mask: Mask = self._lower < self._upper[position]
        mask &= self._upper > self._lower[position]
        mask[position] = False
        return mask

    def degrees(self) -> NDArray[np.int64]:
        born_in_time = np.searchsorted(np.sort(self._lower), self._upper, side="left")
        dead_before = np.searchsorted(np.sort(self._upper), self._lower, side="right")
        return (born_in_time - dead_before - 1).astype(np.int64)


class PieceConflicts:
    """Interference of lifetimes with gaps: two buffers conflict when their live pieces overlap."""

    def __init__(self, problem: Problem) -> None:
        pieces = [
            (begin, end, position) for position, buffer in enumerate(problem.buffers) for begin, end in buffer.pieces
        ]
        table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
        self._begin, self._end, self._owner = table.T.copy()
        self._first = np.searchsorted(self._owner, np.arange(len(problem.buffers) + 1))

    def row(self, position: int) -> Mask:
        mask = np.zeros(len(self._first) - 1, dtype=np.bool_)
        for piece in range(self._first[position], self._first[position + 1]):
            overlaps = (self._begin < self._end[piece]) & (self._end > self._begin[piece])
            mask[self._owner[overlaps]] = True
        mask[position] = False
        return mask

    def degrees(self) -> NDArray[np.int64]:
        rows = range(len(self._first) - 1)
        return np.array([np.count_nonzero(self.row(position)) for position in rows], dtype=np.int64)


class PrecedenceConflicts:
    """Interference in a partial order: neither buffer precedes the other, and the pair is not compatible."""

    def __init__(self, matrix: Mask) -> None:
        self._matrix = matrix

    def row(self, position: int) -> Mask:
        row: Mask = self._matrix[position]
        return row

    def degrees(self) -> NDArray[np.int64]:
        degrees: NDArray[np.int64] = self._matrix.sum(axis=1, dtype=np.int64)
        return degrees


def conflicts_of(problem: Problem) -> Conflicts:
    """Return the interference graph of a problem, by precedence if given, else by lifetimes."""
    if problem.precedence is not None:
        return PrecedenceConflicts(problem.precedence.conflicts())
    if any(buffer.gaps for buffer in problem.buffers):
        return PieceConflicts(problem)
    return LifetimeConflicts(problem)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Buffers with one common offset: companions, or a single buffer.

    `members` ascend; `sized` lists the members with bytes; `size` is the size of the largest member;
    `alignment` is a common multiple of the alignments of all members.
    """

    members: tuple[int, ...]
    sized: tuple[int, ...]
    size: int
    alignment: int


def clusters_of(problem: Problem, conflicts: Conflicts) -> list[Cluster]:
    """Return the clusters of the companions (transitively), in order of the first member.

    Raises ProblemError when two members of a cluster conflict: no common offset can exist.
    """
    sets = DisjointSets[int]()
    for companion in problem.companions:
        sets.union(companion.first, companion.second)
    members: dict[int, list[int]] = {}
    for position in range(len(problem.buffers)):
        members.setdefault(sets.find(position), []).append(position)
    return [_cluster(problem, conflicts, tuple(group)) for group in members.values()]


def _cluster(problem: Problem, conflicts: Conflicts, members: tuple[int, ...]) -> Cluster:
    buffers = problem.buffers
    sized = tuple(position for position in members if buffers[position].size > 0)
    for position in sized if len(sized) > 1 else ():
        row = conflicts.row(position)
        for other in sized:
            if row[other]:
                raise ProblemError(
                    f"buffers {buffers[position].id} and {buffers[other].id} are companions but conflict: "
                    "companions need the same offset"
                )
    size = max(buffers[position].size for position in members)
    return Cluster(members, sized, size, lcm(*(buffers[position].alignment for position in members)))
