"""Training steps in a share of their memory: values computed again, beside values brought to a slow memory and back.

Predicted for a batch that does not matter to the clock, and measured for a smaller one: transfers then are copies that
take as long as the slow memory would need, and no shorter. All losses and what the steps leave must be the same bits.

    python -m benchmarks.offload [--only NAME] [--batch N] [--timed N] [--rate GB/s] [--rounds N] [--processor]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import sublet
from benchmarks.budget_table import taking_turns
from benchmarks.train_steps import training_step
from sublet.analysis.options import Options
from sublet.ir.graph import Node, Value
from sublet.ops.nn.conversion import OFFLOAD, RELOAD
from sublet.packing import MemoryRegion
from sublet.planning.budget.result import BudgetResult, SearchOutcome
from sublet.planning.budget.search import BudgetSearch, with_recomputation
from sublet.runtime.kernel import Array, Call, Kernel

PERCENT = (50, 30, 20)
LARGE = 1 << 50

Clock = Callable[[], float]


@dataclass(frozen=True)
class Throttled:
    """Copies of so many bytes a second, as a backend; a transfer waits for nothing and hides behind nothing."""

    rate: float
    clock: Clock
    name: str = "throttled"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """A copy for an offload or a reload."""
        return _Transfer(self.rate, self.clock) if node.op in (OFFLOAD, RELOAD) else None


@dataclass(frozen=True)
class _Transfer:
    rate: float
    clock: Clock
    scratch: int = 0

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Array | None) -> Call:
        source, to = inputs[0].reshape(-1).view(np.uint8), outputs[0].reshape(-1).view(np.uint8)
        least, clock = source.nbytes / self.rate, self.clock

        def run() -> None:
            begin = clock()
            np.copyto(to, source)
            while clock() - begin < least:
                pass

        return run


def slow(rate: int) -> Options:
    """With a memory that transfers alone touch."""
    return Options(regions=(MemoryRegion("fast", LARGE), MemoryRegion("slow", LARGE, rate=rate)))


def answers(model: Any, rate: int) -> tuple[BudgetSearch, list[BudgetResult], BudgetSearch, list[BudgetResult]]:
    """What both ways give for the shares of the plain arena."""
    again, away = BudgetSearch(model), BudgetSearch(model, slow(rate))
    shares = [again.plain.nbytes * percent // 100 for percent in PERCENT]
    return again, list(again.frontier(shares)), away, list(away.frontier(shares))


def rows(name: str, batch: int, rate: int) -> list[tuple[str, ...]]:
    """Lines of the table of what is predicted."""
    again, recomputed, _, brought = answers(training_step(name, batch).model, rate)
    return [
        (
            name,
            str(batch),
            f"{one.budget / again.plain.nbytes:.0%}",
            f"{one.extra_time:+.1%}" if one.outcome is SearchOutcome.FITS else one.outcome.value,
            f"{other.extra_time:+.1%}" if other.outcome is SearchOutcome.FITS else other.outcome.value,
            str(other.program.recompute_count),
            str(other.program.reload_count),
            f"{other.program.slow_bytes / 1e6:,.0f} MB",
        )
        for one, other in zip(recomputed, brought, strict=True)
    ]


def timed_rows(name: str, batch: int, rate: int, rounds: int, clock: Clock) -> list[tuple[str, ...]]:
    """Lines of the table of what is measured, each against the plain step in turns."""
    step = training_step(name, batch)
    plain, recomputed, _, brought = answers(step.model, rate)
    base, backend = sublet.compile(step.model), [Throttled(rate, clock), "torch"]
    lines = []
    for pair in zip(recomputed, brought, strict=True):
        cells = []
        for answer, options in zip(pair, (Options(), slow(rate)), strict=True):
            if answer.outcome is not SearchOutcome.FITS:
                cells += [answer.outcome.value, "", ""]
                continue
            model = with_recomputation(step.model, answer.program.model.recipe.again)
            less = sublet.compile(model, backend=backend, options=options)
            seconds, same, _ = taking_turns(step, base, less, rounds, clock)
            cells += [f"{answer.extra_time:+.1%}", f"{seconds[1] / seconds[0] - 1:+.1%}", "yes" if same else "NO"]
        lines.append((name, str(batch), f"{pair[0].budget / plain.plain.nbytes:.0%}", *cells))
    return lines


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="ResNet-50")
    asked.add_argument("--batch", type=int, default=32, help="of what is predicted; 0 predicts nothing")
    asked.add_argument("--timed", type=int, default=8, help="batch of what is measured; 0 measures nothing")
    asked.add_argument("--rate", type=float, default=10, help="of the slow memory, in GB/s")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--processor", action="store_true", help="seconds of the processor, where others compute too")
    chosen = asked.parse_args()
    console, rate = Console(width=200), int(chosen.rate * 1e9)
    if chosen.batch:
        table = Table(title=f"Extra time predicted, with a slow memory at {chosen.rate:g} GB/s")
        for title in ("network", "batch", "budget", "computed again", "with transfers", "nodes", "transfers", "away"):
            table.add_column(title, justify="right")
        for line in rows(chosen.only, chosen.batch, rate):
            table.add_row(*line)
        console.print(table)
    if chosen.timed:
        table = Table(title="Extra time predicted and measured")
        both = ("predicted", "measured", "same bits")
        for title in ("network", "batch", "budget", *(f"again, {w}" for w in both), *(f"away, {w}" for w in both)):
            table.add_column(title, justify="right")
        clock = process_time if chosen.processor else perf_counter
        for line in timed_rows(chosen.only, chosen.timed, rate, chosen.rounds, clock):
            table.add_row(*line)
        console.print(table)


if __name__ == "__main__":
    main()
