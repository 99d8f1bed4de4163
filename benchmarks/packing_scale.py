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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

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


@dataclass(frozen=True)
class Cost:
    """Of packing one problem in a process of its own. `kibibytes` is what it held at most, beyond the problem."""

    arena: int
    gap: float
    won: str
    seconds: float
    kibibytes: int


def cost(count: int) -> Cost:
    problem = random_problem(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    report = pack(problem)
    seconds = time.monotonic() - began
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Cost(report.packing.arena_bytes, report.gap, report.packing.strategy, seconds, held)


def exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of a line through the upper half of the points, in logarithms."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(costs[half:], 1e-9)), 1)[0])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--most", type=int, default=1_000_000)
    sizes = [10**power for power in range(2, 7) if 10**power <= arguments.parse_args().most]
    table = Table(title="Scale: auto on random problems")
    for heading in ("n", "arena", "gap", "won by", "seconds", "peak memory", "bytes a buffer"):
        table.add_column(heading, justify="right")
    costs = []
    for count in sizes:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            one = pool.submit(cost, count).result()
        costs.append(one)
        memory = (f"{one.kibibytes / 1024:.0f} MiB", f"{one.kibibytes * 1024 // count:,}")
        table.add_row(f"{count:,}", f"{one.arena:,}", f"{one.gap:.2%}", one.won, f"{one.seconds:.2f}", *memory)
    console = Console(width=120)
    console.print(
        f"{platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, numpy {np.__version__}"
    )
    console.print(table)
    if len(sizes) > 2:
        time_grows = exponent(sizes, [one.seconds for one in costs])
        memory_grows = exponent(sizes, [float(one.kibibytes) for one in costs])
        console.print(f"seconds grow as n^{time_grows:.2f}, memory as n^{memory_grows:.2f}")


if __name__ == "__main__":
    main()
