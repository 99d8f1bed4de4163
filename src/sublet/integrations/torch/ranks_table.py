"""The output of `sublet plan --ranks` and `sublet plan --train`: a table of ranks, or the estimate of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.text import Text

from sublet.analysis.options import Options
from sublet.base.errors import ModelError, PlanError, SubletError
from sublet.base.formatting import human, parse_bytes
from sublet.cli.console import answer_console, print_json
from sublet.integrations.torch.estimate import Estimate, estimate, frontier
from sublet.integrations.torch.ranks import RankPlans, load_build_function, rank_plans
from sublet.integrations.torch.reader.exported_program import error_summary
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.ir.recipe import LESS
from sublet.viz.summary import plain_table


def show_ranks(
    function_path: Path,
    count: int,
    options: Options,
    device: str,
    budget: str | None,
    in_json: bool,
    files: Sequence[Path | None],
) -> NoReturn:
    """Plan all ranks, print the table, and exit.

    Exit status: 0 all ranks fit, 1 a rank needs more than the budget, 3 unknown because some graph has no plan. Raises
    PlanError if `files` names an output file.
    """
    if any(files):
        raise PlanError("--ranks prints a table of many plans: no --out, --html or --png")
    budget_bytes = None if budget is None else parse_bytes(budget)
    as_compiled = replace(options, order=LESS)  # the order used for torch.compile
    rank_results = rank_plans(load_build_function(str(function_path)), count, as_compiled, device)
    if in_json:
        print_json(
            {
                "arena_bytes": rank_results.arena_bytes,
                "imbalance": rank_results.imbalance,
                "ranks": [
                    {
                        "rank": each.rank, "arena_bytes": each.arena_bytes, "weight_bytes": each.weights,
                        "graphs": [0 if graph.plan is None else graph.plan.arena_bytes for graph in each.graphs],
                        "not_planned": list(each.left),
                    }
                    for each in rank_results.ranks
                ],
            }
        )  # fmt: skip
    else:
        _print_ranks(rank_results, budget_bytes)
    above = budget_bytes is not None and rank_results.arena_bytes > budget_bytes
    raise typer.Exit(1 if above else 3 if any(each.left for each in rank_results.ranks) else 0)


def _print_ranks(rank_results: RankPlans, budget_bytes: int | None) -> None:
    """Print the table, the largest arena, and the graphs without a plan."""
    table = plain_table()
    for title in ("rank", "arena", "graphs", "weights"):
        table.add_column(title, justify="right")
    for each in rank_results.ranks:
        count = str(len(each.graphs) - len(each.left))
        table.add_row(str(each.rank), human(each.arena_bytes), count, human(each.weights))
    answer_console().print(table)
    answer_console().print(
        Text(f"largest {human(rank_results.arena_bytes)}, {rank_results.imbalance:.1%} above the mean")
    )
    if budget_bytes is not None and rank_results.arena_bytes > budget_bytes:
        answer_console().print(Text(f"more than the budget of {human(budget_bytes)}", "red"))
    for each in rank_results.ranks:
        for why in each.left:
            answer_console().print(Text(f"rank {each.rank}: a graph has no plan and is not counted: {why}", "yellow"))


def show_step(
    function_path: Path,
    device: str,
    budget: str | None,
    with_frontier: bool,
    in_json: bool,
    files: Sequence[Path | None],
) -> NoReturn:
    """Estimate the memory of a step built by a script, print the estimate or the frontier, and exit.

    Exit status: 0 Sublet's step fits, 1 no program within the budget is known, 3 unknown because a graph has no plan.
    Raises ModelError for a function without the parts of a step, and PlanError for an output file of another command.
    """
    out, page, png = files
    if out is not None or png is not None or (page is not None and not with_frontier):
        raise PlanError("--train writes no plan: of --out, --html and --png only --html, with --frontier")
    parts = _built_step(str(function_path), device)
    if with_frontier:
        curve = frontier(*parts)
        if page is not None:
            curve.write_html(page)
        print_json({"rows": curve.rows, "outside_bytes": curve.outside}) if in_json else answer_console().print(
            Text(str(curve))
        )
        raise typer.Exit(0)
    found = estimate(*parts, memory=budget)
    print_json(_estimate_json(found)) if in_json else answer_console().print(Text(str(found)))
    raise typer.Exit(3 if found.sublet is None else 1 if found.fits is False else 0)


def _built_step(place: str, device: str) -> tuple[Any, ...]:
    """Return module, loss, optimizer, inputs and, if given, targets of the step that a script builds."""
    build: Any = load_build_function(place)
    try:
        with torch().device(device):
            parts = tuple(build())
    except SubletError:
        raise
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"{place}: {error_summary(error)}") from error
    if len(parts) not in (4, 5):
        raise ModelError(f"{place} returns {len(parts)} parts: expected module, loss, optimizer, inputs[, targets]")
    return parts


def _estimate_json(found: Estimate) -> dict[str, Any]:
    """Return an estimate as a JSON object; bytes."""

    def need(each: Any) -> Any:
        return each and {name: getattr(each, name) for name in ("peak_bytes", "arena_bytes", "extra_time", "words")}

    eager = {**asdict(found.eager), "live": [asdict(each) for each in found.eager.live]}
    return {
        "eager": eager, "sublet": need(found.sublet), "budgeted": need(found.budgeted), "memory": found.memory,
        "fits": found.fits, "reason": found.reason,
    }  # fmt: skip
