"""The live segments of a buffer: runs of bytes with one live range each.

A concatenation is written operand by operand, and a view outlives its base: some bytes of a buffer are live while
the remaining bytes are dead. A buffer is therefore a list of segments at fixed distances, each segment with its own
live range. At points outside of a segment's live range, the planner may place another buffer over the segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from sublet.base.ranges import Ranges, merge


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
