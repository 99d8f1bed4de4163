"""The output of `sublet pack`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sublet.base.bytesize import human, percent
from sublet.base.escape import printable
from sublet.packing import Packing, PackingReport, RegionPacking


def print_packing(console: Console, report: PackingReport) -> None:
    """Print the arena, the lower bound, and the tried strategies."""
    packing, bound = report.packing, report.bound
    console.print(f"arena        {packing.arena_bytes:,} bytes ({human(packing.arena_bytes)}) by {packing.strategy}")
    console.print(f"lower bound  {bound.bytes:,} bytes ({bound.kind}), gap {percent(report.gap)}")
    for name, nbytes, seconds in report.tried:
        console.print(f"  {name:<32}{nbytes:>16,} bytes {seconds:8.3f} s", style="dim")
    if report.stopped:
        console.print(f"stopped by {report.stopped}: the best so far", style="yellow")


def describe_capacity(report: PackingReport, capacity: int) -> Text:
    """Return a sentence on the capacity. "Cannot fit" is claimed only if the lower bound exceeds the capacity."""
    arena, bound = report.packing.arena_bytes, report.bound.bytes
    if arena <= capacity:
        return Text(f"Fits the capacity of {human(capacity)}: {human(capacity - arena)} to spare.", "green")
    if bound > capacity:
        return Text(f"Cannot fit the capacity of {human(capacity)}: no packing takes less than {human(bound)}.", "red")
    head = f"This packing does not fit the capacity of {human(capacity)}: {human(arena - capacity)} too much"
    return Text(f"{head}. A smaller packing is not excluded: the lower bound is {human(bound)}.", "red")


def packing_json(report: PackingReport, limit: int | None) -> dict[str, Any]:
    """Return a report as a JSON object; sizes and offsets are bytes.

    Without a capacity, `fits` is true. `proven` is true if the packing fits, or if no packing can fit.
    """
    fits = limit is None or report.packing.arena_bytes <= limit
    return {
        "arena_bytes": report.packing.arena_bytes,
        "lower_bound_bytes": report.bound.bytes,
        "bound": report.bound.kind,
        "strategy": report.packing.strategy,
        "seconds": report.seconds,
        "capacity_bytes": limit,
        "fits": fits,
        "proven": fits or report.bound.bytes > (limit or 0),
        "gap": report.gap,
        "steps": report.steps,
        "stopped": report.stopped,
        "tried": [{"strategy": name, "arena_bytes": size, "seconds": took} for name, size, took in report.tried],
        "offsets": list(report.packing.offsets),
    }


def print_regions(console: Console, packing: RegionPacking) -> None:
    """Print one row a region, and the total cost."""
    table = Table(box=None, pad_edge=False)
    table.add_column("region")
    for title in ("arena", "capacity", "used", "buffers", "cost/byte", "cost"):
        table.add_column(title, justify="right")
    for share in packing.shares:
        region = share.region
        used = f"{share.arena_bytes / region.capacity:.1%}" if region.capacity else "-"
        sizes = (human(share.arena_bytes), human(region.capacity), used)
        name = escape(printable(region.name))
        table.add_row(name, *sizes, f"{len(share.members):,}", f"{region.cost:,}", f"{share.cost:,}")
    console.print(table)
    console.print(f"cost         {packing.cost:,}")
    console.print(f"lower bound  {packing.least_cost:,}, gap {percent(packing.gap)}")
    if packing.stopped:
        console.print(f"stopped by {packing.stopped}: the best so far", style="yellow")


def regions_json(packing: RegionPacking) -> dict[str, Any]:
    """Return a packing into regions as a JSON object; `offsets` and `region_of` are in the order of the buffers."""
    return {
        "regions": [
            {
                "name": share.region.name,
                "capacity_bytes": share.region.capacity,
                "cost_per_byte": share.region.cost,
                "arena_bytes": share.arena_bytes,
                "strategy": share.strategy,
                "buffers": len(share.members),
                "cost": share.cost,
            }
            for share in packing.shares
        ],
        "arena_bytes": packing.arena_bytes,
        "cost": packing.cost,
        "lower_bound_cost": packing.least_cost,
        "gap": packing.gap,
        "seconds": packing.seconds,
        "stopped": packing.stopped,
        "offsets": list(packing.offsets),
        "region_of": list(packing.names()),
    }


def stack_regions(packing: RegionPacking) -> Packing:
    """Return one packing for a picture: the regions are stacked in the given order."""
    begins, top = [], 0
    for share in packing.shares:
        begins.append(top)
        top += share.arena_bytes
    placed = zip(packing.offsets, packing.region_of, strict=True)
    return Packing(tuple(begins[region] + offset for offset, region in placed), top, "regions")
