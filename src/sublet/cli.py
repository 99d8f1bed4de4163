"""The command line: `sublet plan | check | show | run | pack`.

Exit status: 0 it fits (or the plan is right), 1 it does not, 2 the input is bad, 3 nobody can tell whether it fits.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.markup import escape

from sublet.budget import verdict
from sublet.bytesize import human, parse_bytes
from sublet.checker import check as replay
from sublet.cli_run import run
from sublet.console import (
    BAD_INPUT,
    Dim,
    Json,
    MaxTrips,
    Model,
    answered,
    answers,
    bound_dims,
    bound_trips,
    packing_progress,
    picture_width,
    print_json,
    refuse_overwriting,
    tell,
)
from sublet.errors import PlanError, ProblemError
from sublet.frontends.model import read_model
from sublet.packing import STRATEGIES, Lifetimes, pack, place_in_regions
from sublet.packing.csv_format import write_csv
from sublet.packing.files import read_problem
from sublet.packing_report import parse_regions, regions_json, report_json, show_regions, show_report, stacked
from sublet.plan import MemoryPlan
from sublet.plan_file import fingerprint, load, save
from sublet.planning import Options, plan_memory
from sublet.printable import printable
from sublet.report import as_json
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.rectangles import Picture, packing_rectangles, rectangles
from sublet.viz.summary import summary, verdict_line
from sublet.viz.terminal import memory_map

app = typer.Typer(
    name="sublet",
    help="The smallest memory a neural network can run in: planned, proven, shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What is raised for a wrong option or argument. Typer exports only its kinds."""


def _print_version(asked: bool) -> None:
    if asked:
        answers().print(f"sublet {version('sublet')}")
        raise typer.Exit


class Where(StrEnum):
    arena = "arena"
    bound = "bound"


Strategy = Annotated[str, typer.Option(help=f"auto, or one of {', '.join(STRATEGIES)}.", metavar="S")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG or SVG (extra: png).")]
RegionTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        metavar="NAME=BYTES[@COST]",
        help="A memory, such as sram=512KiB@1, with what accessing a byte costs (if left out: 1, 10, ...); repeat.",
    ),
]
Timeout = Annotated[float | None, typer.Option(help="Stop searching after this many seconds.", metavar="SECONDS")]
Effort = Annotated[int | None, typer.Option(help="Limit the search to this many steps.", min=1, metavar="STEPS")]


@app.command()
@answered
def plan(
    model: Model,
    dim: Dim = None,
    max_trips: MaxTrips = None,
    strategy: Strategy = "auto",
    align: Annotated[int, typer.Option(help="Every tensor's offset is a multiple of this many bytes.")] = 64,
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Exit 1 if more is needed: 256KiB, 1.5MB.")
    ] = None,
    io: Annotated[Where, typer.Option(help="Where inputs and outputs lie.")] = Where.arena,
    weights: Annotated[Where, typer.Option(help="Where weights lie.")] = Where.bound,
    streams: Annotated[int, typer.Option(help="How many streams may run at the same time.")] = 1,
    region: RegionTexts = None,
    timeout: Timeout = None,
    forbid_copies: Annotated[
        bool, typer.Option("--forbid-copies", help="Exit 2 if loops, branches or updates move bytes; say which.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None,
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Plan the memory of a model, prove the plan, and show it."""
    refuse_overwriting(model, out, html, png)
    limit = None if budget is None else parse_bytes(budget)
    started = perf_counter()
    imported = read_model(model, bound_dims(dim), max_trips=bound_trips(max_trips))
    regions = parse_regions(region or ())
    options = Options(
        strategy, align, io.value, weights.value, streams, timeout, regions=regions, forbid_copies=forbid_copies
    )
    with packing_progress() as progress:
        made = plan_memory(imported.graph, options, dims=imported.dims, max_trips=imported.max_trips, progress=progress)
    seconds = perf_counter() - started
    if out is not None:
        save(made, out)
    picture = rectangles(made)
    _draw(picture, html, png)
    decision = None if limit is None else verdict(made, limit)
    if as_json_:
        print_json(as_json(made, seconds, decision))
    else:
        _show(made, picture)
        if decision is not None:
            answers().print(verdict_line(decision, made))
    if decision is not None and not decision.fits:
        raise typer.Exit(1)


@app.command()
@answered
def check(
    model: Model,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    as_json_: Json = False,
) -> None:
    """Replay a plan against its model, byte by byte, and report every violation."""
    made = load(plan_path)
    imported = read_model(model, dict(made.dims), max_trips=dict(made.max_trips))
    if fingerprint(imported.graph, made.schedule) != made.fingerprint:
        raise PlanError(f"{plan_path} is not a plan of {model}: the fingerprints differ. Plan the model again.")
    found = replay(imported.graph, made.schedule, made)
    if as_json_:
        print_json({"valid": not found, "violations": [str(finding) for finding in found]})
    elif found:
        for finding in found:
            answers().print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    else:
        answers().print(f"[green]valid[/green]: {len(made.placements)} tensors in {human(made.arena_bytes)}")
    if found:
        raise typer.Exit(1)


@app.command()
@answered
def show(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Show a plan from its file."""
    refuse_overwriting(plan_path, html, png)
    made = load(plan_path)
    picture = rectangles(made)
    _draw(picture, html, png)
    if as_json_:
        print_json(as_json(made, None, None))
    else:
        _show(made, picture)


app.command()(run)


@app.command(name="pack")
@answered
def pack_(
    problem: Annotated[Path, typer.Argument(help="MiniMalloc's CSV, or a partial order as JSON.", show_default=False)],
    strategy: Strategy = "auto",
    capacity: Annotated[str | None, typer.Option(metavar="BYTES", help="Exit 1 if more is needed.")] = None,
    region: RegionTexts = None,
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="Whether a buffer is alive at its lower and upper time; idealloc has all three.")
    ] = Lifetimes.half_open,
    timeout: Timeout = None,
    effort: Effort = None,
    seed: Annotated[int, typer.Option(help="Of the search's randomness.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem with its offsets as CSV.")] = None,
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Pack the buffers of a problem into one arena, or into memory regions."""
    refuse_overwriting(problem, out, html, png)
    limit = None if capacity is None else parse_bytes(capacity)
    question = read_problem(problem, lifetimes)
    if region:
        if limit is not None:
            raise ProblemError("--capacity is for one arena: with --region every region has its own")
        with packing_progress() as progress:
            placed = place_in_regions(
                question, parse_regions(region), strategy, timeout, progress, effort=effort, seed=seed
            )
        if out is not None:
            write_csv(question, placed.offsets, out, lifetimes=lifetimes, regions=placed.names())
        picture = packing_rectangles(question, stacked(placed))
        _draw(picture, html, png)
        if as_json_:
            print_json(regions_json(placed))
        else:
            show_regions(answers(), placed)
            _print_map(picture)
        return
    with packing_progress() as progress:
        report = pack(question, strategy, timeout, progress, capacity=limit, effort=effort, seed=seed)
    if out is not None:
        write_csv(question, report.packing, out, lifetimes=lifetimes)
    picture = packing_rectangles(question, report.packing, report.bound.bytes, report.bound.kind)
    _draw(picture, html, png)
    fits = limit is None or report.packing.arena_bytes <= limit
    if as_json_:
        print_json(report_json(report, limit, fits))
    else:
        show_report(answers(), report)
        _print_map(picture)
        if not fits:
            answers().print(f"[red]Does not fit the capacity of {human(limit or 0)}.[/red]")
    if not fits:
        raise typer.Exit(1)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """The smallest memory a neural network can run in: planned, proven, shown."""


def main() -> None:
    """Run the command line; with `--json` a mistake in the words themselves is an object too."""
    if "--json" not in sys.argv:
        app()
        return
    try:
        sys.exit(app(standalone_mode=False))
    except USAGE_ERROR as error:
        tell(error, error.format_message(), in_json=True)
        sys.exit(BAD_INPUT)


def _draw(picture: Picture, html: Path | None, png: Path | None) -> None:
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def _show(made: MemoryPlan, picture: Picture) -> None:
    answers().print(summary(made))
    _print_map(picture)


def _print_map(picture: Picture) -> None:
    console = answers()
    if picture.arena_bytes:
        console.print()
        console.print(memory_map(picture, width=picture_width(), height=16))


if __name__ == "__main__":
    main()
