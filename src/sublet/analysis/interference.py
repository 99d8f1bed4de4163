"""Interference: the packing problem of shared buffers, with sizes, live ranges and conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.sharing import SharedBuffer
from sublet.analysis.streams import Concurrency, Mask
from sublet.base.errors import ProblemError
from sublet.base.ranges import LiveSegment, gaps, split_into_segments
from sublet.ir.graph import Value
from sublet.packing.bounds import LowerBound
from sublet.packing.problem import Buffer, Companion, Packing, Precedence, Problem

# Segmented buffers: shared buffers as segments of bytes with a live range each, for programs in a single stream.
#
# A buffer of several segments becomes several items of a packing problem at fixed distances. Other buffers may then lie
# where none of its values needs bytes: where the operands of a concatenation will be, and where the base of a view has
# been.


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
    """Return the segments of a buffer; a member without live range is needed as long as the buffer is.

    A member in rows needs the bytes between its rows too.
    """
    between = (buffer.rows - 1) * buffer.pitch
    members = (
        LiveSegment(
            member.offset,
            member.offset + between + member.value.nbytes // buffer.rows,
            ranges.point_ranges(member.value) or buffer.live,
        )
        for member in buffer.members
    )
    return split_into_segments(members, alignment)


def _segment_item(block: Buffer, strip: LiveSegment, number: int) -> Buffer:
    """Return a segment as an item of the packing problem: the first segment keeps the id of the buffer."""
    identity = f"{block.id}.{number}" if number else block.id
    live = strip.live
    return replace(block, id=identity, size=strip.nbytes, lower=live[0][0], upper=live[-1][1], gaps=gaps(live))


MAX_NAMED_TENSORS = 3
"""Tensors named for a buffer in messages."""

MAX_BUFFERS = 8_192
"""Buffers of a program with several streams. The problem holds a 32-bit distance for every pair: 256 MiB."""


def build_packing_problem(
    buffers: tuple[SharedBuffer, ...], flow: ControlFlowGraph, *, alignment: int, name: str = ""
) -> Problem:
    """Return the problem of placing `buffers` in an arena; the id of a buffer is the position in `buffers`.

    In a single stream two buffers conflict if both are live at some point. In several streams two buffers also conflict
    if an access to the first and an access to the second are unordered. Raises ProblemError for more than MAX_BUFFERS
    buffers in several streams.
    """
    touched = Counter(value for point in flow.points for value in (*point.uses, *point.defs))
    items = tuple(_packing_buffer(str(i), buffer, alignment, touched, flow) for i, buffer in enumerate(buffers))
    if flow.is_serial:
        return Problem(items, name=name)
    if len(items) > MAX_BUFFERS:
        raise ProblemError(
            f"graph {name}: {len(items)} buffers exceed the limit of {MAX_BUFFERS} buffers in several "
            "streams. Plan the graph in one stream (--streams 1)."
        )
    precedence = _precedence_of(buffers, items, flow)
    return Problem(items, precedence, name=name)


def _packing_buffer(
    identity: str, buffer: SharedBuffer, alignment: int, touched: Mapping[Value, int], flow: ControlFlowGraph
) -> Buffer:
    """Return a buffer of the packing problem.

    `accesses` counts the reads and writes of the members in the program; an access within a loop counts once.
    """
    live = buffer.live
    accesses = sum(touched.get(member.value, 0) for member in buffer.members)
    gaps = tuple((end, begin) for (_, end), (begin, _) in pairwise(live))
    label = _label_of(buffer, flow)
    return Buffer(identity, buffer.nbytes, live[0][0], live[-1][1], alignment, gaps, None, accesses, label)


def _label_of(buffer: SharedBuffer, flow: ControlFlowGraph) -> str:
    """Return the names of the program tensors in a buffer, largest first, for messages."""
    origins = (flow.unrolling.versions.get(member.value) for member in buffer.members)
    values = [origin.base if origin else member.value for origin, member in zip(origins, buffer.members, strict=True)]
    names = list(dict.fromkeys(f"%{value.name}" for value in sorted(values, key=lambda value: -value.nbytes)))
    more = f" and {len(names) - MAX_NAMED_TENSORS} more" if names[MAX_NAMED_TENSORS:] else ""
    return f"the buffer of {', '.join(names[:MAX_NAMED_TENSORS])}{more}"


def _precedence_of(buffers: tuple[SharedBuffer, ...], items: tuple[Buffer, ...], flow: ControlFlowGraph) -> Precedence:
    """Return the precedence relation: a buffer precedes another if dead before, with all accesses ordered."""
    unordered = _concurrent_buffers(buffers, flow)
    overlaps = _RangeOverlaps(items, len(flow.points))
    lower = np.array([item.lower for item in items], dtype=np.int32)
    distance = np.zeros((len(items), len(items)), dtype=np.int32)
    compatible = np.zeros((len(items), len(items)), dtype=np.bool_)
    for i, (item, clash) in enumerate(zip(items, unordered, strict=True)):
        distance[i] = np.where((lower >= item.upper) & ~clash, lower - item.upper + 1, 0)
        if item.gaps:  # without gaps, ranges without a common point are in sequence: `distance` covers them
            apart = ~clash & ~overlaps.overlapping_items(item)
            compatible[i] |= apart
            compatible[:, i] |= apart
    return Precedence(distance, compatible)


def _concurrent_buffers(buffers: tuple[SharedBuffer, ...], flow: ControlFlowGraph) -> Iterator[Mask]:
    """Yield for every buffer a mask of the buffers with an access concurrent with an access to the buffer."""
    concurrency = Concurrency(flow)
    members = [[member.value for member in buffer.members] for buffer in buffers]
    accesses = [(point, j) for j, values in enumerate(members) for point in concurrency.access_points(values)]
    point, owner = np.array(accesses, dtype=np.int64).reshape(-1, 2).T.copy()
    for values in members:
        clash = np.zeros(len(buffers), dtype=np.bool_)
        clash[owner[concurrency.concurrent_points_of(values)[point]]] = True
        yield clash


class _RangeOverlaps:
    """The live ranges of all buffers, indexed for finding ranges with a point in common."""

    def __init__(self, items: tuple[Buffer, ...], points: int):
        pieces = [(begin, end, j) for j, item in enumerate(items) for begin, end in item.pieces]
        self._begin, self._end, self._owner = np.array(pieces, dtype=np.int64).reshape(-1, 3).T.copy()
        self._count, self._points = len(items), points

    def overlapping_items(self, item: Buffer) -> Mask:
        """Return a mask, True at every buffer live at a point of `item`."""
        alive_before = np.zeros(self._points + 1, dtype=np.int64)  # live points of `item` before each point
        for begin, end in item.pieces:
            alive_before[begin + 1 : end + 1] = 1
        alive_before = alive_before.cumsum()
        meets = np.zeros(self._count, dtype=np.bool_)
        meets[self._owner[alive_before[self._end] > alive_before[self._begin]]] = True
        return meets
