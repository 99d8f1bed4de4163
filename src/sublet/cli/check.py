"""The command `sublet check`: check a plan by Sublet or by another tool against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.api.sources import planned_model, source_of
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import PlanError
from sublet.checker import judge
from sublet.cli import options
from sublet.cli.console import answered, print_json, refuse_overwriting
from sublet.cli.foreign_report import STATUS, foreign_json, foreign_picture, show_foreign
from sublet.cli.options import bound_dims, bound_trips
from sublet.cli.showing import draw, print_map, show_judgement
from sublet.cli.snapshot_report import replay_snapshot
from sublet.foreign import Judgement, judged
from sublet.foreign.files import is_foreign_json, is_snapshot, judged_file, judged_inside, plan_beside, tells_lifetimes
from sublet.packing import Lifetimes
from sublet.plan.coverage import planned_values
from sublet.plan.file import load
from sublet.planning.refutation import refuted
from sublet.viz.rectangles import rectangles

PLAN_HELP = (
    "A plan written by `sublet plan --out`, or another tool's plan as JSON (docs/foreign.md). By default, the plan "
    "contained in MODEL."
)
MODEL_HELP = (
    "A model (.onnx, .tflite, .pt2, Paddle's .pdmodel or .json, .sublet); or a plan with lifetimes "
    "(MiniMalloc's .csv, .json) or instructions (ExecuTorch's .pte); or a PyTorch memory snapshot "
    "(.pickle), which is replayed."
)


@answered
def check(
    model: Annotated[Path, typer.Argument(help=MODEL_HELP, show_default=False)],
    plan_path: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help=PLAN_HELP)] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Repeat the search that proved the lower bound, if a search did.")
    ] = False,
    dim: options.Dim = None,
    max_trips: options.MaxTrips = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Capacity of another tool's only memory, if its plan has none.")
    ] = None,
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="Ends of lifetimes in a CSV; see `sublet pack`.")
    ] = Lifetimes.half_open,
    timeout: Annotated[
        float, typer.Option(help="Maximum time to pack the allocations of a snapshot.", metavar="SECONDS")
    ] = 20.0,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Check a plan against its model: replay the plan byte by byte and report every violation.

    For a plan by Sublet, all claims of the plan are proven too. A plan by another tool that declares lifetimes needs no
    model. Exit status: 0 right, 1 wrong, 2 bad input, 3 right as far as judged, but some tensors could not be judged.
    """
    refuse_overwriting([path for path in (model, plan_path) if path is not None], html, png)
    if plan_path is not None and not is_foreign_json(plan_path):
        if dim or max_trips or capacity:
            raise PlanError("--dim, --max-trips and --capacity are for plans of other tools: a plan of Sublet's says")
        _own(model, plan_path, search, html, png, in_json=as_json_)
        return
    if search:
        raise PlanError("--search is for plans of Sublet's: another tool's claims no lower bound")
    if plan_path is None and is_snapshot(model):
        replay_snapshot(model, timeout, html, png, in_json=as_json_)
        return
    limit = None if capacity is None else parse_bytes(capacity)
    if plan_path is None and tells_lifetimes(model):
        judgement = judged_file(model, lifetimes, limit)
    else:
        source = source_of(model, bound_dims(dim), max_trips=bound_trips(max_trips))
        if plan_path is None:
            judgement = judged_inside(source, model, limit)
        else:
            judgement = judged(source, plan_beside(plan_path).within(limit))
    _tell(judgement, html, png, in_json=as_json_)


def _own(model: Path, plan_path: Path, search: bool, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """Check a plan by Sublet with all its claims, and print the result. Exits with status 1 for a wrong plan."""
    plan = load(plan_path)
    result = judge(planned_model(model, plan).graph, plan.schedule, plan)
    if search:
        result = refuted(plan, result)
    if html is not None or png is not None:
        draw(rectangles(plan, "not right" if result.findings else ""), html, png)
    if in_json:
        violations = [str(finding) for finding in result.findings]
        covered = {"planned": len(planned_values(plan)), "not_counted": [value.value for value in plan.not_counted]}
        summary = {"valid": not violations, "violations": violations, "claims": result.claims}
        print_json({**summary, **covered, "assumed": dict(plan.assumed)})
    else:
        show_judgement(plan, result)
    if result.findings:
        raise typer.Exit(1)


def _tell(found: Judgement, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """Print the verdict on a plan by another tool, write the pictures, and exit with the status of the verdict."""
    picture = foreign_picture(found)
    draw(picture, html, png)
    if in_json:
        print_json(foreign_json(found))
    else:
        show_foreign(found)
        print_map(picture)
    if STATUS[found.outcome]:
        raise typer.Exit(STATUS[found.outcome])
