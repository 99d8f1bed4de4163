"""Operations on half-open ranges of integers (points of a plan, or bytes), live segments, and the live-bytes curve."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]


def merge(pieces: Iterable[tuple[int, int]]) -> Ranges:
    """Return sorted, disjoint, non-adjacent ranges covering the same numbers."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def union_length(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the count of numbers in any of the ranges; the ranges may overlap."""
    return sum(end - begin for begin, end in merge(pieces))


def gaps(pieces: Sequence[tuple[int, int]]) -> Ranges:
    """Return the gaps between sorted, disjoint ranges."""
    return tuple((end, begin) for (_, end), (begin, _) in pairwise(pieces))


def holds(pieces: Iterable[tuple[int, int]], number: int) -> bool:
    """True if any of the ranges contains `number`."""
    return any(begin <= number < end for begin, end in pieces)


def split_evenly(extent: int, parts: int) -> Ranges:
    """Split the numbers from 0 to `extent` into `parts` ranges with lengths that differ by at most 1."""
    return tuple((extent * i // parts, extent * (i + 1) // parts) for i in range(parts))


def overlap(one: Ranges, other: Ranges) -> bool:
    """True if two sorted lists of disjoint ranges have a number in common."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][0] < other[j][1] and other[j][0] < one[i][1]:
            return True
        i, j = (i + 1, j) if one[i][1] <= other[j][1] else (i, j + 1)
    return False


# The live segments of a buffer: runs of bytes with one live range each.
#
# A concatenation is written operand by operand, and a view outlives its base: some bytes of a buffer are live while the
# remaining bytes are dead. A buffer is therefore a list of segments at fixed distances, each segment with its own live
# range. At points outside of a segment's live range, the planner may place another buffer over the segment.


class LiveSegment(NamedTuple):
    """Bytes [begin, end) of a buffer, and the points where the bytes are live."""

    begin: int
    end: int
    live: Ranges

    @property
    def nbytes(self) -> int:
        """The size of the segment."""
        return self.end - self.begin


def split_into_segments(members: Iterable[LiveSegment], alignment: int) -> tuple[LiveSegment, ...]:
    """Return the fewest segments covering the live bytes of `members`, in ascending order.

    Each segment begins at a multiple of `alignment` (in bytes). A cell of `alignment` bytes counts as live in whole if
    any byte of the cell is live, except for the bytes above the last member in the top cell of a segment. Bytes never
    live belong to no segment.
    """
    placed = sorted(member for member in members if member.live)
    first = [member.begin // alignment * alignment for member in placed]
    last = [-(-member.end // alignment) * alignment for member in placed]
    segments: list[LiveSegment] = []
    inside: list[int] = []
    waiting = 0
    for low, high in pairwise(sorted({*first, *last})):
        inside = [i for i in inside if last[i] > low]
        while waiting < len(placed) and first[waiting] <= low:
            inside.append(waiting)
            waiting += 1
        if not inside:
            continue
        live = merge(piece for i in inside for piece in placed[i].live)
        end = min(high, max(placed[i].end for i in inside))
        if segments and segments[-1].live == live and -(-segments[-1].end // alignment) * alignment == low:
            segments[-1] = LiveSegment(segments[-1].begin, end, live)
        else:
            segments.append(LiveSegment(low, end, live))
    return tuple(segments)


def single_segment(members: Iterable[LiveSegment]) -> tuple[LiveSegment, ...]:
    """Return a single segment from the first to the last byte of `members`, live when any member is live."""
    placed = [member for member in members if member.live]
    if not placed:
        return ()
    live = merge(piece for member in placed for piece in member.live)
    return (LiveSegment(min(member.begin for member in placed), max(member.end for member in placed), live),)


# Live bytes over the points of a plan, or over the times of a packing problem, summed from live ranges.

LiveSizes = Iterable[tuple[Ranges, int]]
"""(live ranges, bytes) pairs; the ranges are half-open."""

_POINT = itemgetter(0)


class LiveCurve(tuple[tuple[int, int], ...]):
    """A step function: (point, bytes live from the point on) at every change, ending at 0 bytes."""

    __slots__ = ()

    @classmethod
    def from_sizes(cls, sizes: LiveSizes) -> LiveCurve:
        """Return the sum of all sizes over their live ranges."""
        change: dict[int, int] = {}
        for ranges, nbytes in sizes:
            for begin, end in ranges:
                change[begin] = change.get(begin, 0) + nbytes
                change[end] = change.get(end, 0) - nbytes
        steps = sorted(step for step in change.items() if step[1])
        return cls(zip(map(_POINT, steps), accumulate(step for _, step in steps), strict=True))

    @property
    def peak(self) -> tuple[int, int]:
        """The first point with the most live bytes, and the bytes; (0, 0) for an empty curve."""
        return max(self, key=itemgetter(1), default=(0, 0))

    @property
    def peak_bytes(self) -> int:
        """The most bytes live at any point."""
        return self.peak[1]

    def peak_without(self, sizes: LiveSizes) -> int:
        """Return the most bytes live at any point after the removal of `sizes`, a part of the sum."""
        peak = 0
        for (begin, nbytes), (end, _) in pairwise([(-inf, 0), *LiveCurve.from_sizes(sizes), (inf, 0)]):
            first = max(0, bisect_right(self, begin, key=_POINT) - 1)
            steps = self[first : bisect_left(self, end, key=_POINT)]
            peak = max(peak, max((level for _, level in steps), default=0) - nbytes)
        return peak

    def peak_within(self, ranges: Ranges) -> tuple[int, int]:
        """Return the first point within disjoint `ranges` with the most live bytes, and the bytes; (0, 0) for none."""
        highest = {}
        for begin, end in ranges:
            first = max(0, bisect_right(self, begin, key=_POINT) - 1)
            steps = [(max(begin, point), level) for point, level in self[first : bisect_left(self, end, key=_POINT)]]
            if steps:
                point, level = LiveCurve(steps).peak
                highest[point] = level
        return max(highest.items(), key=itemgetter(1), default=(0, 0))

    def peak_by_column(self, begin: int, end: int, columns: int) -> list[int]:
        """Return the most bytes live in each of `columns` equal parts of the range from `begin` to `end`."""
        highest = [0] * columns
        for (point, level), (after, _) in pairwise([*self, (end, 0)]):
            first = (point - begin) * columns // (end - begin)
            last = -(-(after - begin) * columns // (end - begin))
            for column in range(first, min(max(last, first + 1), columns)):
                highest[column] = max(highest[column], level)
        return highest
