"""The command `sublet check`: check a plan by Sublet or by another tool against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.api.sources import model_of_plan, read_source
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import PlanError
from sublet.checker import judge
from sublet.cli import options
from sublet.cli.console import print_json, refuse_overwriting, reports_errors
from sublet.cli.foreign_report import EXIT_STATUS, judgement_json, judgement_picture, print_judgement
from sublet.cli.options import parse_dims, parse_max_trips
from sublet.cli.plan_output import print_check_result, print_memory_map, write_pictures
from sublet.cli.snapshot_report import replay_snapshot
from sublet.foreign import ForeignVerdict, judge_by_replay
from sublet.foreign.files import (
    is_foreign_json,
    is_judged_without_model,
    is_snapshot,
    judge_embedded_plan,
    judge_plan_file,
    read_plan_file,
)
from sublet.packing import Lifetimes
from sublet.plan.coverage import planned_values
from sublet.plan.file import load
from sublet.planning.reprove_bound import reprove_bound
from sublet.viz.view_model import picture_of_plan

PLAN_HELP = (
    "A plan written by `sublet plan --out`, or another tool's plan as JSON (docs/foreign.md). By default, the plan "
    "contained in MODEL."
)
MODEL_HELP = (
    "A model (.onnx, .tflite, .pt2, Paddle's .pdmodel or .json, .sublet); or a plan with lifetimes "
    "(MiniMalloc's .csv, .json) or instructions (ExecuTorch's .pte); or a PyTorch memory snapshot "
    "(.pickle), which is replayed."
)


@reports_errors
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
            raise PlanError(
                "--dim, --max-trips and --capacity are for plans of other tools: a plan by Sublet contains these"
            )
        _check_sublet_plan(model, plan_path, search, html, png, in_json=as_json_)
        return
    if search:
        raise PlanError("--search is for plans of Sublet's: another tool's claims no lower bound")
    if plan_path is None and is_snapshot(model):
        replay_snapshot(model, timeout, html, png, in_json=as_json_)
        return
    limit = None if capacity is None else parse_bytes(capacity)
    if plan_path is None and is_judged_without_model(model):
        judgement = judge_plan_file(model, lifetimes, limit)
    else:
        source = read_source(model, parse_dims(dim), max_trips=parse_max_trips(max_trips))
        if plan_path is None:
            judgement = judge_embedded_plan(source, model, limit)
        else:
            judgement = judge_by_replay(source, read_plan_file(plan_path).with_capacity(limit))
    _print_judgement(judgement, html, png, in_json=as_json_)


def _check_sublet_plan(
    model: Path, plan_path: Path, search: bool, html: Path | None, png: Path | None, *, in_json: bool
) -> None:
    """Check a plan by Sublet with all its claims, and print the result. Exits with status 1 for a wrong plan."""
    plan = load(plan_path)
    result = judge(model_of_plan(model, plan).graph, plan.schedule, plan)
    if search:
        result = reprove_bound(plan, result)
    if html is not None or png is not None:
        write_pictures(picture_of_plan(plan, "not right" if result.findings else ""), html, png)
    if in_json:
        violations = [str(finding) for finding in result.findings]
        covered = {"planned": len(planned_values(plan)), "not_counted": [value.value for value in plan.not_counted]}
        summary = {"valid": not violations, "violations": violations, "claims": result.claim_status}
        print_json({**summary, **covered, "assumed": dict(plan.assumed_types)})
    else:
        print_check_result(plan, result)
    if result.findings:
        raise typer.Exit(1)


def _print_judgement(verdict: ForeignVerdict, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """Print the verdict on a plan by another tool, write the pictures, and exit with the status of the verdict."""
    picture = judgement_picture(verdict)
    write_pictures(picture, html, png)
    if in_json:
        print_json(judgement_json(verdict))
    else:
        print_judgement(verdict)
        print_memory_map(picture)
    if EXIT_STATUS[verdict.outcome]:
        raise typer.Exit(EXIT_STATUS[verdict.outcome])
