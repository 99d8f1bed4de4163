"""The command line: `sublet plan | export | check | show | run | pack | transpile`.

Exit status: 0 the network fits, or the plan is right; 1 the network does not fit, or the plan is wrong; 2 the input is
bad; 3 the verdict is unknown, or covers a part of the plan only.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sublet.api.sources import model_of_plan
from sublet.base.errors import ProblemError
from sublet.base.formatting import human, parse_bytes, percent, printable
from sublet.checker import judge
from sublet.checker.external.files import packing_problem
from sublet.cli import options
from sublet.cli.check import check
from sublet.cli.console import (
    BAD_INPUT,
    READER_LEFT,
    answer_console,
    discard_answers,
    open_missing_streams,
    packing_progress,
    print_error,
    print_json,
    refuse_overwriting,
    reports_errors,
)
from sublet.cli.export import export
from sublet.cli.plan import plan
from sublet.cli.plan_output import (
    distinct_names,
    print_check_result,
    print_memory_map,
    print_plan,
    print_two_plans,
    write_pictures,
)
from sublet.cli.run import run
from sublet.integrations.registry import integrations, resolve
from sublet.packing import Lifetimes, Packing, PackingReport, RegionPacking, pack, place_in_regions
from sublet.packing.csv_format import write_csv
from sublet.plan.file import load
from sublet.viz.comparison import compare_pictures
from sublet.viz.report import plan_json
from sublet.viz.view_model import picture_of_packing, picture_of_plan

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


app = typer.Typer(
    name="sublet",
    help="The smallest memory a neural network can run in: planned, proven, shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


PROBLEM_HELP = "MiniMalloc's CSV, a partial order as JSON, or a PyTorch memory snapshot (.pickle)."

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""The base class of errors for wrong options and arguments; Typer exports only the subclasses."""


def _print_version(asked: bool) -> None:
    if asked:
        answer_console().print(f"sublet {version('sublet')}")
        raise typer.Exit


Effort = Annotated[int | None, typer.Option(help="Limit the search to this many steps.", min=1, metavar="STEPS")]


app.command()(plan)
app.command()(export)


app.command()(check)


@app.command()
@reports_errors
def show(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second plan to draw on the same time axis.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model of the plan: check the plan against the model first.")
    ] = None,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Show a saved plan. Two plans are drawn side by side on one time axis.

    With --model, the checker first proves all claims of the plan; a wrong plan is not shown (exit status 1).
    """
    refuse_overwriting([path for path in (plan_path, other, model) if path is not None], html, png)
    first_plan = load(plan_path)
    judged = None if model is None else judge(model_of_plan(model, first_plan).graph, first_plan.schedule, first_plan)
    if judged is not None and judged.findings:
        print_check_result(first_plan, judged)
        raise typer.Exit(1)
    claimed = "not checked against its model" if judged is None else ""
    picture = picture_of_plan(first_plan, claimed)
    if other is not None:
        second_plan, names = load(other), distinct_names(plan_path, other)
        picture = compare_pictures(picture, picture_of_plan(second_plan, "not checked against its model"), names)
    write_pictures(picture, html, png)
    if as_json_:
        more = {} if other is None else {"other": plan_json(second_plan, None, None)}
        print_json(
            {"claims": None if judged is None else judged.claim_status, **plan_json(first_plan, None, None), **more}
        )
    elif other is not None:
        print_two_plans((first_plan, second_plan), names)
        print_memory_map(picture)
    else:
        print_plan(first_plan, picture, claimed)


app.command()(run)


for _words, _function in ((words, function) for each in integrations() for words, function in each.commands.items()):
    if _words.isidentifier():  # a command of its own, not an option of another
        app.command(name=_words)(resolve(_function))


@app.command(name="pack")
@reports_errors
def pack_(
    problem: Annotated[Path, typer.Argument(help=PROBLEM_HELP, show_default=False)],
    strategy: options.Strategy = "auto",
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Exit 1 if the packing takes more bytes.")
    ] = None,
    region: options.RegionTexts = None,
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="Lower and upper time belong to a lifetime: in(clusive) or ex(clusive).")
    ] = Lifetimes.half_open,
    timeout: options.Timeout = None,
    effort: Effort = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem with its offsets as CSV.")] = None,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Pack the buffers of a problem into an arena, or into several memory regions."""
    refuse_overwriting(problem, out, html, png)
    capacity_bytes = None if capacity is None else parse_bytes(capacity)
    parsed = packing_problem(problem, lifetimes)
    if region:
        if capacity_bytes is not None:
            raise ProblemError("--capacity is for a single arena: with --region each region states its capacity")
        with packing_progress() as progress:
            placed = place_in_regions(
                parsed, options.parse_regions(region), strategy, timeout, progress, effort=effort, seed=seed
            )
        if out is not None:
            write_csv(parsed, placed.offsets, out, lifetimes=lifetimes, regions=placed.names())
        picture = picture_of_packing(parsed, stack_regions(placed))
        write_pictures(picture, html, png)
        if as_json_:
            print_json(regions_json(placed))
        else:
            print_regions(answer_console(), placed)
            print_memory_map(picture)
        return
    with packing_progress() as progress:
        report = pack(parsed, strategy, timeout, progress, capacity=capacity_bytes, effort=effort, seed=seed)
    if out is not None:
        write_csv(parsed, report.packing, out, lifetimes=lifetimes)
    picture = picture_of_packing(parsed, report.packing, report.bound.bytes, report.bound.kind)
    write_pictures(picture, html, png)
    if as_json_:
        print_json(packing_json(report, capacity_bytes))
    else:
        if capacity_bytes is not None:
            answer_console().print(describe_capacity(report, capacity_bytes))
        print_packing(answer_console(), report)
        print_memory_map(picture)
    if capacity_bytes is not None and report.packing.arena_bytes > capacity_bytes:
        raise typer.Exit(1)


@app.callback()
def sublet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Plan, prove and show the smallest memory a neural network can run in."""


def main() -> None:
    """Run the command line and end the process with its exit status.

    With `--json`, a usage error is printed as a JSON object too. An output that cannot be written is an error, unless
    the reader of the output closed the pipe early (exit status 141).
    """
    open_missing_streams()
    answer = sys.stdout
    try:
        status = _run_app()
        answer.flush()
    except BrokenPipeError:
        discard_answers()
        status = READER_LEFT
    except OSError as error:
        discard_answers()
        print_error(error, f"the answer cannot be written: {error}", in_json=False)
        status = BAD_INPUT
    sys.exit(status)


def _run_app() -> str | int | None:
    """Run the command line and return the exit status.

    Raises BrokenPipeError if the reader of the output closed the pipe.
    """
    try:
        if "--json" not in sys.argv:
            app()
            return None
        return app(standalone_mode=False)  # type: ignore[no-any-return]
    except USAGE_ERROR as error:
        print_error(error, error.format_message(), in_json=True)
        return BAD_INPUT
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer and rich would end with status 1
            raise end.__context__ from None
        return end.code


if __name__ == "__main__":
    main()
