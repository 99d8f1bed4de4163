"""Groups of values that are one block of bytes, and which members of a group a newcomer may get in the way of.

A group of thousands of members is common: a chain of ops that each write over their input, the parts of a wide
concatenation. So joining two touches only the smaller, and members are found by when and where they lie.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.liveness import Pieces
from sublet.analysis.windows import Window
from sublet.base.ranges import merge
from sublet.ir.graph import Value

SHORT = 6
"""Lives are looked up in cells of 2^SHORT half points."""

MOST_CELLS = 8
"""A life in more of them is looked up by its bytes instead."""


class Member(NamedTuple):
    """A value in a buffer: its offset there, how it came in, and whose bytes it took."""

    value: Value
    offset: int
    how: str = "own"
    shares: str = ""


Cell = tuple[str, int, int]
Place = tuple[int, int, Member]
"""The bytes [begin, end) of a member, as it was put there: how it came in may be told otherwise since."""
Order = tuple["Order", "Order"] | Value
"""Members in order, as a tree, so that joining two takes no time."""


@dataclass(eq=False)
class Group:
    """Values that are one block: bytes [low, high) of a frame of its own, live at the points `live`."""

    members: dict[Value, Member]
    order: Order
    low: int
    high: int
    live: Pieces
    home: str = ""
    writable: bool = True  # whether the network may write there
    filled: bool = False  # whether the caller puts bytes there before the run
    window: Window | None = None  # the bytes are those of another group, other ones every round
    first: Value | None = None  # the member with bytes of its own, which the others share; none in those of a whole
    cells: dict[Cell, list[Place]] = field(default_factory=dict)
    levels: set[int] = field(default_factory=set)  # of the cells by bytes

    @property
    def fixed(self) -> bool:
        """Whether its bytes are there already, so that it needs none in the arena."""
        return bool(self.home) or self.window is not None

    @property
    def nbytes(self) -> int:
        return self.high - self.low

    def put(self, member: Member, halves: Pieces) -> None:
        """Add a member, or let it be looked up as it is now."""
        self.members[member.value] = member
        place = (member.offset, member.offset + member.value.nbytes, member)
        for cell in _cells(member.offset, member.value.nbytes, halves):
            self.cells.setdefault(cell, []).append(place)
            if cell[0] == "bytes":
                self.levels.add(cell[1])

    def beside(self, offset: int, nbytes: int, halves: Pieces) -> Iterator[Member]:
        """At least the members that share bytes with [offset, offset + nbytes) while they live, or just before."""
        levels = sorted(self.levels)
        times = (halves[-1][1] - halves[0][0] >> SHORT) + 1 if halves else 0
        if times + sum((nbytes >> level) + 2 for level in levels) >= len(self.members):
            yield from self.members.values()
            return
        last = offset + nbytes
        seen: set[int] = set()
        for cell in chain(_times(halves), *(_bytes(offset, nbytes, level) for level in levels)):
            for begin, end, member in self.cells.get(cell, ()):
                if begin < last and offset < end and id(member) not in seen:
                    seen.add(id(member))
                    yield member

    def in_order(self) -> Iterator[Member]:
        """All members, those of a group before those of one that joined it."""
        todo = [self.order]
        while todo:
            order = todo.pop()
            if isinstance(order, Value):
                yield self.members[order]
            else:
                todo += reversed(order)


def union(a: Group, b: Group, shift: int) -> Group:
    """What the bytes of two groups are together when `b` is moved by `shift`; without the members."""
    home = a if a.fixed else b
    return Group(
        members={},
        order=(a.order, b.order),
        low=min(a.low, b.low + shift),
        high=max(a.high, b.high + shift),
        live=merge((*a.live, *b.live)),
        home=home.home,
        writable=home.writable,
        filled=a.filled or b.filled,
        window=home.window,
    )


def add(curve: NDArray[np.int64], group: Group, sign: int, origin: int) -> None:
    """Add the bytes of a group of the arena to the points of `curve`, which starts at `origin`."""
    if not group.fixed:
        for begin, end in group.live:
            curve[begin - origin : end - origin] += sign * group.nbytes


def joined(curve: NDArray[np.int64], a: Group, b: Group, together: Group) -> None:
    """Change the bytes of two groups in `curve` to those of both together."""
    if a.fixed == b.fixed and a.nbytes == b.nbytes == together.nbytes:
        for begin, end in _common(a.live, b.live) if not a.fixed else ():
            curve[begin:end] -= together.nbytes
        return
    for group, sign in ((a, -1), (b, -1), (together, 1)):
        add(curve, group, sign, 0)


def _common(a: Pieces, b: Pieces) -> Iterator[tuple[int, int]]:
    """The ranges that lie in both."""
    many, few = (a, b) if len(a) >= len(b) else (b, a)
    for begin, end in few:
        for i in range(max(0, bisect_right(many, (begin, begin)) - 1), len(many)):
            if many[i][0] >= end:
                break
            if many[i][1] > begin:
                yield max(begin, many[i][0]), min(end, many[i][1])


def _cells(offset: int, nbytes: int, halves: Pieces) -> Iterator[Cell]:
    """Where a member is looked up: by when it lives, or, when that is long, by its bytes."""
    times = list(_times(halves, MOST_CELLS))
    if len(times) <= MOST_CELLS:
        yield from times
    else:
        level = max(0, (nbytes - 1).bit_length())
        yield from _bytes(offset, nbytes, level)


def _times(halves: Pieces, most: int | None = None) -> Iterator[Cell]:
    """The cells of half points of a life, ends included; a few more than `most` when there are more."""
    last, count = -1, 0
    for begin, end in halves:
        for at in range(max(begin >> SHORT, last + 1), (end >> SHORT) + 1):
            yield "time", SHORT, at
            last, count = at, count + 1
            if most is not None and count > most:
                return


def _bytes(offset: int, nbytes: int, level: int) -> Iterator[Cell]:
    """The cells of 2^level bytes that a range of bytes touches."""
    return (("bytes", level, at) for at in range(offset >> level, ((offset + nbytes - 1) >> level) + 1))
