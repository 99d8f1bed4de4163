"""Live bytes over the points of a plan, or over the times of a packing problem, summed from live ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter

from sublet.base.ranges import Ranges

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

    def peak_by_column(self, begin: int, end: int, columns: int) -> list[int]:
        """Return the most bytes live in each of `columns` equal parts of the range from `begin` to `end`."""
        highest = [0] * columns
        for (point, level), (after, _) in pairwise([*self, (end, 0)]):
            first = (point - begin) * columns // (end - begin)
            last = -(-(after - begin) * columns // (end - begin))
            for column in range(first, min(max(last, first + 1), columns)):
                highest[column] = max(highest[column], level)
        return highest
