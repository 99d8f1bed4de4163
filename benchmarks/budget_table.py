"""Training steps within budgets: what a smaller arena costs, predicted and measured, beside equal checkpoints.

Every point is a plan that the checker has proven. Predicted seconds come from a model of operations and bytes, or with
`--measure` from what each node takes here; measured ones from runs that take turns with the plain program, whose losses
and state must be the same bits where no node is in pieces, and else are told apart by the largest difference of a loss.
What is timed has smaller batches. The mean of each share is geometric, of the ratios to the plain step.
In brackets stands how many times the bound an extra time is.
`sqrt(n)` is the best of checkpoints in 2 to 32 stretches alone: the least that they reach, and what it costs.

    make bench-budget      (or: python -m benchmarks.budget_table [--only NAME] [--batch N] [--rounds N] [--measure])
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import sublet
from benchmarks.results import Row, exact_row
from benchmarks.train_steps import Step, training_step
from sublet.api.advising import measure_node_seconds
from sublet.planning.budget.cost_model import MODELLED_COSTS
from sublet.planning.budget.result import BudgetResult, SearchOutcome
from sublet.planning.budget.search import BudgetSearch

NETWORKS = (
    ("ResNet-50", 32),
    ("VGG-16", 32),
    ("GPT-2 small", 4),
    ("EfficientNet-B0", 32),
    ("DenseNet-121", 32),
    ("U-Net", 8),
    ("ResNet-50 v1d", 32),
    ("Transformer", 64),
    ("LSTM, 256 steps", 16),
)
OF_PLAIN = "of the plain step's time"
PERCENT = (90, 80, 70, 60, 50, 40, 35, 30, 25, 20)
TIMED = (
    ("ResNet-50", 8),
    ("VGG-16", 8),
    ("DenseNet-121", 8),
    ("EfficientNet-B0", 8),
    ("U-Net", 2),
    ("GPT-2 small", 4),
    ("LSTM, 256 steps", 16),
)
TIMED_PERCENT = (50, 30)
"""Smaller batches and fewer points: a round of all takes minutes on two cores."""


def row(name: str, batch: int) -> tuple[str, ...]:
    """One line of the table of what is predicted."""
    step = training_step(name, batch)
    began = perf_counter()
    budgets = BudgetSearch(step.model)
    plain = budgets.plain.plan.arena_bytes
    found = budgets.frontier([plain * percent // 100 for percent in PERCENT])
    took = perf_counter() - began
    lowest = min(point.plan.arena_bytes for point in budgets.programs.values())
    stretches = min(budgets.search.checkpoint_solutions(), key=lambda each: (each.peak, each.seconds))
    return (
        name,
        str(batch),
        f"{len(step.model.graph.nodes):,}",
        f"{plain:,}",
        *(_said(answer, budgets) for answer in found),
        f"{lowest / plain:.1%}",
        f"{budgets.floor.nbytes / plain:.1%} {budgets.floor.node}",
        f"{stretches.peak / plain:.1%} at {stretches.seconds / budgets.plain.seconds - 1:+.1%}",
        f"{took:.0f}",
    )


def result_rows(networks: Sequence[tuple[str, int]] = NETWORKS, percents: Sequence[int] = PERCENT) -> Iterator[Row]:
    """Yield the curves: predicted times over the plain step, by bytes of the arena; and equal segments."""
    for name, batch in networks:
        budgets = BudgetSearch(training_step(name, batch).model)
        plain = budgets.plain
        case = f"{name}, batch {batch}"
        yield exact_row(case, "Sublet", 1.0, OF_PLAIN, plain.plan.arena_bytes)
        for answer in budgets.frontier([plain.plan.arena_bytes * percent // 100 for percent in percents]):
            if answer.outcome is SearchOutcome.FITS:
                yield exact_row(case, "Sublet", 1 + answer.extra_time, OF_PLAIN, answer.program.plan.arena_bytes)
        for each in _least_by_peak(budgets.search.checkpoint_solutions()):
            yield exact_row(case, "equal segments", each.seconds / plain.seconds, OF_PLAIN, each.peak)


def _least_by_peak(solutions: Iterable[Any]) -> list[Any]:
    """Return the checkpoints that no others beat in both bytes and seconds, largest first."""
    kept: list[Any] = []
    for each in sorted(solutions, key=lambda each: (each.peak, each.seconds)):
        if not kept or each.seconds < kept[-1].seconds:
            kept.append(each)
    return kept[::-1]


def _said(answer: BudgetResult, budgets: BudgetSearch) -> str:
    """The extra time, and in brackets how often the bound it is: in pieces, both beyond the program in these pieces."""
    if answer.outcome is not SearchOutcome.FITS:
        return "impossible" if answer.outcome is SearchOutcome.IMPOSSIBLE else "not found"
    base = budgets.split_searches.get(answer.program.model.recipe.split, budgets).plain.seconds
    if answer.least_seconds is None or answer.least_seconds <= base:
        return f"{answer.extra_time:+.1%}"
    return f"{answer.extra_time:+.1%} ({(answer.program.seconds - base) / (answer.least_seconds - base):.2f})"


@dataclass(frozen=True)
class Timed:
    """One point of one network, run in turns with the plain program.

    percent  the share of the plain arena that was asked for
    ratio    seconds of a step, of the plain one's
    """

    percent: int
    ratio: float
    line: tuple[str, ...]


def timed(
    name: str, batch: int, rounds: int, percents: Sequence[int], clock: Callable[[], float], measure: bool
) -> Iterator[Timed]:
    """The points of one network."""
    step = training_step(name, batch)
    seconds, costs = measure_node_seconds(step.model) if measure else (None, MODELLED_COSTS)
    budgets = BudgetSearch(step.model, seconds=seconds, costs=costs)
    plain = budgets.plain.plan.arena_bytes
    found = {answer.budget: answer for answer in budgets.frontier([plain * percent // 100 for percent in percents])}
    base = sublet.compile(step.model)
    for percent in percents:
        answer = found[plain * percent // 100]
        if answer.outcome is not SearchOutcome.FITS:
            print(f"{name} within {percent} %: {answer.words}")
            continue
        other = sublet.compile(answer.program.model)
        (before, after), same, apart = taking_turns(step, base, other, rounds, clock)
        line = (
            name,
            str(batch),
            f"{answer.program.plan.arena_bytes / plain:.1%}",
            f"{answer.extra_time:+.1%}",
            f"{after / before - 1:+.1%}",
            f"{before:.3f}",
            "yes" if same else f"in pieces: losses within {apart:.0e}" if answer.program.split_count else "NO",
        )
        yield Timed(percent, after / before, line)


def taking_turns(
    step: Step, plain: sublet.Executable, other: sublet.Executable, rounds: int, clock: Callable[[], float]
) -> tuple[Sequence[float], bool, float]:
    """Median seconds of both, whether their losses and all that they leave are the same bits, and how far apart losses
    are, as a share."""
    inputs = step.inputs()
    for name in plain.updated:
        other.set_state(name, plain.state(name))
    seconds: tuple[list[float], list[float]] = ([], [])
    same, apart = True, 0.0
    for _ in range(rounds + 1):
        losses = []
        for executable, found in zip((plain, other), seconds, strict=True):
            began = clock()
            losses.append(executable.views(inputs)["loss"].item())
            found.append(clock() - began)
        same &= losses[0] == losses[1]
        apart = max(apart, abs(losses[1] / losses[0] - 1))
    same &= all(np.array_equal(plain.state(name), other.state(name)) for name in plain.updated)
    return [median(found[1:]) for found in seconds], same, apart


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", help="one network")
    asked.add_argument("--batch", type=int, help="its batch")
    asked.add_argument("--rounds", type=int, default=5, help="runs of each point; 0 measures nothing")
    asked.add_argument("--percents", type=int, nargs="+", default=TIMED_PERCENT, help="the points that are timed")
    asked.add_argument("--measure", action="store_true", help="search by seconds of each node that are measured here")
    asked.add_argument("--processor", action="store_true", help="seconds of the processor, where others compute too")
    asked.add_argument("--no-prediction", action="store_true", help="only what is measured")
    chosen = asked.parse_args()
    console = Console(width=260)

    def wanted(networks: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        if chosen.only is None:
            return list(networks)
        return [(chosen.only, chosen.batch or dict(networks).get(chosen.only, 8))]

    if not chosen.no_prediction:
        table = Table(title="Extra time predicted, by share of the plain arena")
        percents = [f"{percent} %" for percent in PERCENT]
        for title in ("network", "batch", "nodes", "plain arena", *percents, "least", "floor", "sqrt(n)", "seconds"):
            table.add_column(title)
        for name, batch in wanted(NETWORKS):
            table.add_row(*row(name, batch))
        console.print(table)
    if chosen.rounds:
        table = Table(title="Extra time measured")
        for title in ("network", "batch", "arena", "predicted", "measured", "plain, s", "same bits"):
            table.add_column(title)
        clock = process_time if chosen.processor else perf_counter
        found: list[Timed] = []
        for name, batch in wanted(TIMED):
            for point in timed(name, batch, chosen.rounds, chosen.percents, clock, chosen.measure):
                print(*point.line, flush=True)
                table.add_row(*point.line)
                found.append(point)
        console.print(table)
        for percent in chosen.percents:
            ratios = [point.ratio for point in found if point.percent == percent]
            if ratios:
                console.print(f"{percent} %: {geometric_mean(ratios) - 1:+.1%} of {len(ratios)} networks")


if __name__ == "__main__":
    main()
