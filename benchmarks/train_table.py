"""Training steps: their arenas beside libnnc's and PyTorch's memory, and their time beside PyTorch's.

libnnc's figures were measured by running it (its arena holds activations, gradients and momentum; parameters
outside), so momentum is added to Sublet's arena here, where it lies beside the parameters. PyTorch's peak is what
its allocator hands out during one step, gradients included, without parameters and momentum. Both take turns in time.

    make bench-train      (or: python -m benchmarks.train_table [--only NAME] [--no-time] [--no-eager])
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import sublet
from benchmarks.results import Row, exact_row, round_rows
from benchmarks.train_steps import eager_step, training_step

LIBNNC = {
    ("ResNet-50", 1): 266_434_176,
    ("ResNet-50", 32): 2_818_403_968,
    ("ResNet-50 v1d", 1): 268_620_544,
    ("ResNet-50 v1d", 32): 2_876_313_344,
    ("ResNet-101 v1d", 1): 420_766_464,
    ("ResNet-101 v1d", 32): 4_262_790_912,
    ("VGG-13", 1): 130_108_544,
    ("VGG-13", 32): 1_858_910_336,
    ("VGG-16", 1): 1_158_475_904,
    ("VGG-16", 32): 3_028_767_872,
    ("DenseNet-121", 1): 166_337_664,
    ("DenseNet-121", 32): 4_006_310_016,
    ("GoogLeNet", 1): 73_420_224,
    ("GoogLeNet", 32): 722_383_936,
    ("EfficientNet-B0", 1): 119_706_624,
    ("EfficientNet-B0", 32): 2_838_727_616,
    ("Transformer", 1): 387_489_792,
    ("Transformer", 8): 476_983_296,
    ("Transformer", 64): 2_345_881_600,
    ("LSTM, 32 steps", 16): 212_246_528,
    ("LSTM, 128 steps", 16): 829_595_648,
}
"""Bytes of the arena of a training step with momentum, by network and batch."""

EXTRA = (("LSTM, loop", 16), ("GPT-2 small", 4), ("ResNet-50", 8))
WITH_MOMENTUM = "bytes with momentum"
TIMED = (("ResNet-50", 8), ("GPT-2 small", 4))
EAGER_BATCHES = (1, 4, 8, 16)
"""Larger batches take PyTorch long on two cores."""

OPTIONS = sublet.Options(io="bound", weights="bound", alignment=64)


def eager_peak(step: Callable[[], object]) -> int:
    """Bytes that PyTorch's allocator hands out at most during a step, above what it held before."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        step()
    live = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def memory_row(name: str, batch: int, with_eager: bool) -> tuple[str, ...]:
    """One line of the table of memory."""
    began = perf_counter()
    step = training_step(name, batch)
    written = perf_counter()
    plan = sublet.plan_memory(step.model.graph, OPTIONS)
    planned = perf_counter()
    ours, theirs = plan.arena_bytes + step.optimiser_bytes, LIBNNC.get((name, batch))
    peak = eager_peak(eager_step(step, step.inputs())) if with_eager and batch in EAGER_BATCHES else None
    copied = sum(move.nbytes for move in plan.moves)
    return (
        name,
        str(batch),
        f"{len(step.model.graph.nodes):,}",
        f"{plan.arena_bytes:,}",
        f"{plan.arena_bytes / max(1, plan.lower_bound_bytes) - 1:.2%}",
        f"{ours:,}",
        f"{theirs:,}" if theirs else "",
        f"{ours / theirs:.3f}" if theirs else "",
        f"{peak:,}" if peak else "",
        f"{plan.arena_bytes / peak:.3f}" if peak else "",
        f"{copied:,}",
        f"{written - began:.1f} + {planned - written:.1f}",
    )


def step_seconds(
    name: str, batch: int, rounds: int, clock: Callable[[], float] = perf_counter
) -> tuple[list[float], list[float]]:
    """Seconds of steps of Sublet and of PyTorch by turns; the losses of both must agree at first."""
    step = training_step(name, batch)
    inputs = step.inputs()
    theirs = eager_step(step, inputs)
    executable = sublet.compile(step.model, options=OPTIONS)
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        losses = []
        for run, found in ((lambda: executable.views(inputs)["loss"].item(), seconds[0]), (theirs, seconds[1])):
            began = clock()
            losses.append(run())
            if number:
                found.append(clock() - began)
        if number == 0:  # later rounding drives them apart
            np.testing.assert_allclose(*losses, rtol=1e-5)
    return seconds


def time_row(name: str, batch: int, rounds: int) -> tuple[str, ...]:
    """One line of the table of time."""
    ours, eager = step_seconds(name, batch, rounds)
    return (
        name,
        str(batch),
        f"{min(ours):.3f} / {median(ours):.3f}",
        f"{min(eager):.3f} / {median(eager):.3f}",
        f"{min(ours) / min(eager):.3f} / {median(ours) / median(eager):.3f}",
    )


def result_rows(
    memory: Sequence[tuple[str, int]] = (*LIBNNC, *EXTRA),
    timed: Sequence[tuple[str, int]] = TIMED,
    rounds: int = 5,
) -> Iterator[Row]:
    """Yield the bytes of each side, with momentum where libnnc's arena holds it; and seconds of the processor."""
    for name, batch in memory:
        case, step = f"{name}, batch {batch}", training_step(name, batch)
        arena = sublet.plan_memory(step.model.graph, OPTIONS).arena_bytes
        if batch in EAGER_BATCHES:
            yield exact_row(case, "PyTorch", eager_peak(eager_step(step, step.inputs())))
            yield exact_row(case, "Sublet", arena)
        if (name, batch) in LIBNNC:
            yield exact_row(case, "libnnc", LIBNNC[name, batch], WITH_MOMENTUM)
            yield exact_row(case, "Sublet", arena + step.optimiser_bytes, WITH_MOMENTUM)
    for name, batch in timed:
        ours, theirs = step_seconds(name, batch, rounds, process_time)
        yield from round_rows(f"{name}, batch {batch}", {"PyTorch": theirs, "Sublet": ours}, "s")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    console = Console(width=180)
    console.print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    console.print(f"{torch.get_num_threads()} threads, Python {platform.python_version()}, NumPy {np.__version__}")
    memory = Table(
        "network", "batch", "nodes", "arena", "gap", "+ momentum", "libnnc", "ratio", "PyTorch", "ratio", "copied", "s"
    )
    for name, batch in (*LIBNNC, *EXTRA):
        if chosen.only in name and not chosen.no_memory:
            row = memory_row(name, batch, not chosen.no_eager)
            memory.add_row(*row)
            console.print("  ".join(row), style="dim")
    console.print(memory)
    if not chosen.no_time:
        times = Table("network", "batch", "Sublet, s (min / median)", "PyTorch eager", "ratio")
        for name, batch in TIMED:
            if chosen.only in name:
                times.add_row(*time_row(name, batch, chosen.rounds))
        console.print(times)


if __name__ == "__main__":
    main()
