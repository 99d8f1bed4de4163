"""Interference: the packing problem of shared buffers, with sizes, live ranges and conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from sublet.analysis.concurrency import Concurrency, Mask
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.sharing import SharedBuffer
from sublet.base.errors import ProblemError
from sublet.ir.graph import Value
from sublet.packing.problem import Buffer, Precedence, Problem

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
