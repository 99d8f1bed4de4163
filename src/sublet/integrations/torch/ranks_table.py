"""The output of `sublet plan --ranks`: the arena of each rank, the largest arena, and its distance from the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer
from rich.text import Text

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.base.formatting import human, parse_bytes
from sublet.cli.console import answer_console, print_json
from sublet.integrations.torch.ranks import RankPlans, load_build_function, rank_plans
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
