"""The command `sublet plan`: plan a model, prove the plan, show the plan, and advise on changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.advising import advise_on, can_rematerialize, optimize_levels, recomputation_bound
from sublet.api.binding import CompileRequest
from sublet.api.ranges import PlannedRanges, has_ranges
from sublet.api.state_names import AUTO_STATE
from sublet.base.errors import PlanError
from sublet.base.formatting import count_with_noun, human, printable
from sublet.cli import options as shared
from sublet.cli.budget_options import (
    OutputPaths,
    fit_by_recomputation,
    plan_smaller_ranges,
    read_smaller_graph,
    show_frontier,
)
from sublet.cli.console import (
    DOES_NOT_FIT,
    advice_progress,
    annotation,
    answer_console,
    exit_with_verdict,
    packing_progress,
    print_json,
    print_warnings,
    refuse_overwriting,
    warnings_json,
)
from sublet.cli.options import (
    BudgetQuestion,
    choose_alignment,
    command_from,
    option_name,
    parse_assumed_shapes,
    parse_constants,
    parse_dims,
    parse_extents,
    parse_max_trips,
    parse_ranged_dims,
    parse_regions,
    parse_state,
    parse_tier_ends,
)
from sublet.cli.show import print_plan, write_pictures
from sublet.integrations.registry import command
from sublet.ir.model import OPEN_EXTENT
from sublet.ir.model import Model as Source
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.file import load, save
from sublet.plan.statistics import Growth, growth
from sublet.plan.verdict import Advice, Advised, Verdict, max_total_bytes
from sublet.planning.advice import MAX_SECONDS, OrderAdvice, advise_order
from sublet.planning.budget.patches import AUTO as PATCHES_AUTO
from sublet.planning.pipeline import plan_memory
from sublet.viz.page import points_of, write_html
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


class OutputFormat(StrEnum):
    """The format of the result: text alone, or with an annotation for GitHub's workflows."""

    text = "text"
    github = "github"


@dataclass(frozen=True)
class PlanOptions:
    """The argument and the options of `sublet plan`."""

    model: shared.Model
    dim: shared.RangedDim = None
    const: shared.Const = None
    state: shared.State = None
    tiers: shared.TierTexts = None
    shape: shared.Shape = None
    max_trips: shared.MaxTrips = None
    optimize: shared.Optimizer = AS_IS
    order: shared.Orders = shared.Order.given
    strategy: shared.Strategy = "auto"
    align: shared.Align = None
    budget: shared.Budget = None
    assume: shared.Assume = None
    max_dim: shared.MaxDim = None
    io: Annotated[
        shared.StorageOption, typer.Option(help="Storage of inputs and outputs: the arena, or bound by the caller.")
    ] = shared.StorageOption.arena
    weights: Annotated[
        shared.StorageOption,
        typer.Option(help="Storage of weights: the arena, or bound by the caller."),
    ] = shared.StorageOption.bound
    streams: Annotated[int, typer.Option(help="Number of concurrent streams.")] = 1
    region: shared.RegionTexts = None
    timeout: shared.Timeout = None
    forbid_copies: Annotated[
        bool, typer.Option("--forbid-copies", help="Exit 2 if loops, branches or updates copy bytes; list the copies.")
    ] = False
    no_rows: Annotated[
        bool, typer.Option("--no-rows", help="Keep every value contiguous, for kernels that take no strides.")
    ] = False
    advise: Annotated[
        bool,
        typer.Option("--advise", help=f"Suggest changes for a smaller arena; no trial begins after {MAX_SECONDS:g} s."),
    ] = False
    patches: shared.Patches = None
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --budget: recompute values where needed to fit the budget.")
    ] = False
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Show the predicted time of smaller budgets, by recomputation.")
    ] = False
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the nodes once on this machine, to predict the cost of recomputation."),
    ] = False
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", "--rank", min=1, metavar="N",
            help="MODEL is SCRIPT.py:FUNCTION, returning module and arguments of a rank of N; plan all ranks.",
        ),
    ] = None  # fmt: skip
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="MODEL is SCRIPT.py:FUNCTION, returning module, loss, optimizer and inputs; estimate a step's memory. "
            "--budget then counts all bytes: parameters, gradients, optimizer state, inputs, results and arenas.",
        ),
    ] = False
    device: Annotated[
        str,
        typer.Option(help="With --ranks or --train: device of the tensors; cpu if the meta device cannot build them."),
    ] = "meta"
    kernels: Annotated[
        shared.Kernels,
        typer.Option(help="With --train: the kernels of the step. Inductor's are lowered, not compiled."),
    ] = shared.Kernels.sublet
    step: Annotated[
        shared.Step, typer.Option(help="With --train: a call of torch.compile, or a whole step of train_step.")
    ] = shared.Step.compile
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None
    html: shared.Html = None
    png: shared.Png = None
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="PLAN", help="Exit 1 if arena, peak or state grew; list why."),
    ] = None
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="With github: also print the result as a workflow annotation.")
    ] = OutputFormat.text
    in_json: shared.Json = False

    @property
    def files(self) -> OutputPaths:
        """The paths of the plan file, the page and the picture."""
        return self.out, self.html, self.png


@command_from(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Plan the memory of a model, prove the plan, and show the plan.

    Exit status: 0 planned, within budget and baseline if given; 1 over the budget, or grown over the baseline; 2 bad
    input; 3 unknown whether the budget is enough.
    """
    if options.ranks is not None:
        _plan_ranks(options, options.ranks)
    if options.train:
        _refuse_without_effect(options)
        show_step = command("plan --train")
        kernels, step, curve = options.kernels.value, options.step.value, options.frontier
        show_step(options.model, options.device, options.budget, kernels, step, curve, options.in_json, options.files)
    for name in (each for each in _given_options(options) if each in ONLY_WITH_TRAIN):
        raise PlanError(f"{option_name(name)} is for the step of a script: pass --train, or drop {option_name(name)}")
    refuse_overwriting([options.model, *filter(None, [options.baseline])], *options.files)
    question, started = BudgetQuestion(options.budget, options.max_dim), perf_counter()
    if options.in_json and options.output_format is OutputFormat.github:
        raise PlanError("--json prints one JSON object and nothing else: drop --json or --format github")
    baseline = None if options.baseline is None else load(options.baseline)
    dims = parse_ranged_dims(options.dim)
    if has_ranges(dims):
        _plan_over_ranges(options, dims, question, baseline)
        return
    if options.tiers:
        raise PlanError("--tiers needs a range: pass --dim NAME=LOW..HIGH for the dimension")
    source, planning_options = _read_model(options)
    if options.frontier:
        show_frontier(source, planning_options, options.files, measure=options.measure, in_json=options.in_json)
        return
    if options.recompute:
        source = fit_by_recomputation(source, planning_options, question.budget, measure=options.measure)
    with packing_progress() as progress:
        memory_plan = plan_memory(source, planning_options, progress=progress)
        seconds = perf_counter() - started
        order_advice = advise_order(source, planning_options, memory_plan, progress)
    decision = question.verdict_on(memory_plan)
    if options.out is not None:
        save(memory_plan, options.out)
    with advice_progress() as trying:
        advice = (
            advise_on(options.model, source, planning_options, memory_plan, trying=trying) if options.advise else None
        )
    picture = replace(picture_of_plan(memory_plan), title=options.model.name, advice=advice, budget=question.budget)
    write_pictures(picture, options.html, options.png)
    grown = None if baseline is None else growth(memory_plan, baseline)
    remedy = _hint_at_recomputation(source, planning_options, decision)
    report = PlanReport(source, memory_plan, order_advice, picture, decision, grown, remedy)
    if options.in_json:
        print_json(report.to_json(seconds))
    else:
        _print_report(report, _describe_run_graph(options))
        _print_found_state(options, source)
    _exit(options, report)


WITH_TRAIN = frozenset({
    "model", "train", "device", "kernels", "step", "budget", "frontier", "out", "html", "png", "in_json",
})  # fmt: skip
"""Options with an effect, or an error of their own, beside --train."""


ONLY_WITH_TRAIN = frozenset({"kernels", "step"})
"""Options without an effect but beside --train."""


def _given_options(options: PlanOptions) -> list[str]:
    """Return the names of the options with another value than the default."""
    return [each.name for each in fields(options) if getattr(options, each.name) != each.default]


def _refuse_without_effect(options: PlanOptions) -> None:
    """Raise PlanError for an option without an effect beside --train."""
    for name in _given_options(options):
        if name not in WITH_TRAIN:
            option = "--format" if name == "output_format" else option_name(name)
            raise PlanError(f"{option} is for a model in a file: drop {option} with --train")


def _print_found_state(options: PlanOptions, source: Source) -> None:
    """Print the pairs of a state found by name."""
    if options.state == [AUTO_STATE]:
        pairs = ", ".join(f"{name}={result}" for name, result in source.recipe.state_pairs.items())
        answer_console().print(Text(printable(f"State found by name: {pairs}"), "dim"))


def _exit(options: PlanOptions, report: PlanReport) -> None:
    """Print the annotation for GitHub, if asked for, and exit with the status of the report."""
    if options.output_format is OutputFormat.github:
        print(annotation(options.model, report.plan, report.decision, report.growth))
    if report.growth is not None and report.growth.is_grown:
        raise typer.Exit(DOES_NOT_FIT)
    exit_with_verdict(report.decision)


WITHOUT_RANGES = ("recompute", "frontier", "patches", "advise", "region", "assume", "shape")
"""Options that need an extent for every dimension."""


def _plan_over_ranges(
    options: PlanOptions, dims: dict[str, Any], question: BudgetQuestion, baseline: MemoryPlan | None
) -> None:
    """Plan a model over ranges of dimensions: figures and verdict hold for the largest sizes, the proof for all."""
    refused = next((name for name in WITHOUT_RANGES if getattr(options, name)), None)
    if refused is not None:
        option = option_name(refused)
        raise PlanError(f"{option} needs single extents: pass --dim NAME=INTEGER for every dimension, or drop {option}")
    planning_options, started = _planning_options(options), perf_counter()
    const, state = parse_constants(options.const), parse_state(options.state)
    trips = parse_max_trips(options.max_trips)
    request = CompileRequest(
        options.model, dims=dims, const=const, state=state, max_trips=trips, optimize=options.optimize
    )
    with packing_progress() as progress:
        planned = plan_smaller_ranges(request, planning_options, progress, parse_tier_ends(options.tiers))
    ranged = planned.ranged
    decision = question.verdict_on(ranged.worst)
    picture = replace(picture_of_plan(ranged.worst), title=options.model.name, budget=question.budget)
    write_pictures(picture, None, options.png)
    if options.html is not None:
        stops, drawn = points_of(ranged)
        maps = [replace(each, title=picture.title, budget=picture.budget) for each in drawn]
        write_html(maps[0], options.html, maps[1:], ranges=stops)
    if options.out is not None:
        save(ranged.worst, options.out)
    grown = None if baseline is None else growth(ranged.worst, baseline)
    points = f"every point of {', '.join(map(str, ranged.ranges))} that the network can run"
    outside, most = len(ranged.worst.not_counted), max_total_bytes(ranged.worst)
    bound = "" if most is None else f", at most {human(most - ranged.worst.arena_bytes)}"
    gap = f" Not counted: {count_with_noun(outside, 'tensor')} outside the plan{bound}." if outside else ""
    words = f"Proven for {points}; figures are of the largest sizes.{gap}"
    report = PlanReport(planned.model, ranged.worst, OrderAdvice(None, words), picture, decision, grown, "")
    if options.in_json:
        found = [asdict(each) for each in ranged.ranges]
        tiers = {"tiers": [each.to_json() for each in planned.smaller]} if options.tiers else {}
        state_bytes = {"session_bytes": planned.session_bytes} if planned.session_bytes else {}
        print_json({**report.to_json(perf_counter() - started), "ranges": found, **state_bytes, **tiers})
    else:
        _print_report(report, "")
        _print_found_state(options, planned.model)
        if planned.session_bytes:
            words = (
                f"Each session keeps {human(planned.session_bytes)} of state outside the arena, for the largest sizes."
            )
            answer_console().print(Text(words))
        if options.tiers:
            answer_console().print(Text(), _tier_table(planned))
            if options.out is not None:
                words = "The plan file holds the largest tier: pass tiers= to sublet.compile_ranges besides plan="
                answer_console().print(Text(f"{words}, which plans the smaller tiers again.", "dim"))
    _exit(options, report)


def _tier_table(planned: PlannedRanges) -> RenderableType:
    """Return the arena of every tier, the smallest first. A tier without a smaller arena has no row."""
    table = plain_table()
    for name in ("requests up to", "arena", "lower bound"):
        table.add_column(name, justify="left" if name == "requests up to" else "right")
    whole = {each.name: each.high for each in planned.ranged.ranges}
    rows = [(each.ends, each.ranged.worst) for each in planned.smaller]
    for ends, plan in [*rows, (whole, planned.ranged.worst)]:
        words = ", ".join(f"{name}={end}" for name, end in ends.items())
        table.add_row(printable(words), human(plan.arena_bytes), human(plan.lower_bound_bytes))
    return Group(Text("Tiers, each proven for every shape in it:", "bold"), table)


def _plan_ranks(options: PlanOptions, ranks: int) -> None:
    """Plan all ranks of a parallel training, and exit with the status of the largest."""
    show_ranks = command("plan --ranks")
    planning_options = Options(options.strategy, options.align or Options().alignment)
    show_ranks(options.model, ranks, planning_options, options.device, options.budget, options.in_json, options.files)


def _read_model(options: PlanOptions) -> tuple[Source, Options]:
    """Return the model to plan, with the front in patches if requested, and the planning options."""
    assume, dims = parse_assumed_shapes(options.assume), parse_dims(options.dim)
    dims, max_trips = parse_extents(options.model, options.shape, dims), parse_max_trips(options.max_trips)
    planning_options = _planning_options(options)
    request = CompileRequest(options.model, dims=dims, max_trips=max_trips, optimize=options.optimize, assume=assume)
    request = replace(request, const=parse_constants(options.const), state=parse_state(options.state))
    return read_smaller_graph(request, planning_options, options.patches), planning_options


def _planning_options(options: PlanOptions) -> Options:
    """Return the planning options."""
    alignment = choose_alignment(options.model, options.align)
    chosen = Options(
        options.strategy, alignment, options.io.value, options.weights.value, options.streams, options.timeout
    )
    return replace(
        chosen,
        regions=parse_regions(options.region or ()),
        forbid_copies=options.forbid_copies,
        in_rows=not options.no_rows,
        order=options.order.value,
    )


@dataclass(frozen=True)
class PlanReport:
    """A planned model, with the advice on orders, the picture with any other advice, and the verdict on the budget.

    `remedy` is a hint at recomputation for a plan over the budget.
    """

    source: Source
    plan: MemoryPlan
    order_advice: OrderAdvice
    picture: Picture
    decision: Verdict | None
    growth: Growth | None
    remedy: str

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the report as a JSON object; `seconds` is the time of planning."""
        advice = self.picture.advice.content if self.picture.advice else {}
        content = {**plan_json(self.plan, seconds, self.decision), **warnings_json(self.source)}
        grown = {} if self.growth is None else {"growth": {**asdict(self.growth), "is_grown": self.growth.is_grown}}
        return {**content, "other_order": self.order_advice.to_json, **advice, **grown}


def _describe_run_graph(options: PlanOptions) -> str:
    """Return a sentence on the graph of `sublet run`, if possibly another graph than the planned graph."""
    levels = optimize_levels(options.model) if options.optimize == AS_IS else ()
    if not levels:
        return ""
    if options.patches == PATCHES_AUTO:
        kernels = "and counts the bytes of kernels of patches"
        return f"`sublet run` also tries the graph rewritten by {levels[-1]} (--optimize auto), {kernels}."
    if options.patches is not None:
        return f"`sublet run` has {levels[-1]} rewrite the model first: --optimize auto plans that."
    return f"`sublet run` runs this graph or, if smaller, the graph rewritten by {levels[-1]}: --optimize auto."


def _hint_at_recomputation(source: Source, options: Options, decision: Verdict | None) -> str:
    """Return a sentence on recomputation for a plan over the budget; "" where no node can be computed again."""
    if decision is None or decision.fits is not False or not can_rematerialize(source):
        return ""
    bound = recomputation_bound(source, options)
    if bound.nbytes > decision.budget:
        return f"No recomputation of whole nodes can help: {printable(bound.description)}."
    return "Recomputed values may make the plan fit: --recompute; --frontier shows the cost in time."


def _print_report(report: PlanReport, run_graph: str) -> None:
    """Print the plan, remarks, a hint at recomputation for a plan over the budget, and the advice."""
    grown = report.growth is not None and report.growth.is_grown
    if grown:  # the answer, so the first line
        _print_growth(report)
    is_open = any(finding.rule == OPEN_EXTENT for finding in report.source.warnings)
    condition = "This holds for the extents stored in the file alone: the file leaves some open." if is_open else ""
    print_plan(report.plan, report.picture, decision=report.decision, condition=condition)
    _print_remarks(report, run_graph)
    if report.remedy:
        answer_console().print(Text(report.remedy, "dim"))
    if report.growth is not None and not grown:
        _print_growth(report)
    if report.picture.advice is not None:
        answer_console().print(Text(), advice_table(report.picture.advice))


def _print_growth(report: PlanReport) -> None:
    """Print the comparison with the baseline, if any."""
    if report.growth is not None:
        color = "red" if report.growth.is_grown else "green"
        what = "Grown over the baseline" if report.growth.is_grown else "Not grown over the baseline"
        answer_console().print(Text(f"{what}: {report.growth.description}", color))


def _print_remarks(report: PlanReport, run_graph: str) -> None:
    """Print remarks on the planned graph: warnings, a better order, and a graph planned differently by `sublet run`."""
    source, order_advice, arena_bytes = report.source, report.order_advice, report.plan.arena_bytes
    answer_console().print()
    if source.remark:
        answer_console().print(Text(source.remark, "yellow"))
    print_warnings(source)
    if order_advice.arena_bytes is not None and order_advice.arena_bytes < arena_bytes:
        saved = f"{human(order_advice.arena_bytes)}, {human(arena_bytes - order_advice.arena_bytes)} less"
        answer_console().print(Text(f"Another order needs {saved}: --order less", "yellow"))
    else:
        answer_console().print(Text(order_advice.words, "dim"))
    if run_graph:
        answer_console().print(Text(run_graph, "dim"))
