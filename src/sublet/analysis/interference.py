"""From shared buffers to a packing problem: sizes, lifetimes, and who must not overlap whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from sublet.analysis.flow import Flow
from sublet.analysis.order import Concurrency, Mask
from sublet.analysis.sharing import SharedBuffer
from sublet.base.errors import ProblemError
from sublet.ir.graph import Value
from sublet.packing.problem import Buffer, Precedence, Problem

SHOWN = 3
"""Tensors that stand for a buffer in messages."""

MAX_BUFFERS = 8_192
"""Buffers of a program with several streams: the distances of all pairs are held at once, 256 MiB."""


def interference(buffers: tuple[SharedBuffer, ...], flow: Flow, *, alignment: int, name: str = "") -> Problem:
    """The problem of placing `buffers` in one arena; ids are positions in `buffers`.

    In one stream two buffers conflict when they live at a common point. With several, they conflict
    too when some access to one is not ordered with some access to the other. Raises ProblemError for
    more than MAX_BUFFERS of them then.
    """
    touched = Counter(value for point in flow.points for value in (*point.uses, *point.defs))
    items = tuple(_buffer(str(i), buffer, alignment, touched, flow) for i, buffer in enumerate(buffers))
    if flow.serial:
        return Problem(items, name=name)
    if len(items) > MAX_BUFFERS:
        raise ProblemError(
            f"graph {name}: {len(items)} buffers are more than the {MAX_BUFFERS} that can be planned in several "
            "streams; plan it with one (--streams 1)"
        )
    precedence = _precedence(buffers, items, flow)
    return Problem(items, precedence, name=name)


def _buffer(identity: str, buffer: SharedBuffer, alignment: int, touched: Mapping[Value, int], flow: Flow) -> Buffer:
    """Accesses are the reads and writes of the buffer's values in the program, those in a loop counted once."""
    live = buffer.live
    accesses = sum(touched.get(member.value, 0) for member in buffer.members)
    gaps = tuple((end, begin) for (_, end), (begin, _) in pairwise(live))
    label = _label(buffer, flow)
    return Buffer(identity, buffer.nbytes, live[0][0], live[-1][1], alignment, gaps, None, accesses, label)


def _label(buffer: SharedBuffer, flow: Flow) -> str:
    """The tensors in a buffer, the largest first, as the program names them."""
    made = (flow.unrolling.instances.get(member.value) for member in buffer.members)
    values = [found.base if found else member.value for found, member in zip(made, buffer.members, strict=True)]
    names = list(dict.fromkeys(f"%{value.name}" for value in sorted(values, key=lambda value: -value.nbytes)))
    more = f" and {len(names) - SHOWN} more" if names[SHOWN:] else ""
    return f"the buffer of {', '.join(names[:SHOWN])}{more}"


def _precedence(buffers: tuple[SharedBuffer, ...], items: tuple[Buffer, ...], flow: Flow) -> Precedence:
    """Buffer i precedes j when it dies before j is born and all their accesses are ordered."""
    unordered = _unordered(buffers, flow)
    overlaps = _Overlaps(items, len(flow.points))
    lower = np.array([item.lower for item in items], dtype=np.int32)
    distance = np.zeros((len(items), len(items)), dtype=np.int32)
    compatible = np.zeros((len(items), len(items)), dtype=np.bool_)
    for i, (item, clash) in enumerate(zip(items, unordered, strict=True)):
        distance[i] = np.where((lower >= item.upper) & ~clash, lower - item.upper + 1, 0)
        if item.gaps:  # two lives that span a common point without having one need a gap
            apart = ~clash & ~overlaps.with_(item)
            compatible[i] |= apart
            compatible[:, i] |= apart
    return Precedence(distance, compatible)


def _unordered(buffers: tuple[SharedBuffer, ...], flow: Flow) -> Iterator[Mask]:
    """For each buffer the buffers with an access that may happen at the same time as one to it."""
    concurrency = Concurrency(flow)
    members = [[member.value for member in buffer.members] for buffer in buffers]
    accesses = [(point, j) for j, values in enumerate(members) for point in concurrency.touches(values)]
    point, owner = np.array(accesses, dtype=np.int64).reshape(-1, 2).T.copy()
    for values in members:
        clash = np.zeros(len(buffers), dtype=np.bool_)
        clash[owner[concurrency.meets(values)[point]]] = True
        yield clash


class _Overlaps:
    """Which lives have a point in common with a given one."""

    def __init__(self, items: tuple[Buffer, ...], points: int):
        pieces = [(begin, end, j) for j, item in enumerate(items) for begin, end in item.pieces]
        self._begin, self._end, self._owner = np.array(pieces, dtype=np.int64).reshape(-1, 3).T.copy()
        self._count, self._points = len(items), points

    def with_(self, item: Buffer) -> Mask:
        """True at each item alive at a point at which `item` is."""
        alive_before = np.zeros(self._points + 1, dtype=np.int64)  # points of `item` before each point
        for begin, end in item.pieces:
            alive_before[begin + 1 : end + 1] = 1
        alive_before = alive_before.cumsum()
        meets = np.zeros(self._count, dtype=np.bool_)
        meets[self._owner[alive_before[self._end] > alive_before[self._begin]]] = True
        return meets
