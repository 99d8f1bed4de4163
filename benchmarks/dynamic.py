"""The dynamic graph beside PyTorch's eager mode, and a remembered step beside the static one.

make bench-dynamic     (or: python -m benchmarks.dynamic [--rounds N] [--batch N])

Times are the process's own, the least of some rounds in which what is compared takes turns; told are ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import sublet
from benchmarks.digits import MOMENTUM, RATE, digits, training
from benchmarks.networks.vision import small_resnet
from sublet import nn

LENGTH = 1000


def times(rounds: int, *ways: Callable[[], Any]) -> list[float]:
    """The least seconds that each way takes."""
    best = [float("inf")] * len(ways)
    for way in ways:
        way()
    for _ in range(rounds):
        for i, way in enumerate(ways):
            begin = time.process_time()
            way()
            best[i] = min(best[i], time.process_time() - begin)
    return best


def chain(x: Any) -> Any:
    """LENGTH commands on a small tensor."""
    h = x
    for _ in range(LENGTH // 2):
        h = h * 0.5 + x
    return h


def small_commands(rounds: int) -> list[tuple[str, float, str]]:
    """Commands at once beside PyTorch's, and what it costs to compare one with what was seen."""
    d = sublet.DynamicGraph()
    array = np.ones((16, 16), np.float32)
    x, plain, recorded = d.tensor(array), torch.tensor(array), torch.tensor(array, requires_grad=True)

    def unrecorded() -> None:
        with d.no_grad():
            chain(x)

    remembered = d.jit(chain)

    def stopped(x: Any) -> None:
        chain(x)
        raise KeyboardInterrupt  # so that nothing is computed

    replayed = d.jit(stopped)
    replayed.root = remembered.root
    remembered(x)

    def replay() -> None:
        with suppress(KeyboardInterrupt):
            replayed(x)

    found = times(rounds, lambda: chain(x), lambda: chain(recorded), unrecorded, lambda: chain(plain), replay)
    own, theirs, own_plain, theirs_plain, compared = (seconds / LENGTH * 1e6 for seconds in found)
    return [
        (f"{LENGTH} small commands, recorded", own / theirs, f"{own:.1f} us a command, PyTorch {theirs:.1f}"),
        (
            f"{LENGTH} small commands, no gradient",
            own_plain / theirs_plain,
            f"{own_plain:.1f} us, PyTorch {theirs_plain:.1f}",
        ),
        ("a command replayed, not computed", compared / own, f"{compared:.1f} us"),
    ]


def steps(rounds: int, batch: int) -> list[tuple[str, float, str]]:
    """A training step that is remembered beside the same one as a static graph."""
    static = sublet.compile(training(batch).model)
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, labels: Any) -> Any:
        loss = nn.softmax_cross_entropy(small_resnet(x), labels)[0].mean()
        d.minimize(loss, sublet.SGD(RATE, momentum=MOMENTUM))
        return loss

    given = next(digits().batches(batch, 0))
    own = times(
        rounds, lambda: float(step(d.tensor(given["x"]), d.tensor(given["labels"]))), lambda: static(given)["loss"]
    )
    arenas = f"arenas {step.arena_bytes:,} and {static.arena_bytes:,} bytes, {step.planned} plan"
    return [(f"a remembered step of a small ResNet, batch {batch}", own[0] / own[1], arenas)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("what", "ratio", "", title="the dynamic graph")
    for what, ratio, more in (*small_commands(chosen.rounds), *steps(chosen.rounds, chosen.batch)):
        table.add_row(what, f"{ratio:.2f}", more)
    Console().print(table)


if __name__ == "__main__":
    main()
