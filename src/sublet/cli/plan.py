"""The command `sublet plan`: plan a model, prove the plan, show it, and say what would need less."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.advising import advise_on
from sublet.api.binding import to_run
from sublet.base.bytesize import human
from sublet.base.extras import installed
from sublet.cli import options
from sublet.cli.advice_table import advice_table
from sublet.cli.budgeting import recomputing, show_frontier
from sublet.cli.console import (
    advice_progress,
    answered,
    answers,
    leave,
    packing_progress,
    print_json,
    print_warnings,
    refuse_overwriting,
    warned,
)
from sublet.cli.options import (
    ALIGNMENT,
    Question,
    alignment_of,
    bound_dims,
    bound_extents,
    bound_trips,
    parse_regions,
    told_shapes,
)
from sublet.cli.patching import patching
from sublet.cli.ranks_table import show_ranks
from sublet.cli.showing import draw, show_plan
from sublet.frontends.model import is_onnx
from sublet.frontends.onnx.optimized import ALL
from sublet.ir.model import Model as Source
from sublet.ir.recipe import AS_IS
from sublet.passes.rewriting import is_pure
from sublet.plan import MemoryPlan
from sublet.plan.file import save
from sublet.plan.verdict import Verdict
from sublet.planning.advice.tried import SECONDS
from sublet.planning.other_order import OtherOrder, other_order
from sublet.planning.pipeline import plan_memory
from sublet.viz.rectangles import Picture, rectangles
from sublet.viz.report import as_json


class Where(StrEnum):
    arena = "arena"
    bound = "bound"


Forbid = Annotated[
    bool, typer.Option("--forbid-copies", help="Exit 2 if loops, branches or updates move bytes; say which.")
]
Advise = Annotated[
    bool, typer.Option("--advise", help=f"Say what would lower the arena; no change is begun after {SECONDS:g} s.")
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="With --budget: compute values again where that makes the plan fit.")
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure what nodes take on this machine, once, to weigh and tell time by.")
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks", "--rank", min=1, metavar="N",
        help="MODEL is SCRIPT.py:FUNCTION, which gives module and arguments of a rank of N: plan them all.",
    ),
]  # fmt: skip
Device = Annotated[str, typer.Option(help="With --ranks: cpu for modules that cannot be built on meta.")]
Frontier = Annotated[
    bool, typer.Option("--frontier", help="Show what smaller budgets cost in time, when values are computed again.")
]


@answered
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
    io: Annotated[Where, typer.Option(help="Where inputs and outputs lie.")] = Where.arena,
    weights: Annotated[Where, typer.Option(help="Where weights lie.")] = Where.bound,
    streams: Annotated[int, typer.Option(help="How many streams may run at the same time.")] = 1,
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
    """Plan the memory of a model, prove the plan, and show it."""
    if ranks is not None:
        show_ranks(model, ranks, Options(strategy, align or ALIGNMENT), device, budget, as_json_, (out, html, png))
    refuse_overwriting(model, out, html, png)
    question, started, shapes = Question(budget, max_dim), perf_counter(), told_shapes(assume)
    dims, trips = bound_extents(model, shape, bound_dims(dim)), bound_trips(max_trips)
    chosen = Options(strategy, alignment_of(model, align), io.value, weights.value, streams, timeout)
    chosen = replace(chosen, regions=parse_regions(region or ()), forbid_copies=forbid_copies, order=order.value)
    source = patching(to_run(model, dims, max_trips=trips, optimize=optimize, assume=shapes), chosen, patches)
    if frontier:
        show_frontier(source, chosen, (out, html, png), measure=measure, in_json=as_json_)
        return
    source = recomputing(source, chosen, question.budget, measure=measure) if recompute else source
    with packing_progress() as progress:
        made = plan_memory(source, chosen, progress=progress)
        seconds = perf_counter() - started
        other = other_order(source, chosen, made, progress)
    decision = question.answer(made)
    if out is not None:
        save(made, out)
    with advice_progress() as trying:
        advised = advise_on(model, source, chosen, made, trying=trying) if advise else None
    picture = replace(rectangles(made), advice=advised, budget=question.budget)
    draw(picture, html, png)
    if as_json_:
        more = {**warned(source), "other_order": other.content, **(advised.content if advised else {})}
        print_json({**as_json(made, seconds, decision), **more})
    else:
        _show(made, other, source, picture, decision, rewritten=optimize == AS_IS and _rewrites(model))
    leave(decision)


def _rewrites(model: Path) -> bool:
    return is_onnx(model) and installed(ALL)


def _show(
    made: MemoryPlan, other: OtherOrder, source: Source, picture: Picture, decision: Verdict | None, *, rewritten: bool
) -> None:
    show_plan(made, picture, decision=decision)
    _remark(made, other, source, rewritten=rewritten)
    again = not made.recipe.again and any(is_pure(node) for node in source.graph.walk())
    if decision is not None and decision.fits is False and again:
        answers().print(
            Text("Values computed again may make it fit: --recompute; --frontier tells what that costs.", "dim")
        )
    if picture.advice is not None:
        answers().print(Text(), advice_table(picture.advice))


def _remark(made: MemoryPlan, other: OtherOrder, source: Source, rewritten: bool) -> None:
    """What else is to know about the graph that was planned; whether `sublet run` would plan another."""
    answers().print()
    if source.remark:
        answers().print(Text(source.remark, "yellow"))
    print_warnings(source)
    if other.arena_bytes is not None and other.arena_bytes < made.arena_bytes:
        saved = f"{human(other.arena_bytes)}, {human(made.arena_bytes - other.arena_bytes)} less"
        answers().print(Text(f"Another order needs {saved}: --order less", "yellow"))
    else:
        answers().print(Text(other.words, "dim"))
    if rewritten:
        answers().print(Text(f"`sublet run` has {ALL} rewrite the model first: --optimize auto plans that.", "dim"))
