"""Training steps within budgets: what a smaller arena costs, predicted and measured, beside equal checkpoints.

Every point is a plan that the checker has proven. Predicted seconds come from a model of operations and bytes; measured
ones from runs that take turns with the plain program, whose losses and state must be the same bits where no node is in
pieces, and else are told apart by the largest difference of a loss.
`sqrt(n)` is the best of checkpoints in 2 to 32 stretches alone: the least that they reach, and what it costs.

    make bench-budget      (or: python -m benchmarks.budget_table [--only NAME] [--batch N] [--rounds N])
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time

import numpy as np
from rich.console import Console
from rich.table import Table

import sublet
from benchmarks.train_steps import Step, training_step
from sublet.planning.budget.answers import Answer, Outcome
from sublet.planning.budget.within import Budgets

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
PERCENT = (80, 70, 60, 50, 40, 30, 25, 20)
TIMED = (("ResNet-50", 8), ("EfficientNet-B0", 8))
"""Smaller batches: a round of all points takes minutes on two cores."""


def row(name: str, batch: int) -> tuple[str, ...]:
    """One line of the table of what is predicted."""
    step = training_step(name, batch)
    began = perf_counter()
    budgets = Budgets(step.model)
    plain = budgets.plain.plan.arena_bytes
    found = budgets.frontier([plain * percent // 100 for percent in PERCENT])
    took = perf_counter() - began
    lowest = min(point.plan.arena_bytes for point in budgets.points.values())
    stretches = min(budgets.search.segmented(), key=lambda each: (each.peak, each.seconds))
    return (
        name,
        str(batch),
        f"{len(step.model.graph.nodes):,}",
        f"{plain:,}",
        *(_said(answer) for answer in found),
        f"{lowest / plain:.1%}",
        f"{budgets.floor.nbytes / plain:.1%} {budgets.floor.node}",
        f"{stretches.peak / plain:.1%} at {stretches.seconds / budgets.plain.seconds - 1:+.1%}",
        f"{took:.0f}",
    )


def _said(answer: Answer) -> str:
    if answer.outcome is Outcome.FITS:
        return f"{answer.extra:+.1%}"
    return "impossible" if answer.outcome is Outcome.IMPOSSIBLE else "not found"


def timed_rows(
    name: str, batch: int, rounds: int, percents: Sequence[int], clock: Callable[[], float]
) -> list[tuple[str, ...]]:
    """Lines of the table of what is measured: the plain program and each point run in turns."""
    step = training_step(name, batch)
    budgets = Budgets(step.model)
    plain = budgets.plain.plan.arena_bytes
    found = budgets.frontier([plain * percent // 100 for percent in percents])
    fitting = [answer for answer in found if answer.outcome is Outcome.FITS and answer.point.changed]
    base = sublet.compile(step.model)
    lines = []
    for answer in fitting:
        seconds, same, apart = taking_turns(step, base, sublet.compile(answer.point.model), rounds, clock)
        lines.append(
            (
                name,
                str(batch),
                f"{answer.point.plan.arena_bytes / plain:.1%}",
                f"{answer.extra:+.1%}",
                f"{seconds[1] / seconds[0] - 1:+.1%}",
                f"{seconds[0]:.3f}",
                "yes" if same else f"in pieces: losses within {apart:.0e}" if answer.point.split else "NO",
            )
        )
    return lines


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
    asked.add_argument("--percents", type=int, nargs="+", default=PERCENT, help="the points that are timed")
    asked.add_argument("--processor", action="store_true", help="seconds of the processor, where others compute too")
    asked.add_argument("--no-prediction", action="store_true", help="only what is measured")
    chosen = asked.parse_args()
    console = Console(width=260)

    def wanted(networks: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        if chosen.only is None:
            return list(networks)
        return [(chosen.only, chosen.batch or dict(NETWORKS).get(chosen.only, 8))]

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
        for name, batch in wanted(TIMED):
            clock = process_time if chosen.processor else perf_counter
            for line in timed_rows(name, batch, chosen.rounds, chosen.percents, clock):
                table.add_row(*line)
        console.print(table)


if __name__ == "__main__":
    main()
