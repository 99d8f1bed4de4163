"""Running where every lie shows: bytes that nobody needs are poisoned, and must stay poisoned.

Before each point of the run, whatever no live value covers is filled with `POISON`: what a value left
behind is gone the moment it dies, and an output that a kernel does not write in full holds garbage. After
the point, those bytes must be as they were, but for the values the point writes: the gaps of the arena are
canaries, and so are guards before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sublet.analysis.flow import Point
from sublet.analysis.liveness import LiveRanges, liveness, merge
from sublet.errors import RunError
from sublet.ir.graph import Value
from sublet.plan import ARENA, MemoryPlan
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from sublet.runtime.memory import aligned_bytes

POISON = 0xFF
"""Floats of such bytes are NaN, integers -1 or the largest, booleans neither false nor true."""

GUARD = 4096
Range = tuple[int, int]


def run_poisoned(executable: Executable, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run once in a poisoned arena of exactly the planned size; the outputs by name.

    Steps of several streams run one after another, in the order the schedule lists. Raises RunError naming the step
    that wrote where it must not.
    """
    arena = _GuardedArena(executable.plan.arena_bytes, executable.plan.alignment)
    poisoner = _Poisoner(executable, arena)
    return executable.watched(inputs, poisoner.watch, arena=arena.inside, serial=True)


class _GuardedArena:
    """An arena with guards around it, all poisoned."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        before = -(-GUARD // alignment) * alignment
        whole = aligned_bytes(before + nbytes + GUARD, alignment)
        whole[:] = POISON
        self.inside = whole[before : before + nbytes]
        self._guards = (whole[:before], whole[before + nbytes :])

    def check(self, where: str) -> None:
        for guard, side in zip(self._guards, ("before", "after"), strict=True):
            if (guard != POISON).any():
                raise RunError(f"{where}: wrote {side} the arena")


class _Poisoner:
    """Knows for every point which bytes of the arena are in use."""

    def __init__(self, executable: Executable, arena: _GuardedArena) -> None:
        self._arena = arena
        self._points = executable.flow.points
        self._used = _UsedBytes(executable.plan, self._points, liveness(executable.flow), executable.graph.weights)
        self._dead_after = cache(self._free_between)
        self._previous = 0

    def watch(self, index: int, action: Call) -> Call:
        point, arena = self._points[index], self._arena
        free = _complement(merge((*self._used.before(index), *self._used.written(index))), arena.inside.size)

        def act() -> Any:
            for begin, end in self._dead_after(self._previous, index):
                arena.inside[begin:end] = POISON
            result = action()
            for begin, end in free:
                if (arena.inside[begin:end] != POISON).any():
                    raise RunError(f"{point}: wrote outside its outputs, within bytes {begin} to {end} of the arena")
            arena.check(str(point))
            self._previous = index
            return result

        return act

    def _free_between(self, previous: int, index: int) -> Sequence[Range]:
        """What was in use during one point and is not when the next begins."""
        if index == 0:
            return ()
        used = merge((*self._used.before(previous), *self._used.written(previous)))
        return _minus(used, self._used.before(index))


class _UsedBytes:
    """The bytes of the arena that hold a value: when a point begins, and what it writes."""

    def __init__(self, plan: MemoryPlan, points: Sequence[Point], ranges: LiveRanges, always: Sequence[Value]) -> None:
        self._regions = {
            placement.value: (placement.region.offset, placement.region.end)
            for placement in plan.placements
            if placement.region.storage == ARENA and placement.region.nbytes
        }
        self._points = points
        fixed = [self._regions[value.name] for value in always if value.name in self._regions]
        self._before: list[list[Range]] = [list(fixed) for _ in points]
        for value, pieces in ranges.halves.items():
            if value.name in self._regions:
                for index in (i for begin, end in pieces for i in range((begin + 1) // 2, (end + 1) // 2)):
                    self._before[index].append(self._regions[value.name])

    @cache  # noqa: B019 (lives as long as one run)
    def before(self, index: int) -> Sequence[Range]:
        """Live when the point reads."""
        return merge(self._before[index])

    def written(self, index: int) -> Sequence[Range]:
        """The regions of what the point writes."""
        point = self._points[index]
        values = [value.name for value in point.defs]
        if point.kind == "next" and point.node is not None:  # rows are stored into what lives on
            values += [value.name for value in point.uses]
        return merge(self._regions[name] for name in values if name in self._regions)


def _complement(ranges: Iterable[Range], size: int) -> list[Range]:
    """What `ranges`, sorted and disjoint, leave of [0, size)."""
    return _minus([(0, size)], ranges)


def _minus(ranges: Iterable[Range], without: Iterable[Range]) -> list[Range]:
    """The bytes of `ranges` that are not in `without`; both sorted and disjoint."""
    left: list[Range] = []
    holes = list(without)
    for begin, end in ranges:
        at = begin
        for low, high in holes:
            if high <= at or low >= end:
                continue
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return left
