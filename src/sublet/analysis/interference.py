"""From shared buffers to a packing problem: sizes, lifetimes, and who must not overlap whom."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sublet.analysis.flow import Flow
from sublet.analysis.liveness import Pieces
from sublet.analysis.order import Concurrency
from sublet.analysis.sharing import SharedBuffer
from sublet.packing.problem import Buffer, Precedence, Problem


def interference(buffers: tuple[SharedBuffer, ...], flow: Flow, *, alignment: int, name: str = "") -> Problem:
    """The problem of placing `buffers` in one arena; ids are positions in `buffers`.

    In one stream two buffers conflict when they live at a common point. With several, they conflict
    too when some access to one is not ordered with some access to the other.
    """
    items = tuple(_buffer(str(i), buffer, alignment) for i, buffer in enumerate(buffers))
    precedence = None if flow.serial else _precedence(buffers, items, flow)
    return Problem(items, precedence, name=name)


def _buffer(identity: str, buffer: SharedBuffer, alignment: int) -> Buffer:
    live = buffer.live
    gaps = tuple((end, begin) for (_, end), (begin, _) in pairwise(live))
    return Buffer(identity, buffer.nbytes, live[0][0], live[-1][1], alignment, gaps)


def _precedence(buffers: tuple[SharedBuffer, ...], items: tuple[Buffer, ...], flow: Flow) -> Precedence:
    """Buffer i precedes j when it dies before j is born and all their accesses are ordered."""
    concurrency = Concurrency(flow)
    values = [[member.value for member in buffer.members] for buffer in buffers]
    touches = [concurrency.touches(members) for members in values]
    meets = [concurrency.meets(members) for members in values]
    distance = np.zeros((len(items), len(items)), dtype=np.int32)
    compatible = np.zeros((len(items), len(items)), dtype=np.bool_)
    for i, a in enumerate(items):
        for j, b in enumerate(items):
            if i == j or meets[i] & touches[j]:
                continue
            if a.upper <= b.lower:
                distance[i, j] = b.lower - a.upper + 1
            elif b.upper > a.lower:
                compatible[i, j] = not intersect(buffers[i].live, buffers[j].live)
    return Precedence(distance, compatible)


def intersect(a: Pieces, b: Pieces) -> bool:
    """Whether two sorted sets of half-open ranges have a point in common."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][0] < b[j][1] and b[j][0] < a[i][1]:
            return True
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return False
