"""The command `sublet show`: draw a saved plan, or two plans on one time axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from sublet.api.plans import check_plan
from sublet.cli import options as shared
from sublet.cli.console import print_json, refuse_overwriting
from sublet.cli.options import command_from
from sublet.cli.plan_output import (
    distinct_names,
    print_check_result,
    print_memory_map,
    print_plan,
    print_two_plans,
    write_pictures,
)
from sublet.plan.file import load
from sublet.viz.comparison import compare_pictures
from sublet.viz.report import plan_json
from sublet.viz.view_model import picture_of_plan

UNCHECKED = "not checked against its model"


@dataclass(frozen=True)
class ShowOptions:
    """The arguments and the options of `sublet show`."""

    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")]
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second plan to draw on the same time axis.")
    ] = None
    model: Annotated[
        Path | None, typer.Option(help="The model of the plan: check the plan against the model first.")
    ] = None
    html: shared.Html = None
    png: shared.Png = None
    in_json: shared.Json = False


@command_from(ShowOptions)
def show(options: ShowOptions) -> None:
    """Show a saved plan. Two plans are drawn side by side on one time axis.

    With --model, the checker first proves all claims of the plan; a wrong plan is not shown (exit status 1).
    """
    sources = [path for path in (options.plan_path, options.other, options.model) if path is not None]
    refuse_overwriting(sources, options.html, options.png)
    first_plan = load(options.plan_path)
    result = None if options.model is None else check_plan(options.model, first_plan)
    if result is not None and result.findings:
        print_check_result(first_plan, result)
        raise typer.Exit(1)
    claimed = UNCHECKED if result is None else ""
    picture = replace(picture_of_plan(first_plan, claimed), title=options.plan_path.name)
    if options.other is not None:
        second_plan, names = load(options.other), distinct_names(options.plan_path, options.other)
        picture = compare_pictures(picture, picture_of_plan(second_plan, UNCHECKED), names)
    write_pictures(picture, options.html, options.png)
    if options.in_json:
        content = {"claims": None if result is None else result.claim_status, **plan_json(first_plan, None, None)}
        print_json(content if options.other is None else {**content, "other": plan_json(second_plan, None, None)})
    elif options.other is not None:
        print_two_plans((first_plan, second_plan), names)
        print_memory_map(picture)
    else:
        print_plan(first_plan, picture, claimed)
