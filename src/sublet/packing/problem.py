"""Question and answer of packing, as plain data.

    id   lower  upper  size  alignment        offset
    ---  -----  -----  ----  ---------        ------
    a    0      3      64    64               0
    b    1      2      128   64          ->   64

A buffer needs `size` bytes at an address that is a multiple of `alignment`, at every time t with
lower <= t < upper, except in its gaps. Buffers that need bytes at the same time must not overlap.

In a partial order there is no clock: a `Precedence` says which buffer ends before which begins, and
two buffers conflict when neither precedes the other. Pairs in `may_overlap` never conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
    """One thing to place.

    gaps      sorted half-open ranges inside (lower, upper) without need
    pinned    the offset it must have, or None
    accesses  how often all of its bytes are read or written, for what it costs in a memory region
    label     what people know it as, for messages; its id where there is none
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
        """One that is needed in just these ranges of time, which are sorted and disjoint."""
        return cls(id, size, pieces[0][0], pieces[-1][1], alignment, gaps(pieces), label=label)

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """The half-open ranges of time at which the bytes are needed."""
        begin = self.lower
        for gap_begin, gap_end in self.gaps:
            yield begin, gap_begin
            begin = gap_end
        yield begin, self.upper


@dataclass(frozen=True, eq=False)
class Precedence:
    """A partial order on the buffers of a problem.

    `distance[i, j]` is 0 when buffer i does not precede buffer j, else the number of steps (>= 1) on
    the longest way from i's end to j's begin. `compatible[i, j]` marks pairs that do not conflict
    although neither precedes the other (symmetric; arms of one branch).
    Invariant: "precedes" is transitive; the allocation graph hands bytes on along it.
    """

    distance: NDArray[np.int32]
    compatible: NDArray[np.bool_] | None = None

    def check_shape(self, count: int) -> None:
        """Raise ProblemError unless this orders `count` buffers and no two precede each other."""
        matrices = [self.distance] if self.compatible is None else [self.distance, self.compatible]
        for matrix in matrices:
            if matrix.shape != (count, count):
                raise ProblemError(f"precedence: a matrix of shape {matrix.shape} cannot order {count} buffers")
        before = self.distance > 0
        both = before & before.T
        if bool(both.any()):
            first, second = np.argwhere(both)[0]
            raise ProblemError(f"precedence: buffers {first} and {second} each precede the other")

    def of(self, positions: Sequence[int]) -> Precedence:
        """The order of the buffers at these positions, as they are listed."""
        chosen = np.ix_(positions, positions)
        return Precedence(self.distance[chosen], None if self.compatible is None else self.compatible[chosen])

    def conflicts(self) -> NDArray[np.bool_]:
        """Symmetric matrix: True where two different buffers must not overlap."""
        before = self.distance > 0
        conflict = ~(before | before.T)
        if self.compatible is not None:
            conflict &= ~self.compatible
        np.fill_diagonal(conflict, False)
        return conflict


@dataclass(frozen=True, slots=True, order=True)
class Companion:
    """The buffer at position `second` lies `distance` bytes above the one at `first` (below, if negative)."""

    first: int
    second: int
    distance: int = 0


@dataclass(frozen=True)
class Problem:
    """Buffers to place in one arena.

    `precedence`, when given, decides conflicts instead of the lifetimes, which then are those of one
    serial order. `companions` tie the offsets of two buffers together. `may_overlap` are pairs of positions
    in `buffers` that do not conflict although both are alive (one is written over the other, in place).
    Invariant: ids are unique; the matrices of the precedence have one row and column a buffer; companions
    and pairs are positions. Raises ProblemError otherwise.
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
                raise ProblemError(f"buffer id {buffer.id} is given twice")
            seen.add(buffer.id)
        count = len(self.buffers)
        if self.precedence is not None:
            self.precedence.check_shape(count)
        for companion in self.companions:
            if not isinstance(companion, Companion):
                raise ProblemError(f"companions {companion}: write Companion(first, second) with two positions")
            if not (0 <= companion.first < count and 0 <= companion.second < count):
                raise ProblemError(f"companions {companion}: must be two positions below {count}")
            if abs(companion.distance) > MAX_SIZE:
                raise ProblemError(f"companions {companion}: the distance must lie within +-2^62")
        for pair in self.may_overlap:
            if len(pair) != 2 or not all(0 <= position < count for position in pair) or pair[0] == pair[1]:
                raise ProblemError(f"may_overlap {pair}: must be two different positions below {count}")

    @property
    def pinned(self) -> bool:
        """Whether any offset is given."""
        return any(buffer.pinned is not None for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class Packing:
    """An answer: one offset a buffer, in the order of the problem."""

    offsets: tuple[int, ...]
    arena_bytes: int
    strategy: str


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
