"""Concurrency: the points of a control flow graph that may run at the same time in several streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.flow import Flow
from sublet.ir.graph import Value

Mask = NDArray[np.bool_]
BLOCK = 1024  # steps of a block of the relation; a multiple of 8, since the bits are packed in bytes


class Concurrency:
    """Pairs of points not ordered by a stream, a wait or the end of an iteration.

    Arms of a branch never run together, and the points of a step run in order. Two points are therefore concurrent only
    below two unordered steps of the same level.
    """

    def __init__(self, flow: Flow):
        self.serial = flow.serial
        self._points = len(flow.points)
        self._touches: dict[Value, int] = defaultdict(int)
        self._meets: dict[Value, int] = defaultdict(int)
        self._meets_write: dict[Value, int] = defaultdict(int)
        if self.serial:
            return
        concurrent = _concurrent_points(flow)
        for t, point in enumerate(flow.points):
            for value in (*point.uses, *point.defs):
                self._touches[value] |= 1 << t
                self._meets[value] |= concurrent[t]
            for value in point.defs:
                self._meets_write[value] |= concurrent[t]

    def may_meet(self, a: Value, b: Value) -> bool:
        """True if an access to `a` may happen at the same time as an access to `b`."""
        return bool(self._meets[a] & self._touches[b]) if not self.serial else False

    def may_write_during(self, a: Value, b: Value) -> bool:
        """True if `a` may be written at the same time as an access to `b`."""
        return bool(self._meets_write[a] & self._touches[b]) if not self.serial else False

    def touches(self, values: Iterable[Value]) -> list[int]:
        """Return the points accessing any of `values`, ascending."""
        return [int(point) for point in np.flatnonzero(self._row(self._touches, values))]

    def meets(self, values: Iterable[Value]) -> Mask:
        """Return a mask, True at every point that may run at the same time as an access to any of `values`."""
        return self._row(self._meets, values)

    def _row(self, bits: Mapping[Value, int], values: Iterable[Value]) -> Mask:
        """Return the union of the bit sets of `values`, as a bool for each point."""
        together = 0
        for value in values:
            together |= bits[value]
        row: Mask = _unpacked([together], self._points)[0].astype(np.bool_)
        return row


def _concurrent_points(flow: Flow) -> list[int]:
    """Return for each point the bit set of points that may run at the same time."""
    count = len(flow.points)
    step_at = np.full((len(flow.levels), count), -1, dtype=np.int32)  # by level and point: the step around the point
    for t, point in enumerate(flow.points):
        for level, step in point.path:
            step_at[level, t] = step
    concurrent = [0] * count
    for level, before in enumerate(flow.levels):
        below = np.flatnonzero(step_at[level] >= 0)
        rank = step_at[level, below]
        for i, beside in enumerate(_beside(before)):
            row = np.zeros(count, dtype=np.bool_)
            row[below] = beside[rank]
            if not row.any():
                continue
            mask = int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")
            for t in below[rank == i]:
                concurrent[t] |= mask
    return concurrent


def _beside(before: tuple[int, ...]) -> Iterator[Mask]:
    """Yield for each step of a level the unordered steps, as a bool for each step.

    The function works on blocks of steps, because a dense matrix of all pairs would be large.
    """
    count = len(before)
    packed = _packed(before, count)
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        earlier = np.unpackbits(packed[begin:end], axis=1, count=count, bitorder="little")
        later = np.unpackbits(packed[:, begin // 8 : (end + 7) // 8], axis=1, count=end - begin, bitorder="little")
        beside = (earlier | later.T) == 0
        beside[np.arange(end - begin), np.arange(begin, end)] = False
        yield from beside


def _packed(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of bytes for each bit set of `count` bits, low bits first."""
    width = (count + 7) // 8
    joined = b"".join(bits.to_bytes(width, "little") for bits in bit_sets)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(bit_sets), width)


def _unpacked(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of `count` zeros and ones for each bit set."""
    return np.unpackbits(_packed(bit_sets, count), axis=1, count=count, bitorder="little")
