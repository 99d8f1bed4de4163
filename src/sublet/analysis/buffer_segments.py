"""Segmented buffers: shared buffers as segments of bytes with a live range each, for programs in a single stream.

A buffer of several segments becomes several items of a packing problem at fixed distances. Other buffers may then lie
where none of its values needs bytes: where the operands of a concatenation will be, and where the base of a view has
been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.analysis.liveness import LiveRanges
from sublet.analysis.sharing import SharedBuffer
from sublet.base.live_segments import LiveSegment, split_into_segments
from sublet.base.ranges import gaps
from sublet.ir.graph import Value
from sublet.packing.bounds import LowerBound
from sublet.packing.problem import Buffer, Companion, Packing, Problem


@dataclass(frozen=True)
class SegmentedProblem:
    """A packing problem of segments, with the buffer of each segment and the begin of the segment in its buffer."""

    problem: Problem
    buffer_of_segment: tuple[int, ...]
    begin_of_segment: tuple[int, ...]

    @property
    def is_single_segment(self) -> bool:
        """True if every buffer is a single segment, needed as a whole, and no buffer is pinned."""
        return not self.problem.companions and not self.problem.has_pins

    def buffer_offsets(self, packing: Packing) -> tuple[int, ...]:
        """Return the offsets of the buffers, in bytes, in a packing of the segments."""
        of_strips = zip(self.buffer_of_segment, packing.offsets, self.begin_of_segment, strict=True)
        offset_of = {buffer: offset - begin for buffer, offset, begin in of_strips}
        return tuple(offset_of[buffer] for buffer in sorted(offset_of))

    def bound_of_buffers(self, bound: LowerBound) -> LowerBound:
        """Return a bound proven by segments as a bound proven by their buffers."""
        return replace(bound, members=tuple(sorted({self.buffer_of_segment[strip] for strip in bound.members})))


def build_segmented_problem(
    problem: Problem,
    buffers: Sequence[SharedBuffer],
    ranges: LiveRanges[Value] | None,
    alignment: int,
    fixed_offsets: Mapping[Value, int] | None = None,
) -> SegmentedProblem:
    """Return the problem of placing `buffers` by the bytes needed at each point.

    `problem` is the problem of placing the same buffers as rectangles. Without live `ranges` every buffer is a single
    segment. Buffers with values in `fixed_offsets` are pinned to the fixed offset, in bytes.
    """
    if ranges is None:
        return SegmentedProblem(problem, tuple(range(len(buffers))), (0,) * len(buffers))
    fixed = fixed_offsets or {}
    items: list[Buffer] = []
    ties: list[Companion] = []
    owners: list[int] = []
    begins: list[int] = []
    for i, (block, buffer) in enumerate(zip(problem.buffers, buffers, strict=True)):
        first = len(items)
        pins = [fixed[m.value] - m.offset for m in buffer.members if m.value in fixed]
        for strip in _segments_of(buffer, ranges, alignment):
            if len(items) > first:
                ties.append(Companion(first, len(items), strip.begin - begins[first]))
            item = _segment_item(block, strip, len(items) - first)
            items.append(replace(item, pinned=pins[0] + strip.begin) if pins else item)
            owners.append(i)
            begins.append(strip.begin)
    tied = Problem(tuple(items), companions=tuple(ties), name=problem.name) if ties or fixed_offsets else problem
    return SegmentedProblem(tied, tuple(owners), tuple(begins))


def _segments_of(buffer: SharedBuffer, ranges: LiveRanges[Value], alignment: int) -> tuple[LiveSegment, ...]:
    """Return the segments of a buffer; a member without live range is needed as long as the buffer is."""
    members = (
        LiveSegment(
            member.offset, member.offset + member.value.nbytes, ranges.point_ranges(member.value) or buffer.live
        )
        for member in buffer.members
    )
    return split_into_segments(members, alignment)


def _segment_item(block: Buffer, strip: LiveSegment, number: int) -> Buffer:
    """Return a segment as an item of the packing problem: the first segment keeps the id of the buffer."""
    identity = f"{block.id}.{number}" if number else block.id
    live = strip.live
    return replace(block, id=identity, size=strip.nbytes, lower=live[0][0], upper=live[-1][1], gaps=gaps(live))
