"""The options of commands that change the graph: `--optimize`, `--patches`, `--recompute` and `--frontier`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from rich.text import Text

from sublet.analysis.options import Options, Progress
from sublet.api.advising import search_budget
from sublet.api.binding import CompileRequest, model_to_run
from sublet.api.ranges import PlannedRanges, Tiers, plan_ranges
from sublet.base.errors import CapacityError, PlanError, SubletError
from sublet.base.formatting import human
from sublet.cli.console import answer_console, budget_progress, error_console, print_json
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.planning.budget.patches import AUTO as PATCHES_AUTO
from sublet.planning.budget.patches import PatchedModel, choose_patches
from sublet.planning.budget.result import FRONTIER_PERCENTS, BudgetResult, SearchOutcome
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends import AUTO
from sublet.viz.frontier import frontier_of
from sublet.viz.page import write_html
from sublet.viz.summary import plain_table

# The option `--optimize auto`: of the graph in the file and the rewritten graph, the graph with the smaller arena.


def read_smaller_graph(
    request: CompileRequest, options: Options, patches: str | None, *, for_run: bool = False
) -> Model:
    """Return the model of a request, with the front in patches if requested, see `choose_patches` for `for_run`.

    With "auto", a rewritten graph with a larger arena is replaced by the graph in the file, so that no run needs more
    than the plan of the file. If patches are "auto" too, each graph is compared in its own best patches, or whole. The
    remark of the model states both sizes, if different. `RxC@NODE` names a node of the rewritten graph.
    """
    rewritten = model_to_run(request)
    level = rewritten.recipe.optimize
    is_named = patches not in (None, PATCHES_AUTO)
    if request.optimize != AUTO or request.plan is not None or is_named or level == AS_IS:
        return rewritten if patches is None else _tell(choose_patches(rewritten, options, patches, for_run=for_run))
    in_file = model_to_run(replace(request, optimize=AS_IS))
    if patches is None:
        sizes = PlannedSize.of_model(in_file, options), PlannedSize.of_model(rewritten, options)
        return _with_remark(in_file if sizes[0] < sizes[1] else rewritten, *sizes, level)
    chosen = choose_patches(rewritten, options, patches, for_run=for_run)
    size = PlannedSize.of_patches(chosen)
    try:
        other = choose_patches(in_file, options, patches, for_run=for_run)
    except SubletError:
        return _with_remark(_tell(chosen), PlannedSize(inf, 0), size, level)
    sizes = PlannedSize.of_patches(other), size
    return _with_remark(_tell(other if sizes[0] < sizes[1] else chosen), *sizes, level)


def plan_smaller_ranges(
    request: CompileRequest, options: Options, progress: Progress | None = None, tiers: Tiers | None = None
) -> PlannedRanges:
    """Return the plan of a request over ranges, see `plan_ranges`; with "auto", of the graph with the smaller arena.

    The remark of the model states both arenas, if different. Raises the errors of `plan_ranges`.
    """
    rewritten = plan_ranges(request, options, progress, tiers)
    level = rewritten.model.recipe.optimize
    if request.optimize != AUTO or level == AS_IS:
        return rewritten
    size = PlannedSize.of_plan(rewritten.ranged.worst)
    try:
        in_file = plan_ranges(replace(request, optimize=AS_IS), options, progress, tiers)
    except SubletError:
        return replace(rewritten, model=_with_remark(rewritten.model, PlannedSize(inf, 0), size, level))
    sizes = PlannedSize.of_plan(in_file.ranged.worst), size
    chosen = in_file if sizes[0] < sizes[1] else rewritten
    return replace(chosen, model=_with_remark(chosen.model, *sizes, level))


@dataclass(frozen=True, order=True)
class PlannedSize:
    """The size of a plan.

    not_counted  the number of values not counted by the plan, infinity without a plan
    nbytes       the bytes of the arena, and of additional kernels for patches
    patches      the patches as text; "" for none
    """

    not_counted: float
    nbytes: int
    patches: str = field(default="", compare=False)

    @staticmethod
    def of_plan(plan: MemoryPlan) -> PlannedSize:
        return PlannedSize(len(plan.not_counted), plan.arena_bytes)

    @staticmethod
    def of_patches(choice: PatchedModel) -> PlannedSize:
        return PlannedSize(len(choice.plan.not_counted), choice.needed_bytes, choice.patches)

    @staticmethod
    def of_model(model: Model, options: Options) -> PlannedSize:
        try:
            return PlannedSize.of_plan(plan_memory(model, options))
        except SubletError:
            return PlannedSize(inf, 0)

    def __str__(self) -> str:
        if self.not_counted == inf:
            return "no plan"
        outside = f" with {self.not_counted} values not counted" if self.not_counted else ""
        return f"{human(self.nbytes)}{outside}"


def _with_remark(chosen: Model, in_file: PlannedSize, rewritten: PlannedSize, level: str) -> Model:
    """Return the model chosen by "auto"; the remark states both arenas, if different."""
    if in_file == rewritten:
        return chosen
    parts = [f" in patches {size.patches}" if size.patches else "" for size in (in_file, rewritten)]
    figures = f"{in_file} for the graph in the file{parts[0]}, {rewritten} rewritten by {level}{parts[1]}"
    kernels = " and kernels of patches" if any(parts) else ""
    remark = f"arena{kernels}: {figures}; the smaller was taken (--optimize {AS_IS} and --optimize {level} choose)"
    return replace(chosen, remark="; ".join(filter(None, (chosen.remark.removesuffix("."), remark))))


def _tell(choice: PatchedModel) -> Model:
    """Return the model with the front in patches, and print what the patches save.

    The remark of the model, a part of the answer, tells patches that save nothing.
    """
    if choice.has_saving:
        error_console.print(Text(choice.words), soft_wrap=True)
    return choice.model_with_remark


BOUND_NOTE = "No less than: a lower bound for programs in this order: each node at its place, plus recomputed nodes."

OUTCOME_WORDS = {SearchOutcome.FITS: "", SearchOutcome.NOT_FOUND: "not found", SearchOutcome.IMPOSSIBLE: "impossible"}


def fit_by_recomputation(source: Model, options: Options, budget: int | None, *, measure: bool) -> Model:
    """Return the model, with values recomputed if the plain plan exceeds the budget, and print the choice.

    Without a `budget`, the capacity of the first region is the budget. Raises PlanError without either, and
    CapacityError with the reason if no program fits, or if none was found.
    """
    if budget is None and options.regions:
        budget = options.regions[0].capacity
    if budget is None:
        raise PlanError("--recompute fits a plan into a budget: add --budget BYTES")
    with budget_progress() as show_budget:
        show_budget(budget)
        answer = search_budget(source, options, measure=measure).best_within(budget)
    if answer.outcome is not SearchOutcome.FITS:
        raise CapacityError(answer.words)
    error_console.print(Text(answer.words), soft_wrap=True)
    return answer.program.model


OutputPaths = tuple[Path | None, Path | None, Path | None]
"""The paths of the plan file, the page and the picture."""


def show_frontier(source: Model, options: Options, files: OutputPaths, *, measure: bool, in_json: bool) -> None:
    """Print the trade-off curve of bytes and seconds, from the plain plan downwards; write all plans to a given page.

    Raises PlanError for a plan file or a picture file: both hold one plan only.
    """
    out, page, png = files
    if out is not None or png is not None:
        raise PlanError(
            "--frontier makes many plans, but --out and --png hold one: use --html, or --budget --recompute"
        )
    with budget_progress() as show_budget:
        budgets = search_budget(source, options, measure=measure)
        arena = budgets.plain.nbytes
        results = budgets.frontier([arena * percent // 100 for percent in FRONTIER_PERCENTS], show_budget)
    if page is not None:
        curve, (first, *others) = frontier_of(results)
        write_html(first, page, others, curve)
    if in_json:
        print_json(frontier_json(results))
        return
    table = plain_table()
    last = "brought back" if options.regions else "no less than"
    for title in ("budget", "arena", "of plain", "in pieces", "recomputed", "extra time", last):
        table.add_column(title, justify="right")
    for answer in results:
        nbytes = answer.program.nbytes
        least = "" if answer.least_extra_time is None else f"{answer.least_extra_time:+.1%}"
        least = str(answer.program.reload_count) if options.regions else least
        counts = str(answer.program.split_count), str(answer.program.recompute_count)
        row = (human(nbytes), f"{nbytes / arena:.1%}", *counts, f"{answer.extra_time:+.1%}", least)
        shown = row if answer.outcome is SearchOutcome.FITS else (OUTCOME_WORDS[answer.outcome], "", "", "", "", "")
        table.add_row(human(answer.budget), *shown)
    offloaded = _max_offloaded_bytes(results)
    bound = f"No transfer is counted as overlapped with computation; at most {offloaded} bytes are offloaded."
    words = f"Time is predicted {budgets.costs}. {bound if options.regions else BOUND_NOTE}"
    answer_console().print(table, Text(), Text(words), Text(_describe_smallest(results[-1])))


def _max_offloaded_bytes(results: tuple[BudgetResult, ...]) -> str:
    """Return the most bytes in the slow memory over all points, as text."""
    return f"{max(answer.program.slow_bytes for answer in results):,}"


def _describe_smallest(last: BudgetResult) -> str:
    """Return a sentence on the smallest budget: the bytes needed at least, or the fewest bytes found."""
    words = last.bound_in_words
    return f"The smallest program found needs {last.program.nbytes:,} bytes. {words[:1].upper()}{words[1:]}."


def frontier_json(results: tuple[BudgetResult, ...]) -> dict[str, Any]:
    """Return the curve as a JSON object. Seconds are predicted."""
    plain, floor = results[0].plain, results[0].floor
    return {
        "graph": plain.model.graph.name,
        "plain": {"arena_bytes": plain.nbytes, "seconds": plain.seconds},
        "floor": {"bytes": floor.nbytes, "node": floor.node, "values": dict(floor.values), "words": floor.description},
        "costs": results[0].cost_source,
        "points": [
            {
                "budget": answer.budget,
                "outcome": answer.outcome.value,
                "arena_bytes": answer.program.nbytes,
                "seconds": answer.program.seconds,
                "extra": answer.extra_time,
                "least_extra": answer.least_extra_time,
                "in_pieces": answer.program.split_count,
                "computed_again": answer.program.recompute_count,
                "brought_back": answer.program.reload_count,
                "away_bytes": answer.program.slow_bytes,
            }
            for answer in results
        ],
    }
