"""Cost of an assignment to memory regions, and a lower bound on the cost of every assignment.

A buffer in a region costs accesses x size x the region's cost of one byte. Companions stay together, so
the planner assigns units: a group of companions, or a single buffer.

The bound is a Lagrangian relaxation: every byte of every region gets a price at some times. A unit then pays
its cost plus the prices of the bytes it takes, in the cheapest region; the capacities at their prices are
subtracted. For any prices, no assignment within the capacities costs less; good prices are the
dual values of the linear program with divisible buffers. The prices are rounded, and the bound is
computed from them in integers, so that the solver's accuracy cannot make the bound wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from sublet.base.errors import ProblemError
from sublet.packing.bounds import clique_within
from sublet.packing.conflicts import PrecedenceConflicts
from sublet.packing.problem import MAX_ACCESSES, MAX_SIZE, Problem
from sublet.packing.rigid_groups import groups_of

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
    units, regions = len(costs), len(costs[0])
    scale = float(max(1, max(map(max, costs))))
    where = np.array([(s, u) for s, u, _ in entries], dtype=np.int64)
    size = np.array([nbytes for _, _, nbytes in entries], dtype=np.float64)
    rows, columns, values, limits = [], [], [], []
    for k, (region, capacity) in enumerate(zip(tight, capacities, strict=True)):
        unit = float(max(1, capacity))
        rows.append(where[:, 0] + k * sections)
        columns.append(where[:, 1] * regions + region)
        values.append(size / unit)
        limits.append(np.full(sections, capacity / unit))
    shape = (len(tight) * sections, units * regions)
    inequalities = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
    each = np.arange(units * regions)
    equalities = coo_array((np.ones(len(each)), (each // regions, each)), shape=(units, units * regions))
    solved = linprog(  # type: ignore[call-overload]  # the stubs lack sparse matrices
        [max(cost, 0) / scale for row in costs for cost in row],
        A_ub=inequalities.tocsr(),
        b_ub=np.concatenate(limits),
        A_eq=equalities.tocsr(),
        b_eq=np.ones(units),
        bounds=[(0, 1 if cost >= 0 else 0) for row in costs for cost in row],
        method="highs",
    )
    if solved.status != 0:
        return np.zeros((sections, len(tight)), dtype=np.int64)
    duals = -np.asarray(solved.ineqlin.marginals).reshape(len(tight), sections).T * scale
    per_byte = np.maximum(duals, 0) / np.maximum(1, np.array(capacities, dtype=np.float64))
    return np.minimum(per_byte * PRICE_UNIT, float(1 << 62)).astype(np.int64)


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
