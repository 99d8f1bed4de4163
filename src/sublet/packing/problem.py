"""Data types of a packing problem and of its packings.

    id   lower  upper  size  alignment        offset
    ---  -----  -----  ----  ---------        ------
    a    0      3      64    64               0
    b    1      2      128   64          ->   64

A buffer needs `size` bytes at an address divisible by `alignment`, at every time t with
lower <= t < upper, except in its gaps. Buffers with overlapping live ranges must not overlap in memory.

A partial order has no clock: a `Precedence` lists which buffer ends before which buffer begins, and
two buffers conflict when neither precedes the other. Pairs in `may_overlap` never conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.base.ranges import Ranges, gaps

MAX_SIZE = 1 << 62
MAX_ALIGNMENT = 1 << 32
MAX_TIME = 1 << 53
MAX_ACCESSES = 1 << 53


@dataclass(frozen=True, slots=True)
class Buffer:
    """A block of bytes to place, with its live range.

    gaps      sorted half-open ranges inside (lower, upper) in which the bytes are not needed
    pinned    the required offset, or None
    accesses  how often all bytes are read or written: the weight of the buffer in the cost of a memory region
    label     display name for messages; the id if empty
    """

    id: str
    size: int
    lower: int
    upper: int
    alignment: int = 1
    gaps: tuple[tuple[int, int], ...] = ()
    pinned: int | None = None
    accesses: int = 1
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.lower >= self.upper:
            raise ProblemError(f"buffer {self.id}: lower {self.lower} must be less than upper {self.upper}")
        if self.lower < -MAX_TIME or self.upper > MAX_TIME:
            raise ProblemError(f"buffer {self.id}: lifetime {self.lower}-{self.upper} must lie within +-2^53")
        if not 0 <= self.size <= MAX_SIZE:
            raise ProblemError(f"buffer {self.id}: size {self.size} must be between 0 and 2^62")
        if not 1 <= self.alignment <= MAX_ALIGNMENT:
            raise ProblemError(f"buffer {self.id}: alignment {self.alignment} must be between 1 and 2^32")
        if self.pinned is not None and not 0 <= self.pinned <= MAX_SIZE:
            raise ProblemError(f"buffer {self.id}: pinned {self.pinned} must be between 0 and 2^62")
        if self.pinned is not None and self.pinned % self.alignment:
            what = f"pinned {self.pinned} must be a multiple of its alignment {self.alignment}"
            raise ProblemError(f"buffer {self.id}: {what}")
        if not 0 <= self.accesses <= MAX_ACCESSES:
            raise ProblemError(f"buffer {self.id}: accesses {self.accesses} must be between 0 and 2^53")
        time = self.lower
        for begin, end in self.gaps:
            if not time < begin < end < self.upper:
                raise ProblemError(f"buffer {self.id}: gap {begin}-{end} must lie inside its lifetime, in order")
            time = end

    @classmethod
    def alive_in(cls, id: str, size: int, pieces: Ranges, alignment: int = 1, label: str = "") -> Buffer:
        """Return a buffer with the live range `pieces`: sorted, disjoint, half-open ranges of time."""
        return cls(id, size, pieces[0][0], pieces[-1][1], alignment, gaps(pieces), label=label)

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the half-open ranges of time in which the bytes are needed."""
        begin = self.lower
        for gap_begin, gap_end in self.gaps:
            yield begin, gap_begin
            begin = gap_end
        yield begin, self.upper


@dataclass(frozen=True, eq=False)
class Precedence:
    """A partial order on the buffers of a problem.

    `distance[i, j]` is 0 when buffer i does not precede buffer j, else the number of steps (>= 1) on
    the longest path from the end of i to the begin of j. `compatible[i, j]` marks pairs without a conflict
    although neither precedes the other (symmetric; arms of one branch).
    Invariant: "precedes" is transitive; the allocation graph passes bytes on along the relation.
    """

    distance: NDArray[np.int32]
    compatible: NDArray[np.bool_] | None = None

    def check_shape(self, count: int) -> None:
        """Raise ProblemError unless the matrices order `count` buffers and no two buffers precede each other."""
        matrices = [self.distance] if self.compatible is None else [self.distance, self.compatible]
        for matrix in matrices:
            if matrix.shape != (count, count):
                raise ProblemError(f"precedence: a matrix of shape {matrix.shape} cannot order {count} buffers")
        before = self.distance > 0
        both = before & before.T
        if bool(both.any()):
            first, second = np.argwhere(both)[0]
            raise ProblemError(f"precedence: buffers {first} and {second} each precede the other")

    def select(self, positions: Sequence[int]) -> Precedence:
        """Return the order restricted to the buffers at `positions`, in the sequence of `positions`."""
        chosen = np.ix_(positions, positions)
        return Precedence(self.distance[chosen], None if self.compatible is None else self.compatible[chosen])

    def conflicts(self) -> NDArray[np.bool_]:
        """Return a symmetric matrix: True where two different buffers must not overlap."""
        before = self.distance > 0
        conflict = ~(before | before.T)
        if self.compatible is not None:
            conflict &= ~self.compatible
        np.fill_diagonal(conflict, False)
        return conflict


@dataclass(frozen=True, slots=True, order=True)
class Companion:
    """An offset constraint: buffer `second` lies `distance` bytes above buffer `first` (below, if negative)."""

    first: int
    second: int
    distance: int = 0


@dataclass(frozen=True)
class Problem:
    """The buffers to place in one arena, with their constraints.

    precedence    if given, decides conflicts in place of the lifetimes, which then describe one serial order
    companions    offset constraints between pairs of buffers
    may_overlap   pairs of positions in `buffers` without a conflict although both are live (in-place results)

    Invariant: ids are unique; the matrices of the precedence have one row and column per buffer; companions
    and pairs refer to positions. Raises ProblemError otherwise.
    """

    buffers: tuple[Buffer, ...]
    precedence: Precedence | None = None
    companions: tuple[Companion, ...] = ()
    name: str = ""
    may_overlap: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.id in seen:
                raise ProblemError(f"buffer id {buffer.id} occurs twice")
            seen.add(buffer.id)
        count = len(self.buffers)
        if self.precedence is not None:
            self.precedence.check_shape(count)
        for companion in self.companions:
            if not isinstance(companion, Companion):
                raise ProblemError(f"companions {companion}: pass Companion(first, second) with two positions")
            if not (0 <= companion.first < count and 0 <= companion.second < count):
                raise ProblemError(f"companions {companion}: must be two positions below {count}")
            if abs(companion.distance) > MAX_SIZE:
                raise ProblemError(f"companions {companion}: the distance must lie within +-2^62")
        for pair in self.may_overlap:
            if len(pair) != 2 or not all(0 <= position < count for position in pair) or pair[0] == pair[1]:
                raise ProblemError(f"may_overlap {pair}: must be two different positions below {count}")

    @property
    def has_pins(self) -> bool:
        """True if any buffer has a required offset."""
        return any(buffer.pinned is not None for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class Packing:
    """One offset per buffer, in the order of the problem, with the arena size in bytes."""

    offsets: tuple[int, ...]
    arena_bytes: int
    strategy: str


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` not below `number`."""
    return -(-number // multiple) * multiple


# The canonical order of the buffers of a problem, by id, and sub-problems of selected buffers.


def order_by_id(problem: Problem) -> list[int]:
    """Return the positions in order of id. Shorter ids come first, so that numbers ascend."""
    ids = [buffer.id for buffer in problem.buffers]
    return sorted(range(len(ids)), key=lambda position: (len(ids[position]), ids[position]))


def select_buffers(problem: Problem, order: Sequence[int]) -> Problem:
    """Return the sub-problem of the buffers at the positions in `order`; buffer `order[i]` moves to position i."""
    rank = {position: rank for rank, position in enumerate(order)}
    ties = [tie for tie in problem.companions if tie.first in rank and tie.second in rank]
    return replace(
        problem,
        buffers=tuple(problem.buffers[position] for position in order),
        precedence=problem.precedence and problem.precedence.select(order),
        companions=tuple(sorted(Companion(rank[tie.first], rank[tie.second], tie.distance) for tie in ties)),
        may_overlap=tuple(sorted((rank[a], rank[b]) for a, b in problem.may_overlap if a in rank and b in rank)),
    )


def restore_order(packing: Packing, order: list[int]) -> Packing:
    """Return a packing of the reordered problem as a packing of the original."""
    offsets = [0] * len(order)
    for rank, position in enumerate(order):
        offsets[position] = packing.offsets[rank]
    return replace(packing, offsets=tuple(offsets))
