"""Sublet beside ONNX Runtime's own sessions: time, memory, allocations, the cost of a step; in one run.

Both run the same inputs with the same number of threads, in rounds by turns; the outputs must be bit-equal.
ONNX Runtime's time is the better of `run` and a run with bound inputs and outputs; Sublet's includes putting
the inputs into its arena. Memory is measured in a process of its own for each (see `run_memory`).

    make bench-run        (or: python -m benchmarks.run_table [--rounds N] [--threads N] [--cpu] [--only NAME])
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

from benchmarks.results import Row, exact_row, round_rows
from benchmarks.run_models import CHAIN, Feeds, RunModel, chain, feeds_for, run_models
from sublet.api import compiling
from sublet.base.tensor import NUMPY
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.runtime import backends
from sublet.runtime.executable import Executable

ROUND_SECONDS = 0.15
TRIES = 15
Clock = Callable[[], float]
MIB = 1 << 20


@dataclass(frozen=True)
class How:
    """How to measure."""

    rounds: int
    threads: int
    clock: Clock


@dataclass(frozen=True)
class Result:
    """Seconds of the rounds of each, the fastest first; blocks of Python memory a run leaves behind."""

    ours: list[float]
    theirs: list[float]
    equal: bool
    blocks: int


def bound_run(session: Any, feeds: Feeds) -> Callable[[], object]:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    return lambda: session.run_with_iobinding(binding)


def inputs_of(executable: Executable) -> Feeds:
    specs = {name: value.spec for name, value in executable.inputs.items()}
    return feeds_for({name: (NUMPY[spec.dtype], spec.shape) for name, spec in specs.items()})  # type: ignore[union-attr]


def session_of(model: RunModel, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])


def seconds(call: Callable[[], object], times: int, clock: Clock) -> float:
    begin = clock()
    for _ in range(times):
        call()
    return (clock() - begin) / times


def left_behind(call: Callable[[], object]) -> int:
    """Blocks of Python memory that ten runs leave behind: the median of many tries.

    Python's own lists of free objects, which the collector empties, fill up during tries that do not count; the
    collector waits meanwhile. The number that was counted first takes a block itself, so as much as an empty run
    leaves is taken off.
    """

    def once(run: Callable[[], object]) -> int:
        before = sys.getallocatedblocks()
        for _ in range(10):
            run()
        return sys.getallocatedblocks() - before

    gc.disable()
    try:
        found, empty = ([once(run) for _ in range(2 * TRIES)][TRIES:] for run in (call, lambda: None))
        return int(median(found) - median(empty))
    finally:
        gc.enable()


def measure(model: RunModel, executable: Executable, feeds: Feeds, how: How) -> Result:
    session = session_of(model, how.threads)
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    found = executable(feeds)
    equal = all(found[name].tobytes() == expected[name].tobytes() for name in names)
    calls = {"ours": lambda: executable.views(feeds), "run": lambda: session.run(None, feeds)}
    calls["bound"] = bound_run(session, feeds)
    times: dict[str, list[float]] = {name: [] for name in calls}
    count = max(1, int(ROUND_SECONDS / max(seconds(call, 2, how.clock) for call in calls.values())))
    for _ in range(how.rounds):
        for name, call in calls.items():
            seconds(call, count, how.clock)  # the threads of whoever ran before spin for a while yet
            times[name].append(seconds(call, count, how.clock))
    blocks = left_behind(calls["ours"])
    theirs = min((times[name] for name in ("run", "bound")), key=lambda found: (min(found), median(found)))
    return Result(sorted(times["ours"]), sorted(theirs), equal, blocks)


def memory(side: str, model: RunModel, feeds: Path, threads: int) -> dict[str, int]:
    bindings = [f"{name}={extent}" for name, extent in model.dims.items()]
    command = [sys.executable, "-m", "benchmarks.run_memory", side, str(model.path), str(feeds), str(threads)]
    done = subprocess.run([*command, *bindings], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(model: RunModel, folder: Path, how: How) -> tuple[Executable, Result, dict[str, int], dict[str, int]]:
    """What is compiled, times, and the memory of Sublet and of ONNX Runtime."""
    executable = compiling.compile(model.path, dims=model.dims)
    feeds = inputs_of(executable)
    result = measure(model, executable, feeds, how)
    np.savez(folder / "feeds.npz", **feeds)
    ours, theirs = (memory(side, model, folder / "feeds.npz", how.threads) for side in ("sublet", "onnxruntime"))
    return executable, result, ours, theirs


def row(model: RunModel, folder: Path, how: How) -> tuple[list[str], float, float]:
    """The cells of one model; its ratios of time and of memory."""
    executable, result, ours, theirs = measured(model, folder, how)
    time, space = result.ours[0] / result.theirs[0], ours["run"] / theirs["run"]
    ours["loaded"] -= ours["weights"]
    theirs["loaded"] -= ours["weights"]
    cells = [
        *(f"{result.ours[0] * 1e3:.3f}", f"{result.theirs[0] * 1e3:.3f}", f"{time:.3f}"),
        f"{median(result.ours) / median(result.theirs):.3f}",
        *(f"{executable.arena_bytes / MIB:.2f}", f"{ours['run'] / MIB:.2f}", f"{theirs['run'] / MIB:.2f}"),
        f"{space:.2f}",
        *(f"{side['loaded'] / MIB:.0f}" for side in (ours, theirs)),
        *(str(result.blocks), "yes" if result.equal else "NO"),
    ]
    return [model.name, *cells], time, space


def result_rows(rounds: int = 15, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the times and the memory of both sides for each model; times of the processor, in one thread."""
    how = How(rounds, 1, thread_time)
    use_threads(how.threads)
    with tempfile.TemporaryDirectory() as scratch:
        for model in run_models(Path(scratch)):
            if not only or model.name in only:
                _, result, ours, theirs = measured(model, Path(scratch), how)
                assert result.equal, f"{model.name}: outputs differ"
                sides = {"ONNX Runtime": result.theirs, "Sublet": result.ours}
                yield from round_rows(model.name, {side: [1e3 * s for s in each] for side, each in sides.items()}, "ms")
                yield exact_row(model.name, "ONNX Runtime", theirs["run"])
                yield exact_row(model.name, "Sublet", ours["run"])


def use_threads(count: int) -> None:
    """Let Sublet's kernels run in so many threads."""
    backends.backend_factories()["onnxruntime"] = lambda model: OnnxRuntime(model.opsets, count)


def step_cost(folder: Path, how: How) -> str:
    model = chain(folder)
    executable = compiling.compile(model.path)
    result = measure(model, executable, inputs_of(executable), how)
    ours, theirs = (1e6 * min(side) / CHAIN for side in (result.ours, result.theirs))
    return f"{model.name}: {ours:.3f} us a step, ONNX Runtime {theirs:.3f} us"


def geometric_mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def machine() -> str:
    versions = f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, numpy {np.__version__}"
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{cpu}, {os.cpu_count()} processors{load}, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread: steady on a busy machine")
    chosen = parser.parse_args()
    how = How(chosen.rounds, 1, thread_time) if chosen.cpu else How(chosen.rounds, chosen.threads, perf_counter)
    use_threads(how.threads)
    console = Console(width=170)
    console.print(f"{machine()}; {how.threads} threads, {how.clock.__name__}")
    table = Table(title="Sublet and ONNX Runtime (times in ms, memory in MiB)")
    headings = ("model", "Sublet", "ORT", "ratio", "median ratio", "arena", "run", "ORT run", "ratio", "loaded")
    for heading in (*headings, "ORT loaded", "blocks", "bit-equal"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    times: list[float] = []
    spaces: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in run_models(Path(scratch)):
            if chosen.only.lower() in model.name.lower():
                cells, time, space = row(model, Path(scratch), how)
                table.add_row(*cells)
                times.append(time)
                spaces.append(space)
        if times:
            means = f"{geometric_mean(times):.3f}", "", "", "", "", f"{geometric_mean(spaces):.2f}"
            table.add_row("geometric mean", "", "", *means, end_section=True)
        console.print(table)
        console.print(step_cost(Path(scratch), how))
    console.print('"blocks": of Python memory, left behind by ten runs.')
    console.print('"run": rise of resident memory in the first runs; "loaded": before them, beyond the weights.')


if __name__ == "__main__":
    main()
