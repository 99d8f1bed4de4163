"""Concurrency: the points of a control flow graph that may run at the same time in several streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.control_flow import ControlFlowGraph
from sublet.ir.graph import Value

Mask = NDArray[np.bool_]
STEPS_PER_BLOCK = 1024  # steps of a block of the relation; a multiple of 8, since the bits are packed in bytes


class Concurrency:
    """Pairs of points not ordered by a stream, a wait or the end of an iteration.

    Arms of a branch never run together, and the points of a step run in order. Two points are therefore concurrent only
    below two unordered steps of the same level.
    """

    def __init__(self, flow: ControlFlowGraph):
        self.is_serial = flow.is_serial
        self._points = len(flow.points)
        self._accesses: dict[Value, int] = defaultdict(int)
        self._concurrent: dict[Value, int] = defaultdict(int)
        self._concurrent_with_write: dict[Value, int] = defaultdict(int)
        if self.is_serial:
            return
        concurrent = _concurrent_points(flow)
        for t, point in enumerate(flow.points):
            for value in (*point.uses, *point.defs):
                self._accesses[value] |= 1 << t
                self._concurrent[value] |= concurrent[t]
            for value in point.defs:
                self._concurrent_with_write[value] |= concurrent[t]

    def may_access_together(self, a: Value, b: Value) -> bool:
        """True if an access to `a` may happen at the same time as an access to `b`."""
        return bool(self._concurrent[a] & self._accesses[b]) if not self.is_serial else False

    def may_write_during(self, a: Value, b: Value) -> bool:
        """True if `a` may be written at the same time as an access to `b`."""
        return bool(self._concurrent_with_write[a] & self._accesses[b]) if not self.is_serial else False

    def access_points(self, values: Iterable[Value]) -> list[int]:
        """Return the points accessing any of `values`, ascending."""
        return [int(point) for point in np.flatnonzero(self._union_of(self._accesses, values))]

    def concurrent_points_of(self, values: Iterable[Value]) -> Mask:
        """Return a mask, True at every point that may run at the same time as an access to any of `values`."""
        return self._union_of(self._concurrent, values)

    def _union_of(self, bits: Mapping[Value, int], values: Iterable[Value]) -> Mask:
        """Return the union of the bit sets of `values`, as a bool for each point."""
        together = 0
        for value in values:
            together |= bits[value]
        row: Mask = _unpack_bits([together], self._points)[0].astype(np.bool_)
        return row


def _concurrent_points(flow: ControlFlowGraph) -> list[int]:
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
        for i, beside in enumerate(_unordered_steps(before)):
            row = np.zeros(count, dtype=np.bool_)
            row[below] = beside[rank]
            if not row.any():
                continue
            mask = int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")
            for t in below[rank == i]:
                concurrent[t] |= mask
    return concurrent


def _unordered_steps(before: tuple[int, ...]) -> Iterator[Mask]:
    """Yield for each step of a level the unordered steps, as a bool for each step.

    The function works on blocks of steps, because a dense matrix of all pairs would be large.
    """
    count = len(before)
    packed = _pack_bits(before, count)
    for begin in range(0, count, STEPS_PER_BLOCK):
        end = min(begin + STEPS_PER_BLOCK, count)
        earlier = np.unpackbits(packed[begin:end], axis=1, count=count, bitorder="little")
        later = np.unpackbits(packed[:, begin // 8 : (end + 7) // 8], axis=1, count=end - begin, bitorder="little")
        beside = (earlier | later.T) == 0
        beside[np.arange(end - begin), np.arange(begin, end)] = False
        yield from beside


def _pack_bits(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of bytes for each bit set of `count` bits, low bits first."""
    width = (count + 7) // 8
    joined = b"".join(bits.to_bytes(width, "little") for bits in bit_sets)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(bit_sets), width)


def _unpack_bits(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of `count` zeros and ones for each bit set."""
    return np.unpackbits(_pack_bits(bit_sets, count), axis=1, count=count, bitorder="little")
