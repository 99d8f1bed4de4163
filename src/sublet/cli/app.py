"""The command line: `sublet plan | export | check | show | run | pack | transpile`.

Exit status: 0 it fits (or the plan is right), 1 it does not, 2 the input is bad, 3 nobody can tell (or not of all).
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from sublet.api.sources import planned_model
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import ProblemError
from sublet.checker import judge
from sublet.cli import options
from sublet.cli.check import check
from sublet.cli.console import BAD_INPUT, answered, answers, packing_progress, print_json, refuse_overwriting, tell
from sublet.cli.export import export
from sublet.cli.packing_report import (
    capacity_words,
    regions_json,
    report_json,
    show_regions,
    show_report,
    stacked,
)
from sublet.cli.plan import plan
from sublet.cli.run import run
from sublet.cli.showing import draw, names_apart, print_map, show_both, show_judgement, show_plan
from sublet.cli.streams import READER_LEFT, discard_answers, open_missing_streams
from sublet.cli.transpile import transpile_
from sublet.foreign.files import packing_problem
from sublet.packing import Lifetimes, pack, place_in_regions
from sublet.packing.csv_format import write_csv
from sublet.plan.file import load
from sublet.viz.compared import compared
from sublet.viz.rectangles import packing_rectangles, rectangles
from sublet.viz.report import as_json

app = typer.Typer(
    name="sublet",
    help="The smallest memory a neural network can run in: planned, proven, shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


PROBLEM_HELP = "MiniMalloc's CSV, a partial order as JSON, or a PyTorch memory snapshot (.pickle)."

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What is raised for a wrong option or argument. Typer exports only its kinds."""


def _print_version(asked: bool) -> None:
    if asked:
        answers().print(f"sublet {version('sublet')}")
        raise typer.Exit


Effort = Annotated[int | None, typer.Option(help="Limit the search to this many steps.", min=1, metavar="STEPS")]


app.command()(plan)
app.command()(export)


app.command()(check)


@app.command()
@answered
def show(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="A plan to draw beside it.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model it is for: check the plan before it is shown.")] = None,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Show a plan from its file; with --model, only if all that it says is true. Two plans are drawn on one axis."""
    refuse_overwriting([path for path in (plan_path, other, model) if path is not None], html, png)
    made = load(plan_path)
    judged = None if model is None else judge(planned_model(model, made).graph, made.schedule, made)
    if judged is not None and judged.findings:
        show_judgement(made, judged)
        raise typer.Exit(1)
    claimed = "not checked against its model" if judged is None else ""
    picture = rectangles(made, claimed)
    if other is not None:
        beside, names = load(other), names_apart(plan_path, other)
        picture = compared(picture, rectangles(beside, "not checked against its model"), names)
    draw(picture, html, png)
    if as_json_:
        more = {} if other is None else {"other": as_json(beside, None, None)}
        print_json({"claims": None if judged is None else judged.claims, **as_json(made, None, None), **more})
    elif other is not None:
        show_both((made, beside), names)
        print_map(picture)
    else:
        show_plan(made, picture, claimed)


app.command()(run)


app.command(name="transpile")(transpile_)


@app.command(name="pack")
@answered
def pack_(
    problem: Annotated[Path, typer.Argument(help=PROBLEM_HELP, show_default=False)],
    strategy: options.Strategy = "auto",
    capacity: Annotated[str | None, typer.Option(metavar="BYTES", help="Exit 1 if the packing takes more.")] = None,
    region: options.RegionTexts = None,
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="Whether a buffer is alive at its lower and upper time; idealloc has all three.")
    ] = Lifetimes.half_open,
    timeout: options.Timeout = None,
    effort: Effort = None,
    seed: Annotated[int, typer.Option(help="Of the search's randomness.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem with its offsets as CSV.")] = None,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Pack the buffers of a problem into one arena, or into memory regions."""
    refuse_overwriting(problem, out, html, png)
    limit = None if capacity is None else parse_bytes(capacity)
    question = packing_problem(problem, lifetimes)
    if region:
        if limit is not None:
            raise ProblemError("--capacity is for one arena: with --region every region has its own")
        with packing_progress() as progress:
            placed = place_in_regions(
                question, options.parse_regions(region), strategy, timeout, progress, effort=effort, seed=seed
            )
        if out is not None:
            write_csv(question, placed.offsets, out, lifetimes=lifetimes, regions=placed.names())
        picture = packing_rectangles(question, stacked(placed))
        draw(picture, html, png)
        if as_json_:
            print_json(regions_json(placed))
        else:
            show_regions(answers(), placed)
            print_map(picture)
        return
    with packing_progress() as progress:
        report = pack(question, strategy, timeout, progress, capacity=limit, effort=effort, seed=seed)
    if out is not None:
        write_csv(question, report.packing, out, lifetimes=lifetimes)
    picture = packing_rectangles(question, report.packing, report.bound.bytes, report.bound.kind)
    draw(picture, html, png)
    if as_json_:
        print_json(report_json(report, limit))
    else:
        if limit is not None:
            answers().print(capacity_words(report, limit))
        show_report(answers(), report)
        print_map(picture)
    if limit is not None and report.packing.arena_bytes > limit:
        raise typer.Exit(1)


@app.callback()
def sublet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """The smallest memory a neural network can run in: planned, proven, shown."""


def main() -> None:
    """Run the command line and end the process with its exit status.

    With `--json` a mistake in the words themselves is an object too. An answer that cannot be written is an error,
    unless its reader left early.
    """
    open_missing_streams()
    answer = sys.stdout
    try:
        status = _status()
        answer.flush()
    except BrokenPipeError:
        discard_answers()
        status = READER_LEFT
    except OSError as error:
        discard_answers()
        tell(error, f"the answer cannot be written: {error}", in_json=False)
        status = BAD_INPUT
    sys.exit(status)


def _status() -> str | int | None:
    """Run the command line and return its exit status. Raises BrokenPipeError if the reader of the answer left."""
    try:
        if "--json" not in sys.argv:
            app()
            return None
        return app(standalone_mode=False)  # type: ignore[no-any-return]
    except USAGE_ERROR as error:
        tell(error, error.format_message(), in_json=True)
        return BAD_INPUT
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer and rich end with status 1 then
            raise end.__context__ from None
        return end.code


if __name__ == "__main__":
    main()
