"""Assignment of units to one memory region: greedy knapsack over time, improved by exchange.

    thin out   while the live bytes exceed the capacity at some time, drop the live unit with the least saving per
               byte and time; then readmit dropped units with enough room
    cut off    while no packing fits the capacity, drop units with an end above it, least saving first
    improve    try to readmit dropped units, or to exchange each for a unit with less saving

Live bytes are counted from the lifetimes; whether a choice fits is decided by packing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.packing.portfolio import PackingReport
from sublet.packing.problem import Problem
from sublet.packing.region_cost import Unit

MAX_TRIAL_PACKINGS = 300
"""Most packings tried to improve a choice; on large problems TRIED_BUFFERS / buffers, at least 8."""
TRIED_BUFFERS = 100_000

MOST_UNITS = 200
MOST_EXCHANGES = 50
"""Most dropped units retried per pass (MOST_UNITS), and most exchange partners tried per unit (MOST_EXCHANGES)."""

PackMembers = Callable[[Sequence[int]], PackingReport]
"""Packs the buffers at the given positions for the capacity of the region."""


@dataclass
class RegionChoice:
    """The units inside a region, with their packing if there are any."""

    inside: list[int]
    report: PackingReport | None


class RegionChooser:
    """Selects units for one region. `saving` is the cost saved per unit against the next region."""

    def __init__(self, problem: Problem, units: Sequence[Unit], capacity: int, fitted: PackMembers) -> None:
        self._problem = problem
        self._units = units
        self._capacity = capacity
        self._pack_members = fitted
        self._times = np.unique([buffer.lower for buffer in problem.buffers])
        self._load = np.zeros(len(self._times), dtype=np.int64)
        self._spans = [self._spans_of(unit) for unit in units]
        self._tries = max(8, min(MAX_TRIAL_PACKINGS, TRIED_BUFFERS // max(1, len(problem.buffers))))

    def _spans_of(self, unit: Unit) -> list[tuple[int, int, int]]:
        """Return (begin, end, bytes) per live piece of the unit; begin and end are positions in `_times`."""
        spans = []
        for member in unit.members:
            buffer = self._problem.buffers[member]
            for begin, end in buffer.pieces:
                first, last = np.searchsorted(self._times, (begin, end)).tolist()
                if first < last and buffer.size:
                    spans.append((first, last, buffer.size))
        return sorted(spans)

    def choose(self, candidates: list[int], saving: Sequence[int], deadline: float | None) -> RegionChoice:
        """Select units for the region among the units at the positions `candidates`."""
        able = [unit for unit in candidates if self._units[unit].room <= self._capacity]
        everything = self._packing_that_fits(able)
        if everything is not None:
            return RegionChoice(able, everything)
        worth = {unit: saving[unit] / max(1, self._area(unit)) for unit in able}
        inside = self._thin_out(able, worth)
        choice = self._cut_off(inside, worth)
        return self._improve(choice, able, saving, deadline)

    def _packing_that_fits(self, inside: Sequence[int]) -> PackingReport | None:
        """Return a packing of the units, or None if no packing within the capacity is found."""
        report = self._pack_members(self._members(inside))
        return report if report.packing.arena_bytes <= self._capacity else None

    def _members(self, inside: Sequence[int]) -> list[int]:
        return sorted(member for unit in inside for member in self._units[unit].members)

    def _area(self, unit: int) -> int:
        """Return the bytes times time of a unit."""
        buffers = (self._problem.buffers[member] for member in self._units[unit].members)
        return sum(buffer.size * (end - begin) for buffer in buffers for begin, end in buffer.pieces)

    def _add_load(self, unit: int, sign: int = 1) -> None:
        """Add the bytes of a unit to the load at each time; `sign` -1 removes the bytes."""
        for begin, end, nbytes in self._spans[unit]:
            self._load[begin:end] += sign * nbytes

    def _has_room(self, unit: int) -> bool:
        """True if the load stays within the capacity at every time with the unit added."""
        self._add_load(unit)
        highest = int(self._load.max(initial=0))
        self._add_load(unit, -1)
        return highest <= self._capacity

    def _thin_out(self, able: list[int], worth: dict[int, float]) -> list[int]:
        """Return the units kept after dropping units until the load fits the capacity at every time."""
        ranked = sorted(able, key=lambda unit: (worth[unit], unit))
        table = [(begin, end, rank) for rank, unit in enumerate(ranked) for begin, end, _ in self._spans[unit]]
        begin, end, rank = np.array(table, dtype=np.int64).reshape(-1, 3).T
        stays = np.ones(len(table), dtype=np.bool_)
        dropped = []
        for unit in able:
            self._add_load(unit)
        while int(self._load.max(initial=0)) > self._capacity:
            peak = int(self._load.argmax())
            worst = int(rank[np.argmax((begin <= peak) & (peak < end) & stays)])
            stays[np.searchsorted(rank, worst) : np.searchsorted(rank, worst, side="right")] = False
            self._add_load(ranked[worst], -1)
            dropped.append(worst)
        discarded = set()
        for unit in (ranked[worst] for worst in reversed(dropped)):
            if self._has_room(unit):
                self._add_load(unit)
            else:
                discarded.add(unit)
        return [unit for unit in able if unit not in discarded]

    def _cut_off(self, inside: list[int], worth: dict[int, float]) -> RegionChoice:
        """Return the units kept after dropping units until a packing fits the capacity."""
        while inside:
            members = self._members(inside)
            report = self._pack_members(members)
            if report.packing.arena_bytes <= self._capacity:
                return RegionChoice(inside, report)
            placed = zip(members, report.packing.offsets, strict=True)
            ends = {member: offset + self._problem.buffers[member].size for member, offset in placed}
            above = [u for u in inside if max(ends[m] for m in self._units[u].members) > self._capacity]
            above.sort(key=lambda unit: (worth[unit], unit))
            leaving = set(above[: max(1, len(above) // 4)])
            for unit in above[: len(leaving)]:
                self._add_load(unit, -1)
            inside = [unit for unit in inside if unit not in leaving]
        return RegionChoice([], None)

    def _improve(
        self, choice: RegionChoice, able: list[int], saving: Sequence[int], deadline: float | None
    ) -> RegionChoice:
        """Admit units, or exchange one unit for another, largest saving first, until no change helps."""
        improved = True
        while improved:
            improved = False
            outside = [unit for unit in set(able) - set(choice.inside) if saving[unit] > 0]
            outside.sort(key=lambda unit: (-saving[unit], unit))
            for unit in outside[:MOST_UNITS]:
                if self._tries <= 0 or (deadline is not None and time.monotonic() > deadline):
                    return choice
                better = self._admit(choice, unit, saving)
                if better is not None:
                    choice, improved = better, True
        return choice

    def _admit(self, choice: RegionChoice, unit: int, saving: Sequence[int]) -> RegionChoice | None:
        """Return the choice with `unit` added, or exchanged for a unit with less saving; None if no packing fits."""
        if self._has_room(unit):
            better = self._try_choice([*choice.inside, unit])
            if better is not None:
                self._add_load(unit)
                return better
        poorer = [
            other for other in choice.inside if saving[other] < saving[unit] and self._lifetimes_meet(unit, other)
        ]
        poorer.sort(key=lambda other: (saving[other], other))
        for other in poorer[:MOST_EXCHANGES]:
            self._add_load(other, -1)
            if self._has_room(unit):
                better = self._try_choice([u for u in choice.inside if u != other] + [unit])
                if better is not None:
                    self._add_load(unit)
                    return better
            self._add_load(other)
        return None

    def _lifetimes_meet(self, one: int, other: int) -> bool:
        """True if two units share a time between their first begin and last end."""
        a, b = self._spans[one], self._spans[other]
        return bool(a and b) and a[0][0] < b[-1][1] and b[0][0] < a[-1][1]

    def _try_choice(self, inside: list[int]) -> RegionChoice | None:
        """Return the choice if its packing fits; None if not, or when all tries are spent."""
        if self._tries <= 0:
            return None
        self._tries -= 1
        inside = sorted(inside)
        report = self._packing_that_fits(inside)
        return None if report is None else RegionChoice(inside, report)
