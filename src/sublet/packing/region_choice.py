"""Which units go into a memory region: those that save the most, as far as its capacity reaches.

    thin out   while too many bytes are alive at some time, the unit of those that saves the least a byte of
               it and a time leaves; then some come back where there is room after all
    cut off    while no packing fits the capacity, units that end above it leave, those that save least first
    improve    units that left try to come back, and to change places with one that saves less

Bytes alive at one time are counted from the lifetimes; whether a choice fits is decided by packing it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.packing.auto import Report
from sublet.packing.problem import Problem
from sublet.packing.region_cost import Unit

MOST_TRIES = 300
"""Packings tried to improve a choice; fewer on large problems, for TRIED_BUFFERS in all."""
TRIED_BUFFERS = 100_000

MOST_UNITS = 200
MOST_EXCHANGES = 50
"""Units that try to come back in one round, and those inside with which each tries to change places."""

Fitted = Callable[[Sequence[int]], Report]
"""Packs the buffers at these positions, best for the region's capacity."""


@dataclass
class Choice:
    """Units inside a region, with their packing if there are any."""

    inside: list[int]
    report: Report | None


class Chooser:
    """Chooses among units for one region. `saving` is what each saves there against the next region."""

    def __init__(self, problem: Problem, units: Sequence[Unit], capacity: int, fitted: Fitted) -> None:
        self._problem = problem
        self._units = units
        self._capacity = capacity
        self._fitted = fitted
        self._times = np.unique([buffer.lower for buffer in problem.buffers])
        self._load = np.zeros(len(self._times), dtype=np.int64)
        self._spans = [self._spans_of(unit) for unit in units]
        self._tries = max(8, min(MOST_TRIES, TRIED_BUFFERS // max(1, len(problem.buffers))))

    def _spans_of(self, unit: Unit) -> list[tuple[int, int, int]]:
        """(begin, end, bytes): the times, as positions in `_times`, at which the unit is alive."""
        spans = []
        for member in unit.members:
            buffer = self._problem.buffers[member]
            for begin, end in buffer.pieces:
                first, last = np.searchsorted(self._times, (begin, end)).tolist()
                if first < last and buffer.size:
                    spans.append((first, last, buffer.size))
        return sorted(spans)

    def choose(self, candidates: list[int], saving: Sequence[int], deadline: float | None) -> Choice:
        """The units for the region, of those at these positions."""
        able = [unit for unit in candidates if self._units[unit].room <= self._capacity]
        everything = self._packed(able)
        if everything is not None:
            return Choice(able, everything)
        worth = {unit: saving[unit] / max(1, self._area(unit)) for unit in able}
        inside = self._thin_out(able, worth)
        choice = self._cut_off(inside, worth)
        return self._improve(choice, able, saving, deadline)

    def _packed(self, inside: Sequence[int]) -> Report | None:
        """The packing of these units, if one is found that fits."""
        report = self._fitted(self._members(inside))
        return report if report.packing.arena_bytes <= self._capacity else None

    def _members(self, inside: Sequence[int]) -> list[int]:
        return sorted(member for unit in inside for member in self._units[unit].members)

    def _area(self, unit: int) -> int:
        """Bytes times time."""
        buffers = (self._problem.buffers[member] for member in self._units[unit].members)
        return sum(buffer.size * (end - begin) for buffer in buffers for begin, end in buffer.pieces)

    def _put(self, unit: int, sign: int = 1) -> None:
        for begin, end, nbytes in self._spans[unit]:
            self._load[begin:end] += sign * nbytes

    def _has_room(self, unit: int) -> bool:
        """Whether no time has too many bytes alive with this unit too."""
        self._put(unit)
        highest = int(self._load.max(initial=0))
        self._put(unit, -1)
        return highest <= self._capacity

    def _thin_out(self, able: list[int], worth: dict[int, float]) -> list[int]:
        ranked = sorted(able, key=lambda unit: (worth[unit], unit))
        table = [(begin, end, rank) for rank, unit in enumerate(ranked) for begin, end, _ in self._spans[unit]]
        begin, end, rank = np.array(table, dtype=np.int64).reshape(-1, 3).T
        stays = np.ones(len(table), dtype=np.bool_)
        left = []
        for unit in able:
            self._put(unit)
        while int(self._load.max(initial=0)) > self._capacity:
            peak = int(self._load.argmax())
            worst = int(rank[np.argmax((begin <= peak) & (peak < end) & stays)])
            stays[np.searchsorted(rank, worst) : np.searchsorted(rank, worst, side="right")] = False
            self._put(ranked[worst], -1)
            left.append(worst)
        gone = set()
        for unit in (ranked[worst] for worst in reversed(left)):
            if self._has_room(unit):
                self._put(unit)
            else:
                gone.add(unit)
        return [unit for unit in able if unit not in gone]

    def _cut_off(self, inside: list[int], worth: dict[int, float]) -> Choice:
        while inside:
            members = self._members(inside)
            report = self._fitted(members)
            if report.packing.arena_bytes <= self._capacity:
                return Choice(inside, report)
            placed = zip(members, report.packing.offsets, strict=True)
            ends = {member: offset + self._problem.buffers[member].size for member, offset in placed}
            above = [u for u in inside if max(ends[m] for m in self._units[u].members) > self._capacity]
            above.sort(key=lambda unit: (worth[unit], unit))
            leaving = set(above[: max(1, len(above) // 4)])
            for unit in above[: len(leaving)]:
                self._put(unit, -1)
            inside = [unit for unit in inside if unit not in leaving]
        return Choice([], None)

    def _improve(self, choice: Choice, able: list[int], saving: Sequence[int], deadline: float | None) -> Choice:
        """Let units in, or exchange one for another, most saving first, until nothing more is found to help."""
        improved = True
        while improved:
            improved = False
            outside = [unit for unit in set(able) - set(choice.inside) if saving[unit] > 0]
            outside.sort(key=lambda unit: (-saving[unit], unit))
            for unit in outside[:MOST_UNITS]:
                if self._tries <= 0 or (deadline is not None and time.monotonic() > deadline):
                    return choice
                better = self._let_in(choice, unit, saving)
                if better is not None:
                    choice, improved = better, True
        return choice

    def _let_in(self, choice: Choice, unit: int, saving: Sequence[int]) -> Choice | None:
        """The choice with this unit too, or instead of one that saves less and leaves it enough room."""
        if self._has_room(unit):
            better = self._tried([*choice.inside, unit])
            if better is not None:
                self._put(unit)
                return better
        poorer = [other for other in choice.inside if saving[other] < saving[unit] and self._meet(unit, other)]
        poorer.sort(key=lambda other: (saving[other], other))
        for other in poorer[:MOST_EXCHANGES]:
            self._put(other, -1)
            if self._has_room(unit):
                better = self._tried([u for u in choice.inside if u != other] + [unit])
                if better is not None:
                    self._put(unit)
                    return better
            self._put(other)
        return None

    def _meet(self, one: int, other: int) -> bool:
        """Whether two units have a time in common, from their first to their last."""
        a, b = self._spans[one], self._spans[other]
        return bool(a and b) and a[0][0] < b[-1][1] and b[0][0] < a[-1][1]

    def _tried(self, inside: list[int]) -> Choice | None:
        if self._tries <= 0:
            return None
        self._tries -= 1
        inside = sorted(inside)
        report = self._packed(inside)
        return None if report is None else Choice(inside, report)
