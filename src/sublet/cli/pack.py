"""The command `sublet pack`: pack the buffers of a problem into an arena, or into several memory regions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sublet.base.errors import ProblemError
from sublet.base.formatting import human, parse_bytes, percent
from sublet.checker.external.files import packing_problem
from sublet.cli import options as shared
from sublet.cli.console import answer_console, packing_progress, print_json, refuse_overwriting
from sublet.cli.options import command_from
from sublet.cli.show import print_memory_map, write_pictures
from sublet.packing import Lifetimes, Packing, PackingReport, Problem, RegionPacking, place_in_regions, write_csv
from sublet.packing import pack as pack_problem
from sublet.viz.summary import NameCell, plain_table
from sublet.viz.view_model import picture_of_packing

# The output of `sublet pack`.


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
    table = plain_table()
    table.add_column("region")
    for title in ("arena", "capacity", "used", "buffers", "cost/byte", "cost"):
        table.add_column(title, justify="right")
    for share in packing.shares:
        region = share.region
        used = f"{share.arena_bytes / region.capacity:.1%}" if region.capacity else "-"
        sizes = (human(share.arena_bytes), human(region.capacity), used)
        table.add_row(NameCell(region.name), *sizes, f"{len(share.members):,}", f"{region.cost:,}", f"{share.cost:,}")
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


@dataclass(frozen=True)
class PackOptions:
    """The argument and the options of `sublet pack`."""

    problem: Annotated[
        Path,
        typer.Argument(
            help="MiniMalloc's CSV, a partial order as JSON, or a PyTorch memory snapshot (.pickle).",
            show_default=False,
        ),
    ]
    strategy: shared.Strategy = "auto"
    capacity: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Exit 1 if the packing takes more bytes."),
    ] = None
    region: shared.RegionTexts = None
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="Lower and upper time belong to a lifetime: in(clusive) or ex(clusive).")
    ] = Lifetimes.half_open
    timeout: shared.Timeout = None
    effort: Annotated[
        int | None,
        typer.Option(help="Limit the search to this many steps.", min=1, metavar="STEPS"),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the search.", min=0)] = 0
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem with its offsets as CSV.")] = None
    html: shared.Html = None
    png: shared.Png = None
    in_json: shared.Json = False


@command_from(PackOptions)
def pack(options: PackOptions) -> None:
    """Pack the buffers of a problem into an arena, or into several memory regions."""
    refuse_overwriting(options.problem, options.out, options.html, options.png)
    capacity = None if options.capacity is None else parse_bytes(options.capacity)
    problem = packing_problem(options.problem, options.lifetimes)
    if not options.region:
        _pack_into_arena(options, problem, capacity)
    elif capacity is None:
        _pack_into_regions(options, problem, options.region)
    else:
        raise ProblemError("--capacity is for a single arena: with --region each region states its capacity")


def _pack_into_arena(options: PackOptions, problem: Problem, capacity: int | None) -> None:
    """Pack the buffers into one arena and print the report. Exits with status 1 for an arena over the capacity."""
    timeout, effort, seed = options.timeout, options.effort, options.seed
    with packing_progress() as progress:
        report = pack_problem(problem, options.strategy, timeout, progress, capacity=capacity, effort=effort, seed=seed)
    if options.out is not None:
        write_csv(problem, report.packing, options.out, lifetimes=options.lifetimes)
    picture = picture_of_packing(problem, report.packing, report.bound.bytes, report.bound.kind)
    write_pictures(picture, options.html, options.png)
    if options.in_json:
        print_json(packing_json(report, capacity))
    else:
        if capacity is not None:
            answer_console().print(describe_capacity(report, capacity))
        print_packing(answer_console(), report)
        print_memory_map(picture)
    if capacity is not None and report.packing.arena_bytes > capacity:
        raise typer.Exit(1)


def _pack_into_regions(options: PackOptions, problem: Problem, region_texts: list[str]) -> None:
    """Pack the buffers into memory regions and print the report."""
    regions = shared.parse_regions(region_texts)
    with packing_progress() as progress:
        placed = place_in_regions(
            problem, regions, options.strategy, options.timeout, progress, effort=options.effort, seed=options.seed
        )
    if options.out is not None:
        write_csv(problem, placed.offsets, options.out, lifetimes=options.lifetimes, regions=placed.names())
    picture = picture_of_packing(problem, stack_regions(placed))
    write_pictures(picture, options.html, options.png)
    if options.in_json:
        print_json(regions_json(placed))
    else:
        print_regions(answer_console(), placed)
        print_memory_map(picture)
