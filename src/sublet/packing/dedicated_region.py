"""Placement of buffers into a dedicated region: buffers used by transfers only, or saved across a suspension point."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sublet.base.errors import CapacityError
from sublet.packing.canonical_order import select_buffers
from sublet.packing.portfolio import AUTO
from sublet.packing.problem import Problem
from sublet.packing.region_cost import MemoryRegion, slow_region
from sublet.packing.regions import Progress, RegionPacking, RegionShare, check_regions, place_in_regions


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
