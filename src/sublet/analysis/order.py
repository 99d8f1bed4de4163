"""Which points of a flow may run at the same time when there are several streams."""

from __future__ import annotations

from collections import defaultdict

from sublet.analysis.flow import Flow
from sublet.ir.graph import Value


class Concurrency:
    """Points that no stream order, wait or round boundary puts one before the other.

    Arms of one branch never run together, and the points of one step run in order, so only points
    below two unordered steps of one level are concurrent.
    """

    def __init__(self, flow: Flow):
        self.serial = flow.serial
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
        """Whether an access to `a` may happen at the same time as an access to `b`."""
        return bool(self._meets[a] & self._touches[b]) if not self.serial else False

    def may_write_during(self, a: Value, b: Value) -> bool:
        """Whether `a` may be written at the same time as an access to `b`."""
        return bool(self._meets_write[a] & self._touches[b]) if not self.serial else False

    def touches(self, values: list[Value]) -> int:
        """The points that access any of `values`, as a bit set."""
        mask = 0
        for value in values:
            mask |= self._touches[value]
        return mask

    def meets(self, values: list[Value]) -> int:
        """The points that may run at the same time as an access to any of `values`, as a bit set."""
        mask = 0
        for value in values:
            mask |= self._meets[value]
        return mask


def _concurrent_points(flow: Flow) -> list[int]:
    """For each point the bit set of points that may run at the same time."""
    below: dict[tuple[int, int], int] = defaultdict(int)
    for t, point in enumerate(flow.points):
        for step in point.path:
            below[step] |= 1 << t
    beside: dict[tuple[int, int], int] = defaultdict(int)
    for level, before in enumerate(flow.levels):
        for i, mask in enumerate(before):
            for j in range(i):
                if not mask >> j & 1:
                    beside[level, i] |= below[level, j]
                    beside[level, j] |= below[level, i]
    concurrent = []
    for point in flow.points:
        mask = 0
        for step in point.path:
            mask |= beside[step]
        concurrent.append(mask)
    return concurrent
