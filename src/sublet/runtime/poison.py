"""Poisoned execution, to expose wrong plans and kernels: unused bytes are poisoned, and must stay poisoned.

The bytes are the arenas, and the storages of updated values.

Before each point, all bytes outside live values are filled with `POISON`: dead values are destroyed at once, and
an output not written in full holds garbage. After the point, these bytes must be unchanged, except for values
written by the point: gaps in the arena act as canaries, as do guards before and after the arena. A view or concat
operand in place must be unchanged too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from sublet.base.errors import RunError
from sublet.base.ranges import merge
from sublet.ir.graph import Value
from sublet.ops.op import lookup, present_shares, row_form
from sublet.plan import ARENA, RUN, Context, MemoryPlan, Placement, Region, bound_storage_name
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.state import PointAccesses

POISON = 0xFF
"""The poison byte: floats become NaN, integers -1 or the maximum, booleans neither false nor true."""

GUARD = 4096
"""Least bytes of poison before, between and after arenas, to catch writes out of bounds."""
Range = tuple[int, int]


def run_poisoned(
    executable: Executable, inputs: Mapping[str, Any], left: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run once in poisoned arenas of exactly the planned size; return the outputs by name.

    The steps run one by one: results can differ in the last bits from a plain call, which may merge kernels. The
    state is restored afterwards; the state after the run is stored in `left`. Steps of several streams run one after
    another, in the order of the schedule. Raises RunError naming a step with a write outside its outputs.
    """
    if not isinstance(executable, Executable):
        raise RunError(f"run_poisoned takes an Executable of one shape, not a {type(executable).__name__}")
    arenas = _GuardedArenas(executable.plan)
    poisoner = _Poisoner(executable, arenas)
    return executable.run_watched(inputs, poisoner.watch, arenas=arenas.by_name, serial=True, left=left)


class _GuardedArenas:
    """The arenas of a plan and its updated storages, in one block, with guards before, between and after; all poisoned.

    begins   the begin of each arena in the block
    """

    def __init__(self, plan: MemoryPlan) -> None:
        updated = {bound_storage_name(name) for name in plan.updated}
        arenas = [storage for storage in plan.storages if storage.kind == ARENA or storage.name in updated]
        step = plan.alignment
        guard = -(-GUARD // step) * step
        self.begins: dict[str, int] = {}
        end = 0
        for arena in arenas:
            self.begins[arena.name] = end + guard
            end = self.begins[arena.name] + -(-arena.nbytes // step) * step
        self.block = aligned_bytes(end + guard, step)
        self.block[:] = POISON
        self.by_name = {
            arena.name: self.block[begin : begin + arena.nbytes]
            for arena, begin in zip(arenas, self.begins.values(), strict=True)
        }

    def where(self, byte: int) -> str:
        """Return a description of a byte of the block, relative to the nearest arena."""

        def distance(name: str) -> int:
            begin = self.begins[name]
            return max(begin - byte, byte - begin - self.by_name[name].size + 1, 0)

        name = min(self.begins, key=distance)
        return f"byte {byte - self.begins[name]} of the {name}, which has {self.by_name[name].size:,} bytes"


class _Poisoner:
    """A watch that poisons unused bytes before each point and checks them afterwards."""

    def __init__(self, executable: Executable, arenas: _GuardedArenas) -> None:
        self._arenas = arenas
        self._used = _UsedBytes(executable, arenas.begins)
        self._dead_after = cache(self._free_between)
        self._previous = 0

    def watch(self, index: int, action: Call) -> Call:
        """Return the action with poisoning before, and checks after."""
        point, block = self._used.points[index].point, self._arenas.block
        free = _complement(merge((*self._used.live_before(index), *self._used.bytes_written(index))), block.size)

        def act() -> Any:
            in_place = self._used.in_place(index)  # depends on the current bindings of renamed carries
            for begin, end in self._dead_after(self._previous, index):
                block[begin:end] = POISON
            found = [block[begin:end].copy() for begin, end in in_place]
            result = action()
            for (begin, end), content in zip(in_place, found, strict=True):
                if not np.array_equal(block[begin:end], content):
                    raise RunError(f"{point}: changed a value already in place, at {self._arenas.where(begin)}")
            for begin, end in free:
                wrong = block[begin:end] != POISON
                if wrong.any():
                    where = self._arenas.where(begin + int(wrong.argmax()))
                    raise RunError(f"{point}: wrote outside its outputs, at {where}")
            self._previous = index
            return result

        return act

    def _free_between(self, previous: int, index: int) -> Sequence[Range]:
        """Return the bytes used at one point but dead when the next begins."""
        if index == 0:
            return ()
        used = merge((*self._used.live_before(previous), *self._used.bytes_written(previous)))
        return _subtract_ranges(used, self._used.live_before(index))


class _UsedBytes:
    """The live bytes of the arenas at the begin of each point, and the bytes written by each point."""

    def __init__(self, executable: Executable, begins: Mapping[str, int]) -> None:
        self._executable = executable
        self._begins = begins
        self.points = executable.point_accesses
        regions = [self._ranges(place.region) for place in executable.plan.placements]
        placed = [(place, found) for place, found in zip(executable.plan.placements, regions, strict=True) if found]
        lasting = {value.name for value in executable.graph.constants}
        fixed = [each for place, found in placed if place.value in lasting for each in found]
        self._live_ranges: list[list[Range]] = [list(fixed) for _ in self.points]
        self._written_ranges: list[list[Range]] = [[] for _ in self.points]
        touched = list(_names_read_and_written(self.points, executable.plan))
        for place, found in placed:
            for index in (index for begin, end in place.live for index in range(begin, end)):
                reads, writes = touched[index]
                here = place.value in writes and _is_in_versions(place, self.points[index].copies)
                if here:
                    self._written_ranges[index] += found
                if not here or place.value in reads:
                    self._live_ranges[index] += found

    def _ranges(self, region: Region | None) -> list[Range]:
        """Return the bytes of a region in the block; empty for a region outside the block, or without bytes."""
        if region is None or region.storage not in self._begins or not region.nbytes:
            return []
        begin = self._begins[region.storage]
        return [(begin + run.offset, begin + run.end) for run in region.runs]

    @cache  # noqa: B019 (lives as long as one run)
    def live_before(self, index: int) -> Sequence[Range]:
        """Return the bytes live when the point reads."""
        return merge(self._live_ranges[index])

    def bytes_written(self, index: int) -> Sequence[Range]:
        """Return the regions of the values written by the point."""
        return merge(self._written_ranges[index])

    def in_place(self, index: int) -> Sequence[Range]:
        """Return the regions of views and concat operands already in place at the point."""
        copies, aliased = self.points[index].copies, list[Range]()
        for offset, inner, whole, rows in self._possible_aliases(index):
            part, around = self._current_region(inner, copies), self._current_region(whole, copies)
            if part is None or around is None or part.storage != around.storage:
                continue
            for number in range(rows):
                run = part.row(number, rows)
                if run.offset == around.row(number, rows).offset + offset:
                    aliased += self._ranges(run)
        return merge(aliased)

    @cache  # noqa: B019
    def _possible_aliases(self, index: int) -> Sequence[tuple[int, Value, Value, int]]:
        """Return the possible aliases of the node of a point: (offset, part, whole, rows)."""
        point = self.points[index]
        if point.kind != RUN or point.node is None:
            return ()
        op, node, rows = lookup(point.node.op), point.node, 1
        in_rows = self._executable.planned_memory.in_rows
        if not in_rows.isdisjoint(value.name for value in (*node.uses, *node.defs)) and (form := row_form(node)):
            node, rows = form.node, form.count
        views = [(offset, output, base, rows) for output, base, offset in present_shares(node, op.views(node))]
        parts = [(offset, part, output, rows) for output, part, offset in present_shares(node, op.parts(node))]
        return [*views, *parts]

    def _current_region(self, value: Value, copies: Context) -> Region | None:
        """Return the region of a value in the current iteration."""
        return self._executable.region_of(value, copies) if value.plannable else None


def _names_read_and_written(points: Iterable[PointAccesses], plan: MemoryPlan) -> Iterator[tuple[set[str], set[str]]]:
    """Yield for each point the names possibly read, with values bound to renamed carries, and the names written."""
    stands_for = {place.value: place.stands_for for place in plan.placements if place.stands_for}
    for point in points:
        reads = {value.name for value in point.reads}
        reads.update(name for value in point.reads for name in stands_for.get(value.name, ()))
        yield reads, {value.name for value in point.writes}


def _is_in_versions(place: Placement, copies: Context) -> bool:
    """True if a placement applies to the body versions `copies`."""
    return any(copies[: len(context)] == context for context in place.copies or ((),))


def _complement(ranges: Iterable[Range], size: int) -> list[Range]:
    """Return the bytes of [0, size) outside `ranges`, which are sorted and disjoint."""
    return _subtract_ranges([(0, size)], ranges)


def _subtract_ranges(ranges: Iterable[Range], without: Iterable[Range]) -> list[Range]:
    """Return the bytes of `ranges` outside `without`; both sorted and disjoint."""
    remaining: list[Range] = []
    holes = list(without)
    for begin, end in ranges:
        at = begin
        for low, high in holes:
            if high <= at or low >= end:
                continue
            if low > at:
                remaining.append((at, low))
            at = max(at, high)
        if at < end:
            remaining.append((at, end))
    return remaining
