"""Coalesced buffers: sets of values in the same bytes, with an index of members by time and by bytes.

A buffer of thousands of members is common: a chain of in-place ops, or the operands of a wide concatenation. A merge
therefore touches the members of the smaller buffer only, and the index finds the members overlapping a candidate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.liveness import LiveRange
from sublet.analysis.program_facts import LoopView
from sublet.base.ranges import merge
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value

TIME_CELL_BITS = 6
"""Log2 of the size of a time cell, in slots."""

MAX_TIME_CELLS = 8
"""Time cells of a member. A member with a longer live range is indexed by bytes instead."""


class Member(NamedTuple):
    """A value in a buffer: the offset in bytes, the reason of sharing, and the name of the value shared with."""

    value: Value
    offset: int
    how: str = "own"
    shares: str = ""


IndexCell = tuple[str, int, int]
IndexEntry = tuple[int, int, Member]
"""Bytes [begin, end) of a member at the time of indexing; `members` may hold a newer reason of sharing."""
MemberOrder = tuple["MemberOrder", "MemberOrder"] | Value
"""Members in order, as a binary tree, so that a merge takes constant time."""


@dataclass(eq=False)
class CoalescedBuffer:
    """An equivalence class of coalesced values: bytes [low, high) of a private frame, live at the points `live`.

    With several `rows`, the frame is a row: the buffer is `rows` such rows, and so is every member.
    """

    members: dict[Value, Member]
    order: MemberOrder
    low: int
    high: int
    live: LiveRange
    bound_storage: str = ""
    writable: bool = True  # true if the network may write the bytes
    filled_by_caller: bool = False  # true if the caller fills the bytes before the run
    loop_view: LoopView | None = None  # set if the bytes are a slice or row of another buffer
    owner: Value | None = None  # the owner of the bytes, shared by all members; None in a loop view
    index: dict[IndexCell, list[IndexEntry]] = field(default_factory=dict)
    byte_levels: set[int] = field(default_factory=set)  # log2 sizes of the byte cells
    rows: int = 1

    @property
    def is_preplaced(self) -> bool:
        """True if the bytes lie in bound storage or in another buffer, and need no bytes in the arena."""
        return bool(self.bound_storage) or self.loop_view is not None

    @property
    def nbytes(self) -> int:
        """The size of the buffer in bytes."""
        return (self.high - self.low) * self.rows

    def width_of(self, value: Value) -> int:
        """Return the bytes of a value in the frame."""
        return value.nbytes // self.rows

    def add_member(self, member: Member, halves: LiveRange) -> None:
        """Add a member to the buffer and to the index, or index a changed member."""
        self.members[member.value] = member
        width = self.width_of(member.value)
        place = (member.offset, member.offset + width, member)
        for cell in _index_cells(member.offset, width, halves):
            self.index.setdefault(cell, []).append(place)
            if cell[0] == "bytes":
                self.byte_levels.add(cell[1])

    def candidates_overlapping(self, offset: int, nbytes: int, halves: LiveRange) -> Iterator[Member]:
        """Yield the members possibly overlapping bytes [offset, offset + nbytes) during the slot ranges `halves`.

        The result is a superset: the index is coarse, and includes members live just before.
        """
        levels = sorted(self.byte_levels)
        times = (halves[-1][1] - halves[0][0] >> TIME_CELL_BITS) + 1 if halves else 0
        if times + sum((nbytes >> level) + 2 for level in levels) >= len(self.members):
            yield from self.members.values()
            return
        last = offset + nbytes
        seen: set[int] = set()
        for cell in chain(_time_cells(halves), *(_byte_cells(offset, nbytes, level) for level in levels)):
            for begin, end, member in self.index.get(cell, ()):
                if begin < last and offset < end and id(member) not in seen:
                    seen.add(id(member))
                    yield member

    def members_in_order(self) -> Iterator[Member]:
        """Yield all members; the members of a receiving buffer precede the members of the buffers merged into it."""
        todo = [self.order]
        while todo:
            order = todo.pop()
            if isinstance(order, Value):
                yield self.members[order]
            else:
                todo += reversed(order)


def buffer_in_rows(buffer: CoalescedBuffer, rows: int, ranges: Mapping[Value, LiveRange]) -> CoalescedBuffer | None:
    """Return a buffer with `rows` rows in the same bytes; None if some member is not `rows` rows of the buffer."""
    if buffer.rows == rows:
        return buffer
    if buffer.rows != 1 or buffer.is_preplaced or buffer.filled_by_caller or buffer.owner is None:
        return None
    for member in buffer.members.values():
        shape = member.value.spec.shape if isinstance(member.value.spec, TensorSpec) else ()
        if shape[:1] != (rows,) or member.value.nbytes != buffer.nbytes or member.how == "pointer":
            return None
    changed = replace(buffer, members={}, index={}, byte_levels=set(), rows=rows, low=0, high=buffer.nbytes // rows)
    for member in buffer.members.values():
        changed.add_member(member._replace(offset=0), ranges.get(member.value, ()))
    return changed


def union_without_members(a: CoalescedBuffer, b: CoalescedBuffer, shift: int) -> CoalescedBuffer:
    """Return the merger of two buffers of equal rows with `b` moved by `shift` bytes, without members."""
    home = a if a.is_preplaced else b
    return CoalescedBuffer(
        members={},
        order=(a.order, b.order),
        low=min(a.low, b.low + shift),
        high=max(a.high, b.high + shift),
        live=merge((*a.live, *b.live)),
        bound_storage=home.bound_storage,
        writable=home.writable,
        filled_by_caller=a.filled_by_caller or b.filled_by_caller,
        loop_view=home.loop_view,
        rows=a.rows,
    )


def add_live_bytes(curve: NDArray[np.int64], group: CoalescedBuffer, sign: int, origin: int) -> None:
    """Add `sign` times the size of an arena buffer to `curve` at the live points; `curve` starts at point `origin`."""
    if not group.is_preplaced:
        for begin, end in group.live:
            curve[begin - origin : end - origin] += sign * group.nbytes


def replace_by_merged(
    curve: NDArray[np.int64], a: CoalescedBuffer, b: CoalescedBuffer, together: CoalescedBuffer
) -> None:
    """Replace two buffers by the merged buffer in the curve of live bytes."""
    if a.is_preplaced == b.is_preplaced and a.nbytes == b.nbytes == together.nbytes:
        for begin, end in _intersection(a.live, b.live) if not a.is_preplaced else ():
            curve[begin:end] -= together.nbytes
        return
    for group, sign in ((a, -1), (b, -1), (together, 1)):
        add_live_bytes(curve, group, sign, 0)


def _intersection(a: LiveRange, b: LiveRange) -> Iterator[tuple[int, int]]:
    """Yield the intersection of two lists of ranges."""
    many, few = (a, b) if len(a) >= len(b) else (b, a)
    for begin, end in few:
        for i in range(max(0, bisect_right(many, (begin, begin)) - 1), len(many)):
            if many[i][0] >= end:
                break
            if many[i][1] > begin:
                yield max(begin, many[i][0]), min(end, many[i][1])


def _index_cells(offset: int, nbytes: int, halves: LiveRange) -> Iterator[IndexCell]:
    """Yield the index cells of a member: cells of time for a short live range, cells of bytes for a long range."""
    times = list(_time_cells(halves, MAX_TIME_CELLS))
    if len(times) <= MAX_TIME_CELLS:
        yield from times
    else:
        level = max(0, (nbytes - 1).bit_length())
        yield from _byte_cells(offset, nbytes, level)


def _time_cells(halves: LiveRange, most: int | None = None) -> Iterator[IndexCell]:
    """Yield the time cells of slot ranges, ends included; beyond `most` cells, only a few more."""
    last, count = -1, 0
    for begin, end in halves:
        for at in range(max(begin >> TIME_CELL_BITS, last + 1), (end >> TIME_CELL_BITS) + 1):
            yield "time", TIME_CELL_BITS, at
            last, count = at, count + 1
            if most is not None and count > most:
                return


def _byte_cells(offset: int, nbytes: int, level: int) -> Iterator[IndexCell]:
    """Return the cells of 2^level bytes touched by a range of bytes."""
    return (("bytes", level, at) for at in range(offset >> level, ((offset + nbytes - 1) >> level) + 1))
