"""How packing scales: random problems of 10^2 to 10^6 buffers, seconds, memory and gap, with fitted exponents.

make bench-packing        (or: python -m benchmarks.packing_scale [--most 1000000])
"""

from __future__ import annotations

import argparse
import platform
import random
import resource
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from sublet.packing import Buffer, Problem, pack

LIVE = 100
"""Buffers alive at a time, on average."""


def random_problem(count: int, seed: int = 0) -> Problem:
    """Sizes over six orders of magnitude, births uniform in time, lives so long that LIVE overlap."""
    rng = random.Random(seed)
    buffers = []
    for i in range(count):
        begin = rng.randrange(10 * count)
        life = 1 + rng.randrange(20 * LIVE)
        buffers.append(Buffer(str(i), int(2 ** rng.uniform(4, 24)), begin, begin + life))
    return Problem(tuple(buffers))


def exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of a line through the upper half of the points, in logarithms."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)[0])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--most", type=int, default=1_000_000)
    most = arguments.parse_args().most
    table = Table(title="Scale: auto on random problems")
    for heading in ("n", "arena", "gap", "won by", "seconds", "peak memory"):
        table.add_column(heading, justify="right")
    sizes, costs = [], []
    for power in range(2, 7):
        count = 10**power
        if count > most:
            break
        problem = random_problem(count)
        began = time.monotonic()
        report = pack(problem)
        seconds = time.monotonic() - began
        sizes.append(count)
        costs.append(seconds)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        arena, won = f"{report.packing.arena_bytes:,}", report.packing.strategy
        table.add_row(f"{count:,}", arena, f"{report.gap:.2%}", won, f"{seconds:.2f}", f"{memory} MiB")
    console = Console(width=120)
    console.print(
        f"{platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, numpy {np.__version__}"
    )
    console.print(table)
    if len(sizes) > 2:
        console.print(f"seconds grow as n^{exponent(sizes, costs):.2f}")


if __name__ == "__main__":
    main()
