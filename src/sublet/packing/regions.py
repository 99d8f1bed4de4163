"""Assignment of buffers to several memory regions, with an offset in each.

    sram  512 KiB  cost 1     the buffers with the most accesses per byte
    dram    8 MiB  cost 10    the remaining buffers

If all buffers fit into the cheapest region, they go there. Otherwise regions are filled from the cheapest up
with the units saving the most (see `region_assignment`), and the most expensive region takes the rest. If the
rest exceeds the last region, the planner tries again by size in place of cost. The packing is checked, and
carries a lower bound on the cost of every packing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from sublet.base.errors import CapacityError, Finding, PackingError, ProblemError
from sublet.packing.bounds import lower_bound
from sublet.packing.normalize import normalize, overlaps_as_precedence
from sublet.packing.portfolio import AUTO, PackingReport, pack
from sublet.packing.problem import Buffer, Packing, Problem, order_by_id, select_buffers
from sublet.packing.region_assignment import (
    MemoryRegion,
    RegionChooser,
    cost_lower_bound,
    slow_region,
    traffic_of,
    units_of,
)
from sublet.packing.search import SEARCH, can_search
from sublet.packing.validate import find_violations

TRIAL_STEPS = 20_000
"""Steps of a search deciding whether a choice fits a region, divided by the number of buffers as in `search`."""

MAX_NAMED = 5
"""Buffers named by an error message."""

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class RegionShare:
    """The contents of a region: positions of the buffers, arena size in bytes, and cost."""

    region: MemoryRegion
    members: tuple[int, ...]
    arena_bytes: int
    strategy: str
    cost: int


@dataclass(frozen=True, slots=True)
class RegionPacking:
    """A region and an offset for every buffer, in the order of the problem.

    shares      one per region, in the order given by the caller
    region_of   for each buffer the position of its region in `shares`
    cost        accesses x size x cost of the region, summed over all buffers
    least_cost  a lower bound on the cost of every packing
    stopped     "timeout" or "interrupt" when the search was cut short, else ""
    """

    shares: tuple[RegionShare, ...]
    region_of: tuple[int, ...]
    offsets: tuple[int, ...]
    cost: int
    least_cost: int
    seconds: float
    stopped: str = ""

    @property
    def arena_bytes(self) -> int:
        """The bytes of all regions together."""
        return sum(share.arena_bytes for share in self.shares)

    @property
    def gap(self) -> float:
        """The excess cost relative to the lower bound; 0.0 proves the packing optimal."""
        return (self.cost - self.least_cost) / self.least_cost if self.least_cost else float(self.cost > 0)

    def names(self) -> tuple[str, ...]:
        """Return the name of the region of each buffer."""
        return tuple(self.shares[region].region.name for region in self.region_of)


def place_in_regions(
    problem: Problem,
    regions: Sequence[MemoryRegion],
    strategy: str = AUTO,
    timeout: float | None = None,
    progress: Progress | None = None,
    *,
    effort: int | None = None,
    seed: int = 0,
) -> RegionPacking:
    """Choose a region and an offset for every buffer within the capacities, at the lowest cost found.

    A pin is an offset within the region chosen for its buffer. The other arguments are those of `pack`.
    Raises ProblemError for invalid regions or a problem without any packing, CapacityError
    when the planner finds no packing within the capacities.
    """
    if not regions:
        raise ProblemError("expected at least one memory region")
    for position, region in enumerate(regions):
        if region.name in (other.name for other in regions[:position]):
            raise ProblemError(f"region {region.name} occurs twice")
    order = order_by_id(problem)
    placer = _Placer(select_buffers(problem, order), regions, strategy, timeout, progress, effort, seed)
    packing = placer.place()
    region_of, offsets = [0] * len(order), [0] * len(order)
    for rank, position in enumerate(order):
        region_of[position], offsets[position] = packing.region_of[rank], packing.offsets[rank]
    shares = tuple(replace(share, members=tuple(sorted(order[m] for m in share.members))) for share in packing.shares)
    packing = replace(packing, shares=shares, region_of=tuple(region_of), offsets=tuple(offsets))
    check_regions(problem, packing)
    return packing


def check_regions(problem: Problem, packing: RegionPacking) -> None:
    """Raise PackingError unless every buffer lies in exactly one region, at a valid offset within the capacity."""
    findings: list[Finding] = []
    if sorted(m for share in packing.shares for m in share.members) != list(range(len(problem.buffers))):
        findings.append(
            Finding("count", "packing", "some buffer does not lie in exactly one region", "place each buffer once")
        )
        raise PackingError(findings)
    for tie in problem.companions:
        if packing.region_of[tie.first] != packing.region_of[tie.second]:
            where, other = problem.buffers[tie.first].id, problem.buffers[tie.second].id
            findings.append(Finding("companions", f"buffer {where}", f"lies in another region than {other}"))
    for position, share in enumerate(packing.shares):
        inside = select_buffers(problem, share.members)
        offsets = tuple(packing.offsets[member] for member in share.members)
        capacity = min(share.arena_bytes, share.region.capacity)
        findings += find_violations(inside, Packing(offsets, capacity, share.strategy))
        if any(packing.region_of[member] != position for member in share.members):
            findings.append(Finding("count", f"region {share.region.name}", "lists a buffer of another region"))
    if findings:
        raise PackingError(findings)


def _display_name(buffer: Buffer) -> str:
    """Return the display name of a buffer for messages."""
    return buffer.label or f"buffer {buffer.id}"


class _Placer:
    """One call of `place_in_regions`, with the buffers in canonical order."""

    def __init__(
        self,
        problem: Problem,
        regions: Sequence[MemoryRegion],
        strategy: str,
        timeout: float | None,
        progress: Progress | None,
        effort: int | None,
        seed: int,
    ) -> None:
        normalize(problem)  # raises ProblemError for contradicting constraints
        self._begin = time.monotonic()
        self._problem = overlaps_as_precedence(problem)
        self._units = units_of(problem)
        self._regions = sorted(enumerate(regions), key=lambda each: (each[1].cost, each[0]))
        self._strategy, self._progress, self._effort, self._seed = strategy, progress, effort, seed
        self._timeout = timeout
        self._stopped = ""
        self._shortfall: tuple[int, str] | None = None

    def place(self) -> RegionPacking:
        self._check_largest_unit()
        regions = [region for _, region in self._regions]
        chosen = self._choose_regions([unit.traffic for unit in self._units])
        if chosen is None:
            chosen = self._choose_regions([unit.room for unit in self._units], by_size=True)
        if chosen is None:
            raise CapacityError(self._overflow_message())
        shares: list[RegionShare | None] = [None] * len(regions)
        region_of, offsets = [0] * len(self._problem.buffers), [0] * len(self._problem.buffers)
        last = max((k for k, (members, _) in enumerate(chosen) if members), default=0)
        for k, ((given, region), (members, report)) in enumerate(zip(self._regions, chosen, strict=True)):
            # Only the last region is packed with full effort: a smaller arena in a filled region saves no cost.
            packing = report.packing if report is not None and k != last else self._smallest(members, report)
            for member, offset in zip(members, packing.offsets, strict=True):
                region_of[member], offsets[member] = given, offset
            cost = sum(traffic_of(self._problem, member) for member in members) * region.cost
            shares[given] = RegionShare(region, tuple(members), packing.arena_bytes, packing.strategy, cost)
        filled = tuple(share for share in shares if share is not None)
        least = cost_lower_bound(self._problem, self._units, regions)
        seconds = time.monotonic() - self._begin
        cost = sum(share.cost for share in filled)
        return RegionPacking(filled, tuple(region_of), tuple(offsets), cost, least, seconds, self._stopped)

    def _choose_regions(
        self, weight: list[int], by_size: bool = False
    ) -> list[tuple[list[int], PackingReport | None]] | None:
        """Return per region the positions of its buffers and a packing; None if the last region overflows."""
        left = list(range(len(self._units)))
        chosen: list[tuple[list[int], PackingReport | None]] = []
        for k, (_, region) in enumerate(self._regions):
            if k + 1 == len(self._regions):
                members = sorted(member for unit in left for member in self._units[unit].members)
                report = self._fitter(region)(members)
                if report.packing.arena_bytes > region.capacity:
                    missing = (report.packing.arena_bytes - region.capacity, region.name)
                    self._shortfall = min(self._shortfall or missing, missing)
                    return None
                return [*chosen, (members, report)]
            step = 1 if by_size else self._regions[k + 1][1].cost - region.cost
            # Units too large for every later region come first, whatever their saving.
            elsewhere = max(other.capacity for _, other in self._regions[k + 1 :])
            most = 1 + step * sum(weight)
            saving = [step * weight[u] + most * (unit.room > elsewhere) for u, unit in enumerate(self._units)]
            deadline = None if self._timeout is None else self._begin + self._timeout
            chooser = RegionChooser(self._problem, self._units, region.capacity, self._fitter(region))
            choice = chooser.choose(left, saving, deadline)
            chosen.append((sorted(m for u in choice.inside for m in self._units[u].members), choice.report))
            left = sorted(set(left) - set(choice.inside))
        return chosen

    def _fitter(self, region: MemoryRegion) -> Callable[[Sequence[int]], PackingReport]:
        def pack_members(members: Sequence[int]) -> PackingReport:
            inside = select_buffers(self._problem, members)
            strategy = self._strategy
            if strategy == AUTO:
                strategy = SEARCH if can_search(normalize(inside).problem) else "first_fit_by_tightness"
            steps = max(100, TRIAL_STEPS // max(1, len(members)) * 10)
            return pack(inside, strategy, capacity=region.capacity, effort=steps, seed=self._seed)

        return pack_members

    def _smallest(self, members: Sequence[int], fitted: PackingReport | None) -> Packing:
        """Return the packing of a region with the remaining effort, not larger than the known packing."""
        late = self._timeout is not None and time.monotonic() > self._begin + self._timeout
        if fitted is not None and (late or fitted.gap == 0):
            self._stopped = self._stopped or ("timeout" if late else "")
            return fitted.packing
        left = None if self._timeout is None else max(0.0, self._begin + self._timeout - time.monotonic())
        inside = select_buffers(self._problem, members)
        report = pack(inside, self._strategy, left, self._progress, effort=self._effort, seed=self._seed)
        self._stopped = self._stopped or report.stopped
        packings = [report.packing] if fitted is None else [report.packing, fitted.packing]
        return min(packings, key=lambda packing: packing.arena_bytes)

    def _check_largest_unit(self) -> None:
        _, largest = max(self._regions, key=lambda each: each[1].capacity)
        unit = max(self._units, key=lambda unit: unit.room, default=None)
        if unit is None or unit.room <= largest.capacity:
            return
        group = f" and its {len(unit.members) - 1} companions" if len(unit.members) > 1 else ""
        raise CapacityError(
            f"{_display_name(self._problem.buffers[unit.members[0]])}{group}: needs {unit.room} bytes, "
            f"{unit.room - largest.capacity} more than the largest region has ({largest.name}: {largest.capacity})"
        )

    def _overflow_message(self) -> str:
        """Return the error message for buffers without a fitting choice of regions."""
        capacity = sum(region.capacity for _, region in self._regions)
        bound = lower_bound(self._problem)
        needed = sorted((self._problem.buffers[member] for member in bound.members), key=lambda buffer: -buffer.size)
        alive = sum(buffer.size for buffer in needed)
        if alive > capacity:
            shown = ", ".join(f"{_display_name(buffer)} of {buffer.size}" for buffer in needed[:MAX_NAMED])
            return (
                f"the buffers cannot fit: {alive} bytes are live at the same time, {alive - capacity} more than all "
                f"regions have together ({capacity}): {shown}{', ...' if needed[MAX_NAMED:] else ''}"
            )
        missing, name = self._shortfall or (0, "")
        return (
            f"no packing found: at best {missing} bytes are missing in region {name}; "
            f"{alive} bytes are live at the same time, all regions have {capacity}"
        )


# Placement of buffers into a dedicated region: buffers used by transfers only, or saved across a suspension point.


def place_in_dedicated_region(
    problem: Problem,
    regions: Sequence[MemoryRegion],
    away: Collection[int],
    strategy: str = AUTO,
    timeout: float | None = None,
    progress: Progress | None = None,
    own: MemoryRegion | None = None,
) -> RegionPacking:
    """Place the buffers at the positions `away` in a dedicated region, all other buffers in the other regions.

    The dedicated region is `own`, or else the region with a rate; without either, all buffers are placed as by
    `place_in_regions`. Raises as `place_in_regions` does, and ProblemError for several regions with a rate, or
    for no other region.
    """
    slow = own or slow_region(regions)
    if slow is None:
        return place_in_regions(problem, regions, strategy, timeout, progress)
    number = {region.name: k for k, region in enumerate(regions)}
    shares: dict[int, RegionShare] = {}
    region_of, offsets = [0] * len(problem.buffers), [0] * len(problem.buffers)
    parts = []
    for inside in ((slow,), tuple(region for region in regions if region is not slow)):
        members = [i for i in range(len(problem.buffers)) if (i in away) is (inside == (slow,))]
        try:
            part = place_in_regions(select_buffers(problem, members), inside, strategy, timeout, progress)
        except CapacityError as error:
            raise CapacityError(f"{error}; {slow.name} holds only offloaded values") from None
        parts.append(part)
        for share in part.shares:
            shares[number[share.region.name]] = replace(share, members=tuple(members[rank] for rank in share.members))
        for rank, position in enumerate(members):
            region_of[position] = number[inside[part.region_of[rank]].name]
            offsets[position] = part.offsets[rank]
    whole = RegionPacking(
        tuple(shares[k] for k in range(len(regions))),
        tuple(region_of),
        tuple(offsets),
        sum(part.cost for part in parts),
        sum(part.least_cost for part in parts),
        sum(part.seconds for part in parts),
        next((part.stopped for part in parts if part.stopped), ""),
    )
    check_regions(problem, whole)
    return whole
