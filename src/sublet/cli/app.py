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

from sublet.api.sources import model_of_plan
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import ProblemError
from sublet.checker import judge
from sublet.cli import options
from sublet.cli.check import check
from sublet.cli.console import (
    BAD_INPUT,
    answer_console,
    packing_progress,
    print_error,
    print_json,
    refuse_overwriting,
    reports_errors,
)
from sublet.cli.export import export
from sublet.cli.packing_report import (
    describe_capacity,
    packing_json,
    print_packing,
    print_regions,
    regions_json,
    stack_regions,
)
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
from sublet.cli.streams import READER_LEFT, discard_answers, open_missing_streams
from sublet.cli.transpile import transpile_
from sublet.foreign.files import packing_problem
from sublet.packing import Lifetimes, pack, place_in_regions
from sublet.packing.csv_format import write_csv
from sublet.plan.file import load
from sublet.viz.comparison import compare_pictures
from sublet.viz.report import plan_json
from sublet.viz.view_model import picture_of_packing, picture_of_plan

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


app.command(name="transpile")(transpile_)


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
