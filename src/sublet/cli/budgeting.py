"""The options `--recompute` and `--frontier` of `sublet plan`: fit a budget, or weigh bytes against time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.measuring import measured
from sublet.base.bytesize import human
from sublet.base.errors import CapacityError, PlanError
from sublet.cli.console import answers, budget_progress, errors, print_json
from sublet.ir.model import Model
from sublet.planning.budget.answers import Answer, Outcome
from sublet.planning.budget.costs import MODELLED
from sublet.planning.budget.within import Budgets
from sublet.viz.frontier import frontier_of
from sublet.viz.page import write_html
from sublet.viz.tables import plain_table

PERCENT = (100, 90, 80, 70, 60, 50, 40, 30, 25, 20)
"""The budgets of the curve, in percent of the plain arena."""

BOUND = "No less than: a bound for programs in this order in which every node runs where it stands, and clones besides."

SAYS = {Outcome.FITS: "", Outcome.NOT_FOUND: "not found", Outcome.IMPOSSIBLE: "impossible"}


def recomputing(source: Model, options: Options, budget: int | None, *, measure: bool) -> Model:
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
        answer = _budgets(source, options, measure=measure).within(budget)
    if answer.outcome is not Outcome.FITS:
        raise CapacityError(answer.words)
    errors.print(Text(answer.words), soft_wrap=True)
    return answer.point.model


def _budgets(source: Model, options: Options, *, measure: bool) -> Budgets:
    seconds, costs = measured(source) if measure else (None, MODELLED)
    return Budgets(source, options, seconds, costs)


Files = tuple[Path | None, Path | None, Path | None]
"""The paths of the plan file, the page and the picture."""


def show_frontier(source: Model, options: Options, files: Files, *, measure: bool, in_json: bool) -> None:
    """Print the trade-off curve of bytes and seconds, from the plain plan downwards; write all plans to a given page.

    Raises PlanError for a plan file or a picture file: both hold one plan only.
    """
    out, page, png = files
    if out is not None or png is not None:
        raise PlanError("--frontier tells of many plans, --out and --png of one: use --html, or --budget --recompute")
    with budget_progress() as show_budget:
        budgets = _budgets(source, options, measure=measure)
        arena = budgets.plain.nbytes
        results = budgets.frontier([arena * percent // 100 for percent in PERCENT], show_budget)
    if page is not None:
        curve, (first, *others) = frontier_of(results)
        write_html(first, page, others, curve)
    if in_json:
        print_json(frontier_json(budgets, results))
        return
    table = plain_table()
    last = "brought back" if options.regions else "no less than"
    for title in ("budget", "arena", "of plain", "in pieces", "computed again", "extra time", last):
        table.add_column(title, justify="right")
    for answer in results:
        nbytes = answer.point.nbytes
        least = "" if answer.least_extra is None else f"{answer.least_extra:+.1%}"
        least = str(answer.point.brought_back) if options.regions else least
        counts = str(answer.point.split), str(answer.point.again)
        row = (human(nbytes), f"{nbytes / arena:.1%}", *counts, f"{answer.extra:+.1%}", least)
        shown = row if answer.outcome is Outcome.FITS else (SAYS[answer.outcome], "", "", "", "", "")
        table.add_row(human(answer.budget), *shown)
    bound = f"No transfer is counted as hidden behind others' work; at most {_away(results)} bytes are away."
    words = f"Time is predicted {budgets.costs}. {bound if options.regions else BOUND}"
    answers().print(table, Text(), Text(words), Text(_least(results[-1])))


def _away(found: tuple[Answer, ...]) -> str:
    """Return the most bytes in the slow memory over all points, as text."""
    return f"{max(answer.point.away for answer in found):,}"


def _least(last: Answer) -> str:
    """Return a sentence on the smallest budget: the bytes needed at least, or the fewest bytes found."""
    words = last.claim
    return f"The least found needs {last.point.nbytes:,} bytes. {words[:1].upper()}{words[1:]}."


def frontier_json(budgets: Budgets, found: tuple[Answer, ...]) -> dict[str, Any]:
    """Return the curve as a JSON object. Seconds are predicted."""
    floor = budgets.floor
    return {
        "graph": budgets.model.graph.name,
        "plain": {"arena_bytes": budgets.plain.nbytes, "seconds": budgets.plain.seconds},
        "floor": {"bytes": floor.nbytes, "node": floor.node, "values": dict(floor.values), "words": floor.words},
        "costs": budgets.costs,
        "points": [
            {
                "budget": answer.budget,
                "outcome": answer.outcome.value,
                "arena_bytes": answer.point.nbytes,
                "seconds": answer.point.seconds,
                "extra": answer.extra,
                "least_extra": answer.least_extra,
                "in_pieces": answer.point.split,
                "computed_again": answer.point.again,
                "brought_back": answer.point.brought_back,
                "away_bytes": answer.point.away,
            }
            for answer in found
        ],
    }
