"""Training steps in less memory: Sublet's budgets beside PyTorch's `activation_memory_budget` and its checkpoints.

The same network on the same machine, forward and backward, in f32. PyTorch computes it by `torch.compile` with
`aot_eager`, whose partitioner the budget tells what to keep, and eagerly in sqrt(n) checkpointed stretches of its n
operators. Its bytes are the most that its allocator holds in a step more than before it, Sublet's are its arena:
activations and gradients in both, inputs, weights and the optimiser's state in neither. A budget of Sublet's is asked
for at the bytes of each way of PyTorch's. Seconds are of whole steps, updates included, each way in turns with Sublet's
plain step and its step within as many bytes.

    python -m benchmarks.budget_beside_torch [--only NAME] [--batch N] [--rounds N] [--processor]
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from statistics import median
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table
from torch._functorch import config

import sublet
from benchmarks import eager
from benchmarks.train_steps import Step, eager_training, stepped, training_step
from benchmarks.train_table import OPTIONS, eager_peak
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.planning.budget.result import BudgetResult, SearchOutcome
from sublet.planning.budget.search import BudgetSearch

NETWORKS = (("ResNet-50", 4), ("VGG-16", 4), ("DenseNet-121", 4), ("EfficientNet-B0", 4), ("GPT-2 small", 4))
SHARES = (1.0, 0.5, 0.3, 0.0)
"""Of the activations that PyTorch's partitioner keeps; 1 is what it does unasked."""

UNASKED = "budget 1"

Run = Callable[[], float]


def torch_ways(step: Step, shares: Sequence[float]) -> Iterator[tuple[str, Run]]:
    """Names of PyTorch's ways, and what takes a step each; the weights are those of all ways."""
    weights, optimiser = eager_training(step)
    given = {**weights, **eager.tensors(step.inputs())}

    def stepping(loss_of: Callable[[], torch.Tensor]) -> Run:
        return lambda: stepped(optimiser, loss_of)

    yield "eager", stepping(lambda: eager.run(step.forward, given)[step.forward.outputs[0].name])
    count = isqrt(len(step.forward.nodes))
    yield f"{count} checkpoints", stepping(lambda: eager.checkpointed(step.forward, given, count))
    for share in shares:
        yield f"budget {share:g}", stepping(_compiled(step.forward, given, share))


def _compiled(forward: Graph, given: Mapping[str, torch.Tensor], share: float) -> Callable[[], torch.Tensor]:
    """A module of its own, compiled here and now: the partitioner reads its budget then."""
    module, names = eager.traced(forward)
    operands = [given[name] for name in names]
    compiled = torch.compile(module, backend="aot_eager")
    with config.patch(activation_memory_budget=share):
        compiled(*operands)
    return lambda: compiled(*operands)


@dataclass(frozen=True)
class Line:
    """A way of PyTorch's, and what Sublet gives within its bytes; seconds beside those of Sublet's plain step."""

    way: str
    run: Run
    peak: int
    answer: BudgetResult

    @property
    def fits(self) -> bool:
        return self.answer.outcome is SearchOutcome.FITS

    def timed(self, step: Step, plain: Run, rounds: int, clock: Callable[[], float]) -> list[float]:
        """Median seconds of the plain step, PyTorch's, and Sublet's in as many bytes, in turns."""
        ours = [planned(step, self.answer.program.model)] if self.fits else []
        seconds: list[list[float]] = [[] for _ in (plain, self.run, *ours)]
        for _ in range(rounds + 1):
            for run, found in zip((plain, self.run, *ours), seconds, strict=True):
                began = clock()
                run()
                found.append(clock() - began)
        return [median(found[1:]) for found in seconds]


def planned(step: Step, model: Model) -> Run:
    """A step of Sublet's."""
    executable, inputs = sublet.compile(model, options=OPTIONS), step.inputs()
    return lambda: executable.views(inputs)["loss"].item()


def lines(step: Step, shares: Sequence[float]) -> tuple[BudgetSearch, list[Line]]:
    """The ways of PyTorch's, each with its bytes and Sublet's answer to them."""
    ways = list(torch_ways(step, shares))
    peaks = [eager_peak(run) for _, run in ways]
    budgets = BudgetSearch(step.model, OPTIONS)
    found = {answer.budget: answer for answer in budgets.frontier(peaks)}
    return budgets, [Line(way, run, peak, found[peak]) for (way, run), peak in zip(ways, peaks, strict=True)]


def show(
    console: Console, name: str, batch: int, shares: Sequence[float], rounds: int, clock: Callable[[], float]
) -> None:
    """The table of one network."""
    step = training_step(name, batch)
    budgets, found = lines(step, shares)
    unasked = next(line for line in found if line.way == UNASKED)
    table = Table(title=f"{name}, batch {batch}: Sublet's plain arena {budgets.plain.nbytes:,} bytes")
    for title in (
        "PyTorch",
        "bytes",
        "of its plain",
        "seconds, of Sublet's plain",
        "Sublet within these bytes",
        "predicted",
        "seconds",
    ):
        table.add_column(title, justify="right")
    plain = planned(step, budgets.plain.model) if rounds else None
    for line in found:
        seconds = line.timed(step, plain, rounds, clock) if plain else []
        shown = [f"{each / seconds[0]:.3f}" for each in seconds[1:]]
        theirs, ours, *_ = *shown, "", ""
        arena = f"{line.answer.program.nbytes:,}" if line.fits else line.answer.outcome.value
        extra = f"{line.answer.extra_time:+.1%}" if line.fits else ""
        table.add_row(line.way, f"{line.peak:,}", f"{line.peak / unasked.peak:.1%}", theirs, arena, extra, ours)
    console.print(table)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", help="one network")
    asked.add_argument("--batch", type=int, help="its batch")
    asked.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of PyTorch's budgets, beside 1")
    asked.add_argument("--rounds", type=int, default=3, help="runs of each way; 0 measures no time")
    asked.add_argument("--processor", action="store_true", help="seconds of the processor, where others compute too")
    chosen = asked.parse_args()
    console = Console(width=160)
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    for name, batch in NETWORKS:
        if chosen.only in (None, name):
            clock = process_time if chosen.processor else perf_counter
            shares = sorted({1.0, *chosen.shares}, reverse=True)
            show(console, name, chosen.batch or batch, shares, chosen.rounds, clock)


if __name__ == "__main__":
    main()
