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
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.base.linear_program import LinearProgram
from sublet.packing.bounds import clique_within
from sublet.packing.conflicts import PrecedenceConflicts
from sublet.packing.normalize import groups_of
from sublet.packing.portfolio import PackingReport
from sublet.packing.problem import MAX_ACCESSES, MAX_SIZE, Problem

# Cost of an assignment to memory regions, and a lower bound on the cost of every assignment.
#
# A buffer in a region costs accesses x size x the region's cost of one byte. Companions stay together, so the planner
# assigns units: a group of companions, or a single buffer.
#
# The bound is a Lagrangian relaxation: every byte of every region gets a price at some times. A unit then pays its cost
# plus the prices of the bytes it takes, in the cheapest region; the capacities at their prices are subtracted. For any
# prices, no assignment within the capacities costs less; good prices are the dual values of the linear program with
# divisible buffers. The prices are rounded, and the bound is computed from them in integers, so that the solver's
# accuracy cannot make the bound wrong.

MOST_ENTRIES = 200_000
"""Most (buffer, time) entries of the linear program; the times with the most bytes first, the rest is left out."""
PRICE_UNIT = 1 << 30
"""Prices are integers in units of 1 / PRICE_UNIT."""


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """A memory region: `capacity` bytes; one access of one byte costs `cost`.

    A region with a `rate` is accessed by transfers only, at `rate` bytes per second: only buffers moved by
    the program lie in the region (`nn.offload`).
    """

    name: str
    capacity: int
    cost: int = 1
    rate: int = 0

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("%"):
            raise ProblemError(f"region {self.name!r}: the name must not be empty or begin with %")
        if not 0 <= self.capacity <= MAX_SIZE:
            raise ProblemError(f"region {self.name}: capacity {self.capacity} must be between 0 and 2^62")
        if not 0 <= self.cost <= MAX_ACCESSES:
            raise ProblemError(f"region {self.name}: cost {self.cost} must be between 0 and 2^53")
        if not 0 <= self.rate <= MAX_ACCESSES:
            raise ProblemError(f"region {self.name}: {self.rate} bytes a second must be between 0 and 2^53")


def slow_region(regions: Sequence[MemoryRegion]) -> MemoryRegion | None:
    """Return the region with a rate, accessed by transfers only; None if no region has a rate.

    Raises ProblemError for several regions with a rate, and for a rate without another region to run in.
    """
    slow = [region for region in regions if region.rate]
    if len(slow) > 1:
        raise ProblemError(f"regions {slow[0].name} and {slow[1].name}: only one region may have bytes a second")
    if slow and len(regions) == 1:
        raise ProblemError(f"region {slow[0].name}: add a region without bytes a second for the network")
    return slow[0] if slow else None


@dataclass(frozen=True, slots=True)
class Unit:
    """Buffers assigned together; `traffic` sums accesses x size; `room` is the capacity needed, in bytes."""

    members: tuple[int, ...]
    traffic: int
    room: int


def units_of(problem: Problem) -> list[Unit]:
    """Return the units of a problem, ordered by first member."""
    groups = {group.members[0][0]: group for group in groups_of(problem)}
    inside = {member for group in groups.values() for member, _ in group.members}
    units = []
    for position, buffer in enumerate(problem.buffers):
        if position in groups:
            group = groups[position]
            ends = [distance + problem.buffers[member].size for member, distance in group.members]
            members = tuple(member for member, _ in group.members)
            room = (group.lowest_offset if group.pin is None else group.pin) + max(ends)
        elif position not in inside:
            members, room = (position,), (buffer.pinned or 0) + buffer.size
        else:
            continue
        units.append(Unit(members, sum(traffic_of(problem, member) for member in members), room))
    return units


def traffic_of(problem: Problem, position: int) -> int:
    """Return the bytes read or written in one buffer: accesses x size."""
    return problem.buffers[position].accesses * problem.buffers[position].size


def cost_lower_bound(problem: Problem, units: Sequence[Unit], regions: Sequence[MemoryRegion]) -> int:
    """Return a lower bound on the cost of every assignment within the capacities.

    The problem has no `may_overlap`, and each unit must fit alone into some region.
    """
    costs = [[unit.traffic * r.cost if unit.room <= r.capacity else -1 for r in regions] for unit in units]
    free = sum(min(cost for cost in row if cost >= 0) for row in costs)
    tight = [k for k, region in enumerate(regions) if region.cost < max(r.cost for r in regions)]
    sections = _sections(problem) if tight and units else []
    if not sections:
        return free
    unit_of = {member: index for index, unit in enumerate(units) for member in unit.members}
    entries = [
        (s, unit_of[member], problem.buffers[member].size) for s, members in enumerate(sections) for member in members
    ]
    prices = _dual_prices(entries, len(sections), costs, [regions[k].capacity for k in tight], tight)
    return max(free, _lagrangian_bound(entries, prices, costs, [regions[k].capacity for k in tight], tight))


def _sections(problem: Problem) -> list[tuple[int, ...]]:
    """Return sets of buffers in pairwise conflict: the buffers live at one time, at the times with the most bytes."""
    events = sorted(
        (time, begins, position)
        for position, buffer in enumerate(problem.buffers)
        if buffer.size
        for piece in buffer.pieces
        for begins, time in enumerate(reversed(piece))
    )
    alive: dict[int, None] = {}
    candidates: list[tuple[int, tuple[int, ...]]] = []
    grew, entries = False, 0
    for _, begins, position in events:
        if begins:
            alive[position] = None
        elif grew and entries < 16 * MOST_ENTRIES:
            candidates.append((sum(problem.buffers[member].size for member in alive), tuple(sorted(alive))))
            entries += len(alive)
        if not begins:
            del alive[position]
        grew = bool(begins)
    candidates.sort(key=lambda section: (-section[0], section[1]))
    sections, entries = [], 0
    conflicts = None if problem.precedence is None else PrecedenceConflicts(problem.precedence.conflicts())
    for _, members in candidates:
        chosen = members if conflicts is None else clique_within(problem, conflicts, members)
        entries += len(chosen)
        if entries > MOST_ENTRIES:
            break
        sections.append(chosen)
    return sections


Entries = list[tuple[int, int, int]]


def _dual_prices(
    entries: Entries, sections: int, costs: list[list[int]], capacities: list[int], tight: list[int]
) -> NDArray[np.int64]:
    """Return `prices[section, k]`: the price of a byte of tight region k, in 1 / PRICE_UNIT; zeros if unsolved."""
    program = LinearProgram()
    inside = [
        {region: program.add_variable(float(cost)) for region, cost in enumerate(row) if cost >= 0} for row in costs
    ]
    alive: list[list[tuple[int, int]]] = [[] for _ in range(sections)]
    for section, unit, nbytes in entries:
        alive[section].append((unit, nbytes))
    scales = [float(max(1, capacity)) for capacity in capacities]
    for region, capacity, scale in zip(tight, capacities, scales, strict=True):
        for together in alive:
            terms = [(inside[unit][region], nbytes / scale) for unit, nbytes in together if region in inside[unit]]
            program.add_constraint(terms, capacity / scale)
    for row in inside:
        program.add_constraint([(variable, -1.0) for variable in row.values()], -1.0)
    duals = program.prices()[: len(tight) * sections].reshape(len(tight), sections).T
    return np.minimum(duals / scales * PRICE_UNIT, float(1 << 62)).astype(np.int64)


def _lagrangian_bound(
    entries: Entries, prices: NDArray[np.int64], costs: list[list[int]], capacities: list[int], tight: list[int]
) -> int:
    """Return the Lagrangian bound for the given prices, in exact integer arithmetic, rounded up."""
    table: list[list[int]] = prices.tolist()
    paid = [[cost * PRICE_UNIT for cost in row] for row in costs]
    for section, unit, nbytes in entries:
        for k, region in enumerate(tight):
            if paid[unit][region] >= 0:
                paid[unit][region] += nbytes * table[section][k]
    total = sum(min(price for price in row if price >= 0) for row in paid)
    total -= sum(price * capacity for row in table for price, capacity in zip(row, capacities, strict=True))
    return -(-total // PRICE_UNIT)


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
