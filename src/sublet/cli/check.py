"""The command `sublet check`: a plan held against its model, be it Sublet's or another tool's."""

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
    "A plan written by `sublet plan --out`, or another tool's as JSON (docs/foreign.md). Without one, the plan that "
    "MODEL brings with it is judged."
)
MODEL_HELP = (
    "A model (.onnx, .tflite, .pt2, Paddle's .pdmodel or .json, .sublet); or a plan that tells lifetimes "
    "(MiniMalloc's .csv, .json) or instructions (ExecuTorch's .pte); or a PyTorch memory snapshot "
    "(.pickle), which is replayed."
)


@answered
def check(
    model: Annotated[Path, typer.Argument(help=MODEL_HELP, show_default=False)],
    plan_path: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help=PLAN_HELP)] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Refute again what only a search has refuted below the lower bound.")
    ] = False,
    dim: options.Dim = None,
    max_trips: options.MaxTrips = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Of another tool's one memory, where its plan tells none.")
    ] = None,
    lifetimes: Annotated[
        Lifetimes, typer.Option(help="How a CSV tells them; see `sublet pack`.")
    ] = Lifetimes.half_open,
    timeout: Annotated[
        float, typer.Option(help="Pack a snapshot's allocations for this many seconds at most.", metavar="SECONDS")
    ] = 20.0,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Judge a plan: replay it against its model, byte by byte; report every violation.

    Of a plan of Sublet's all that it says is proven too. One of another tool that tells lifetimes needs no model.
    Exit status: 0 right, 1 wrong, 2 bad input, 3 right as far as it could be judged, which is not all of it.
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
        found = judged_file(model, lifetimes, limit)
    else:
        source = source_of(model, bound_dims(dim), max_trips=bound_trips(max_trips))
        if plan_path is None:
            found = judged_inside(source, model, limit)
        else:
            found = judged(source, plan_beside(plan_path).within(limit))
    _tell(found, html, png, in_json=as_json_)


def _own(model: Path, plan_path: Path, search: bool, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """A plan of Sublet's, and all that it says."""
    made = load(plan_path)
    judged = judge(planned_model(model, made).graph, made.schedule, made)
    if search:
        judged = refuted(made, judged)
    if html is not None or png is not None:
        draw(rectangles(made, "not right" if judged.findings else ""), html, png)
    if in_json:
        violations = [str(finding) for finding in judged.findings]
        covered = {"planned": len(planned_values(made)), "not_counted": [value.value for value in made.not_counted]}
        told = {"valid": not violations, "violations": violations, "claims": judged.claims}
        print_json({**told, **covered, "assumed": dict(made.assumed)})
    else:
        show_judgement(made, judged)
    if judged.findings:
        raise typer.Exit(1)


def _tell(found: Judgement, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """The verdict on a plan of another tool, and its picture."""
    picture = foreign_picture(found)
    draw(picture, html, png)
    if in_json:
        print_json(foreign_json(found))
    else:
        show_foreign(found)
        print_map(picture)
    if STATUS[found.outcome]:
        raise typer.Exit(STATUS[found.outcome])
