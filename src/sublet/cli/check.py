"""The command `sublet check`: check a plan by Sublet or by another tool against the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from sublet.api.plans import check_plan
from sublet.api.sources import read_source
from sublet.base.errors import PlanError
from sublet.base.formatting import abbreviated_list, count_with_noun, human, parse_bytes, percent, printable
from sublet.checker.external import Evidence, ForeignOutcome, ForeignVerdict, judge_by_replay
from sublet.checker.external.files import (
    embedded_options,
    is_foreign_json,
    is_judged_without_model,
    is_snapshot,
    judge_embedded_plan,
    judge_plan_file,
    read_plan_file,
)
from sublet.cli import options as shared
from sublet.cli.console import BAD_INPUT, DOES_NOT_FIT, FITS, UNKNOWN, answer_console, print_json, refuse_overwriting
from sublet.cli.options import command_from, parse_constants, parse_dims, parse_max_trips
from sublet.cli.show import print_check_result, print_memory_map, write_pictures
from sublet.integrations.registry import command
from sublet.packing import Buffer, Lifetimes, Packing, Problem
from sublet.plan import fragmentation
from sublet.plan.file import load
from sublet.plan.statistics import assumptions, planned_values
from sublet.viz.view_model import DrawnArena, Picture, picture_of_packing, picture_of_plan

# The report of `sublet check` on a plan by another tool; the report claims no more than was judged.

EXIT_STATUS = {ForeignOutcome.RIGHT: FITS, ForeignOutcome.WRONG: DOES_NOT_FIT, ForeignOutcome.PARTLY: UNKNOWN}
assert BAD_INPUT not in EXIT_STATUS.values()
CONDITIONS = {
    Evidence.REPLAY: "in the order of the model",
    Evidence.LIFETIMES: "if these are the lifetimes of the program",
    Evidence.INSTRUCTIONS: "if its operators return what their last arguments name",
}
PICTURE_CLAIMS = {
    Evidence.REPLAY: "",
    Evidence.LIFETIMES: "{}, right by the lifetimes it declares",
    Evidence.INSTRUCTIONS: "{}, right by the instructions of the program",
}
MAX_LISTED = 20
"""Maximum of listed violations and reasons; JSON lists all."""


def print_judgement(verdict: ForeignVerdict) -> None:
    """Print the violations, the verdict, the tensors not judged with reasons, and the distance to the lower bound."""
    console = answer_console()
    for finding in verdict.findings[:MAX_LISTED]:
        console.print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    if len(verdict.findings) > MAX_LISTED:
        console.print(f"and {len(verdict.findings) - MAX_LISTED} more (--json lists all)")
    assumed = assumptions(verdict.plan) if verdict.plan is not None else ""
    console.print(
        Text(
            f"{_verdict_line(verdict)}{f'; assumed: {assumed}' if assumed else ''}",
            {ForeignOutcome.RIGHT: "green", ForeignOutcome.WRONG: "red"}.get(verdict.outcome, "yellow"),
        )
    )
    reasons: dict[str, list[str]] = {}
    for name, why in verdict.not_judged.items():
        reasons.setdefault(why, []).append(name)
    for why, names in list(reasons.items())[:MAX_LISTED]:
        console.print(Text(printable(f"not judged: {abbreviated_list(names, 3)}: {why}"), "yellow"))
    if not verdict.findings:
        for region in verdict.regions:
            console.print(Text(printable(f"{region.name}: {_describe_bound(region.nbytes, region.lower_bound_bytes)}")))


def _verdict_line(verdict: ForeignVerdict) -> str:
    """Return the verdict in one line: number of tensors, tool, and method of the judgement."""
    tensors = f"{count_with_noun(len(verdict.judged), 'tensor')} of {printable(verdict.tool)}"
    against = f"judged by {verdict.evidence}"
    if verdict.findings:
        count = len(verdict.findings)
        return f"wrong: {count} violation{'s' if count > 1 else ''} in {tensors}, {against}"
    if not verdict.judged and verdict.not_judged:
        count = len(verdict.not_judged)
        return f"nothing judged: the file has no offset for any of {count} tensors of {printable(verdict.tool)}"
    if verdict.outcome is ForeignOutcome.PARTLY:
        return f"partly judged: right in {tensors}, {against}; {len(verdict.not_judged)} more are not judged"
    return f"right: {tensors}, {against}, {CONDITIONS[verdict.evidence]}"


def _describe_bound(nbytes: int, least: int) -> str:
    """Return the size of a region and the gap to the lower bound, as text."""
    size = f"{nbytes:,} bytes ({human(nbytes)})"
    if nbytes == least:
        return f"{size}; no plan of these tensors that shares the same bytes takes less"
    gap = percent(fragmentation(nbytes, least))
    return f"{size}; a plan of these tensors that shares the same bytes takes at least {least:,} bytes, gap {gap}"


def judgement_json(verdict: ForeignVerdict) -> dict[str, Any]:
    """Return a judgement as a JSON object; sizes are bytes."""
    return {
        "outcome": str(verdict.outcome),
        "right": verdict.outcome is ForeignOutcome.RIGHT,
        "exit_status": EXIT_STATUS[verdict.outcome],
        "tool": verdict.tool,
        "judged_by": str(verdict.evidence),
        "violations": [
            {"rule": finding.rule, "where": finding.where, "what": finding.what, "fix": finding.fix}
            for finding in verdict.findings
        ],
        "judged": list(verdict.judged),
        "not_judged": dict(verdict.not_judged),
        "assumed": {} if verdict.plan is None else dict(verdict.plan.recipe.conditions),
        "regions": [
            {
                "name": region.name,
                "bytes": region.nbytes,
                "lower_bound_bytes": None if verdict.findings else region.lower_bound_bytes,
            }
            for region in verdict.regions
        ],
    }


def judgement_picture(verdict: ForeignVerdict) -> Picture:
    """Return the memory map; the heading states the scope of the proof."""
    claimed = {
        ForeignOutcome.RIGHT: PICTURE_CLAIMS[verdict.evidence].format(verdict.tool),
        ForeignOutcome.WRONG: f"the plan of {verdict.tool} is wrong: {len(verdict.findings)} violations",
        ForeignOutcome.PARTLY: f"{verdict.tool}: {len(verdict.not_judged)} tensors are not judged",
    }[verdict.outcome]
    if verdict.plan is not None:
        picture = picture_of_plan(verdict.plan, claimed)
    else:
        problem, packing = _stack_regions(verdict)
        picture = replace(picture_of_packing(problem, packing, verdict.lower_bound_bytes), claimed=claimed)
        if len(verdict.regions) == len(verdict.drawn) > 1:
            picture = replace(picture, arenas=_stack_arenas(verdict))
    return picture.without_bound() if verdict.outcome is ForeignOutcome.WRONG else picture


def _stack_arenas(verdict: ForeignVerdict) -> tuple[DrawnArena, ...]:
    """Return the arena of each region, at the addresses of `_stack_regions`."""
    arenas, base = [], 0
    for region, (_, packing) in zip(verdict.regions, verdict.drawn, strict=True):
        arenas.append(DrawnArena(region.name, base, packing.arena_bytes, region.lower_bound_bytes))
        base += packing.arena_bytes
    return tuple(arenas)


def _stack_regions(verdict: ForeignVerdict) -> tuple[Problem, Packing]:
    """Return all regions as a single packing, stacked upwards."""
    if len(verdict.drawn) == 1:
        return verdict.drawn[0]
    buffers: list[Buffer] = []
    offsets: list[int] = []
    base = 0
    for problem, packing in verdict.drawn:
        buffers += problem.buffers
        offsets += [base + offset for offset in packing.offsets]
        base += packing.arena_bytes
    return Problem(tuple(buffers), name=verdict.tool), Packing(tuple(offsets), base, verdict.tool)


@dataclass(frozen=True)
class CheckOptions:
    """The arguments and the options of `sublet check`."""

    model: Annotated[
        Path,
        typer.Argument(
            help="A model (.onnx, .tflite, .pt2, Paddle's .pdmodel or .json, .sublet); or a plan with lifetimes "
            "(MiniMalloc's .csv, .json) or instructions (ExecuTorch's .pte); or a PyTorch memory snapshot "
            "(.pickle, .json), which is replayed.",
            show_default=False,
        ),
    ]
    plan_path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A plan written by `sublet plan --out`, or another tool's plan as JSON (docs/foreign.md). By default, "
            "the plan contained in MODEL.",
        ),
    ] = None
    search: Annotated[
        bool, typer.Option("--search", help="Repeat the search that proved the lower bound, if a search did.")
    ] = False
    dim: shared.Dim = None
    const: shared.Const = None
    max_trips: shared.MaxTrips = None
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Capacity of another tool's only memory, if its plan has none.")
    ] = None
    lifetimes: Annotated[
        Lifetimes,
        typer.Option(help="Ends of lifetimes in a CSV; see `sublet pack`."),
    ] = Lifetimes.half_open
    timeout: Annotated[
        float, typer.Option(help="Maximum time to pack the allocations of a snapshot.", metavar="SECONDS")
    ] = 20.0
    html: shared.Html = None
    png: shared.Png = None
    in_json: shared.Json = False


@command_from(CheckOptions)
def check(options: CheckOptions) -> None:
    """Check a plan against its model: replay the plan byte by byte and report every violation.

    For a plan by Sublet, all claims of the plan are proven too. A plan by another tool that declares lifetimes needs no
    model. Exit status: 0 right, 1 wrong, 2 bad input, 3 right as far as judged, but some tensors could not be judged.
    """
    model, plan_path = options.model, options.plan_path
    refuse_overwriting([path for path in (model, plan_path) if path is not None], options.html, options.png)
    if plan_path is not None and not is_foreign_json(plan_path):
        _check_sublet_plan(options, plan_path)
        return
    if options.search:
        raise PlanError("--search is for plans of Sublet's: another tool's claims no lower bound")
    if plan_path is None and is_snapshot(model):
        replay = command(f"check {model.suffix.lower()}")
        replay(model, options.timeout, options.html, options.png, in_json=options.in_json)
        return
    _print_judgement(options, _judge_plan_of_tool(options))


def _check_sublet_plan(options: CheckOptions, plan_path: Path) -> None:
    """Check a plan by Sublet with all its claims, and print the result. Exits with status 1 for a wrong plan."""
    if options.dim or options.const or options.max_trips or options.capacity:
        raise PlanError(
            "--dim, --const, --max-trips and --capacity are for plans of other tools: a plan by Sublet contains these"
        )
    plan = load(plan_path)
    result = check_plan(options.model, plan, search=options.search)
    if options.html is not None or options.png is not None:
        picture = picture_of_plan(plan)
        wrong = replace(picture, claimed="not right").without_bound()
        write_pictures(wrong if result.findings else picture, options.html, options.png)
    if options.in_json:
        violations = [str(finding) for finding in result.findings]
        covered = {"planned": len(planned_values(plan)), "not_counted": [value.value for value in plan.not_counted]}
        summary = {"valid": not violations, "violations": violations, "claims": result.claim_status}
        print_json({**summary, **covered, "assumed": dict(plan.assumed_types)})
    else:
        print_check_result(plan, result)
    if result.findings:
        raise typer.Exit(1)


def _judge_plan_of_tool(options: CheckOptions) -> ForeignVerdict:
    """Return the verdict on a plan by another tool: in a second file, in the model's file, or without a model."""
    model, plan_path = options.model, options.plan_path
    capacity = None if options.capacity is None else parse_bytes(options.capacity)
    if plan_path is None and is_judged_without_model(model):
        return judge_plan_file(model, options.lifetimes, capacity)
    recorded = embedded_options(model) if plan_path is None else {}
    dims = recorded.get("dims", {}) | parse_dims(options.dim)
    max_trips = recorded.get("max_trips", {}) | parse_max_trips(options.max_trips)
    const, assume = parse_constants(options.const), recorded.get("assume")
    source = read_source(model, dims, const=const, max_trips=max_trips, assume=assume)
    if plan_path is None:
        return judge_embedded_plan(source, model, capacity)
    return judge_by_replay(source, read_plan_file(plan_path).with_capacity(capacity))


def _print_judgement(options: CheckOptions, verdict: ForeignVerdict) -> None:
    """Print the verdict on a plan by another tool, write the pictures, and exit with the status of the verdict."""
    picture = replace(judgement_picture(verdict), title=(options.plan_path or options.model).name)
    write_pictures(picture, options.html, options.png)
    if options.in_json:
        print_json(judgement_json(verdict))
    else:
        print_judgement(verdict)
        print_memory_map(picture)
    if EXIT_STATUS[verdict.outcome]:
        raise typer.Exit(EXIT_STATUS[verdict.outcome])
