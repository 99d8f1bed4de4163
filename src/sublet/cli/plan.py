"""The command `sublet plan`: plan a model, prove the plan, show the plan, and advise on changes."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.advising import advise_on, optimize_levels
from sublet.api.binding import model_to_run
from sublet.base.formatting import human, printable
from sublet.cli import options
from sublet.cli.budget_options import apply_patches_option, fit_by_recomputation, show_frontier
from sublet.cli.console import (
    advice_progress,
    answer_console,
    exit_with_verdict,
    packing_progress,
    print_json,
    print_warnings,
    refuse_overwriting,
    reports_errors,
    warnings_json,
)
from sublet.cli.options import (
    ALIGNMENT,
    BudgetQuestion,
    choose_alignment,
    parse_assumed_shapes,
    parse_dims,
    parse_extents,
    parse_max_trips,
    parse_regions,
)
from sublet.cli.plan_output import print_plan, write_pictures
from sublet.integrations.registry import command
from sublet.ir.model import Model as Source
from sublet.ir.recipe import AS_IS
from sublet.passes.rewriting import is_pure
from sublet.plan import MemoryPlan
from sublet.plan.advice import Advice, Advised
from sublet.plan.file import save
from sublet.plan.verdict import Verdict
from sublet.planning.advice.candidates import MAX_SECONDS
from sublet.planning.order_advice import OrderAdvice, advise_order
from sublet.planning.pipeline import plan_memory
from sublet.viz.report import plan_json
from sublet.viz.summary import plain_table
from sublet.viz.view_model import Picture, picture_of_plan

# Advice as text and tables for a terminal.

KIND_LABELS = {"option": "your choice", "model": "same network", "what-if": "what if"}


def advice_table(advised: Advised) -> RenderableType:
    """Return the changes with a smaller arena, largest saving first; then the changes tried without success."""
    parts: list[RenderableType] = [Text("What would lower the arena, each figure from a plan:", "bold")]
    if advised.helpful:
        table = plain_table()
        for name in ("saves", "arena"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("kind", no_wrap=True)
        table.add_column("change", overflow="fold")
        for each in advised.helpful:
            row = human(each.saved_bytes), human(each.arena_bytes), KIND_LABELS[each.kind]
            table.add_row(*row, Text(printable(f"{each.what}: {each.how}{_describe_outside(each)}")))
        parts.append(table)
    else:
        parts.append(Text("no tried change"))
    vain = [
        f"{each.how if each.kind == 'option' else each.what} ({_describe_arena(each)})" for each in advised.unhelpful
    ]
    if vain:
        parts.append(Text(printable(f"No help: {', '.join(vain)}."), "dim"))
    parts += [Text(printable(f"No plan: {failed}"), "dim") for failed in advised.failed]
    if advised.stopped:
        parts.append(Text(f"Not everything was tried: {advised.stopped}.", "yellow"))
    return Group(*parts)


def _describe_outside(each: Advice) -> str:
    if each.outside_bytes == 0:
        return ""
    more = "more" if each.outside_bytes > 0 else "less"
    return f" ({human(abs(each.outside_bytes))} {more} outside the arena)"


def _describe_arena(each: Advice) -> str:
    more = f", with {each.unplanned} more values that could not be planned" if each.unplanned > 0 else ""
    return f"{human(each.arena_bytes)}{more}"


class StorageOption(StrEnum):
    """The storage of inputs, outputs and weights: the arena, or memory bound by the caller."""

    arena = "arena"
    bound = "bound"


Forbid = Annotated[
    bool, typer.Option("--forbid-copies", help="Exit 2 if loops, branches or updates copy bytes; list the copies.")
]
Advise = Annotated[
    bool,
    typer.Option("--advise", help=f"Suggest changes for a smaller arena; no trial begins after {MAX_SECONDS:g} s."),
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="With --budget: recompute values where needed to fit the budget.")
]
Measure = Annotated[
    bool,
    typer.Option("--measure", help="Measure the nodes once on this machine, to predict the cost of recomputation."),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks", "--rank", min=1, metavar="N",
        help="MODEL is SCRIPT.py:FUNCTION, returning module and arguments of a rank of N; plan all ranks.",
    ),
]  # fmt: skip
Device = Annotated[
    str, typer.Option(help="With --ranks: device of the modules; cpu if the meta device cannot build them.")
]
Frontier = Annotated[
    bool, typer.Option("--frontier", help="Show the predicted time of smaller budgets, by recomputation.")
]


@reports_errors
def plan(
    model: options.Model,
    dim: options.Dim = None,
    shape: options.Shape = None,
    max_trips: options.MaxTrips = None,
    optimize: options.Optimizer = AS_IS,
    order: options.Orders = options.Order.given,
    strategy: options.Strategy = "auto",
    align: options.Align = None,
    budget: options.Budget = None,
    assume: options.Assume = None,
    max_dim: options.MaxDim = None,
    io: Annotated[
        StorageOption, typer.Option(help="Storage of inputs and outputs: the arena, or bound by the caller.")
    ] = StorageOption.arena,
    weights: Annotated[
        StorageOption, typer.Option(help="Storage of weights: the arena, or bound by the caller.")
    ] = StorageOption.bound,
    streams: Annotated[int, typer.Option(help="Number of concurrent streams.")] = 1,
    region: options.RegionTexts = None,
    timeout: options.Timeout = None,
    forbid_copies: Forbid = False,
    advise: Advise = False,
    patches: options.Patches = None,
    recompute: Recompute = False,
    frontier: Frontier = False,
    measure: Measure = False,
    ranks: Ranks = None,
    device: Device = "meta",
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None,
    html: options.Html = None,
    png: options.Png = None,
    as_json_: options.Json = False,
) -> None:
    """Plan the memory of a model, prove the plan, and show the plan.

    Exit status: 0 planned, within the budget if one is given; 1 over the budget; 2 bad input; 3 unknown whether the
    budget is enough.
    """
    if ranks is not None:
        command("plan --ranks")(
            model, ranks, Options(strategy, align or ALIGNMENT), device, budget, as_json_, (out, html, png)
        )
    refuse_overwriting(model, out, html, png)
    question, started, shapes = BudgetQuestion(budget, max_dim), perf_counter(), parse_assumed_shapes(assume)
    dims, trips = parse_extents(model, shape, parse_dims(dim)), parse_max_trips(max_trips)
    planning_options = Options(strategy, choose_alignment(model, align), io.value, weights.value, streams, timeout)
    planning_options = replace(
        planning_options, regions=parse_regions(region or ()), forbid_copies=forbid_copies, order=order.value
    )
    source = apply_patches_option(
        model_to_run(model, dims, max_trips=trips, optimize=optimize, assume=shapes), planning_options, patches
    )
    if frontier:
        show_frontier(source, planning_options, (out, html, png), measure=measure, in_json=as_json_)
        return
    source = fit_by_recomputation(source, planning_options, question.budget, measure=measure) if recompute else source
    with packing_progress() as progress:
        memory_plan = plan_memory(source, planning_options, progress=progress)
        seconds = perf_counter() - started
        other_plan = advise_order(source, planning_options, memory_plan, progress)
    decision = question.verdict_on(memory_plan)
    if out is not None:
        save(memory_plan, out)
    with advice_progress() as trying:
        advice = advise_on(model, source, planning_options, memory_plan, trying=trying) if advise else None
    picture = replace(picture_of_plan(memory_plan), advice=advice, budget=question.budget)
    write_pictures(picture, html, png)
    if as_json_:
        extra_fields = {
            **warnings_json(source),
            "other_order": other_plan.to_json,
            **(advice.content if advice else {}),
        }
        print_json({**plan_json(memory_plan, seconds, decision), **extra_fields})
    else:
        _print_plan(
            memory_plan,
            other_plan,
            source,
            picture,
            decision,
            rewriter=optimize_levels(model)[-1:] if optimize == AS_IS else (),
        )
    exit_with_verdict(decision)


def _print_plan(
    memory_plan: MemoryPlan,
    order_advice: OrderAdvice,
    source: Source,
    picture: Picture,
    decision: Verdict | None,
    *,
    rewriter: tuple[str, ...],
) -> None:
    """Print the plan, remarks, a hint at recomputation for a plan over the budget, and the advice."""
    print_plan(memory_plan, picture, decision=decision)
    _print_remarks(memory_plan, order_advice, source, rewriter=rewriter)
    can_recompute = not memory_plan.recipe.again and any(is_pure(node) for node in source.graph.walk())
    if decision is not None and decision.fits is False and can_recompute:
        answer_console().print(
            Text("Recomputed values may make the plan fit: --recompute; --frontier shows the cost in time.", "dim")
        )
    if picture.advice is not None:
        answer_console().print(Text(), advice_table(picture.advice))


def _print_remarks(
    memory_plan: MemoryPlan, order_advice: OrderAdvice, source: Source, rewriter: tuple[str, ...]
) -> None:
    """Print remarks on the planned graph: warnings, a better order, and a graph planned differently by `sublet run`."""
    answer_console().print()
    if source.remark:
        answer_console().print(Text(source.remark, "yellow"))
    print_warnings(source)
    if order_advice.arena_bytes is not None and order_advice.arena_bytes < memory_plan.arena_bytes:
        saved = f"{human(order_advice.arena_bytes)}, {human(memory_plan.arena_bytes - order_advice.arena_bytes)} less"
        answer_console().print(Text(f"Another order needs {saved}: --order less", "yellow"))
    else:
        answer_console().print(Text(order_advice.words, "dim"))
    for level in rewriter:
        answer_console().print(
            Text(f"`sublet run` has {level} rewrite the model first: --optimize auto plans that.", "dim")
        )
