"""Training steps of well-known networks: remembered, as a static graph, and as PyTorch takes them eagerly.

    python -m benchmarks.dynamic_models [--only NAME] [--rounds N]

The three take turns; told are the least times of some rounds, as ratios.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Mapping, Sequence
from time import process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import sublet
from benchmarks.results import Row, round_rows
from benchmarks.train_steps import MOMENTUM, NETWORKS, RATE, eager_step, training_step

MODELS = {"ResNet-50": 8, "GPT-2 small": 4, "LSTM language model": 20}
"""The batches by the network."""


class Fed:
    """A dynamic graph as a network's writer sees it: an input is what is fed by its name."""

    def __init__(self, graph: sublet.DynamicGraph) -> None:
        self.graph = graph
        self.given: Mapping[str, Any] = {}

    def input(self, name: str, shape: Sequence[int] = (), dtype: str = "f32") -> Any:
        """A tensor with what is fed."""
        return self.graph.tensor(self.given[name], dtype)


def measured(name: str, batch: int, rounds: int) -> tuple[list[list[float]], Any, sublet.Executable]:
    """Seconds of remembered, static and eager steps by turns; the jit function and the static executable. The losses
    agree at first."""
    written = training_step(name, batch)
    inputs = written.inputs()
    theirs = eager_step(written, inputs)
    static = sublet.compile(written.model, backend=["torch", "reference"])
    d = sublet.DynamicGraph()
    fed = Fed(d)

    @d.jit
    def step() -> Any:
        loss = NETWORKS[name](fed, batch)  # type: ignore[arg-type]
        d.minimize(loss, sublet.SGD(RATE, momentum=MOMENTUM))
        return loss

    def remembered() -> float:
        fed.given = inputs
        return float(step())

    ways = (remembered, lambda: static(inputs)["loss"].item(), theirs)
    seconds: list[list[float]] = [[], [], []]
    for number in range(rounds + 2):
        losses = []
        for i, way in enumerate(ways):
            begin = process_time()
            losses.append(way())
            if number > 1:  # the first call is recorded, the second planned
                seconds[i].append(process_time() - begin)
        if number == 0:  # later rounding drives them apart
            np.testing.assert_allclose(losses, losses[0], rtol=1e-4)
        if number == 1:
            gc.collect()
    return seconds, step, static


def result_rows(only: Sequence[str] = tuple(MODELS), rounds: int = 8) -> Iterator[Row]:
    """Yield the seconds of the processor of the three kinds of steps."""
    for name in only:
        seconds = measured(name, MODELS[name], rounds)[0]
        sides = ("Sublet, jit function", "Sublet, static graph", "PyTorch eager")
        yield from round_rows(f"{name}, batch {MODELS[name]}", dict(zip(sides, seconds, strict=True)), "s")


def row(name: str, batch: int, rounds: int) -> tuple[str, ...]:
    """A line of the table."""
    seconds, step, static = measured(name, batch, rounds)
    ours, other, torchs = map(min, seconds)
    return (
        f"{name}, batch {batch}",
        f"{ours / other:.3f}",
        f"{ours / torchs:.3f}",
        f"{ours:.3f} {other:.3f} {torchs:.3f}",
        f"{step.arena_bytes:,}",
        f"{static.arena_bytes:,}",
        f"{step.planned}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    table = Table("step", "to static", "to PyTorch", "seconds of the three", "arena", "static's", "plans")
    for name, batch in MODELS.items():
        if chosen.only in name:
            table.add_row(*row(name, batch, chosen.rounds))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
