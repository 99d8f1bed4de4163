"""Every packing problem of a folder by Sublet, by single strategies and by peers, as one table.

    make bench-packing        (or: python -m benchmarks.packing_table [FOLDER] [--seconds 10] [--picture hard.png]
                               [--peer 'minimalloc --capacity={capacity} --input={in} --output={out}'])

    to fit   the same as auto, but content with the capacity that the file's name ends with (A.1048576.csv)

A peer reads MiniMalloc's CSV and writes it with offsets; `{capacity}` is the arena Sublet needs. The peer
built in is OR-Tools' CP-SAT with `no_overlap_2d`, minimising the arena within the same time. Each packing is
made in a process of its own and checked; times are wall seconds of this machine, without reading; memory is what
the process held at most, beyond what it held before (a peer that is a program: all it held).
"""

from __future__ import annotations

import argparse
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from ortools import __version__ as ortools_version
from ortools.sat.python import cp_model
from rich.console import Console
from rich.table import Table

from sublet.packing import (
    STRATEGIES,
    Packing,
    Problem,
    check_packing,
    lower_bound,
    pack,
    read_csv,
    read_problem,
    write_csv,
)
from sublet.viz.png import write_png
from sublet.viz.view_model import picture_of_packing

MOST_FOR_CP_SAT = 2_000
MOST_FOR_STRATEGIES = 3_000
STRATEGIES_SHOWN = ("first_fit", "first_fit_by_tightness", "best_fit_by_size", "allocation_graph")
Packer = Callable[[Problem, int, float], Packing | None]


@dataclass(frozen=True)
class Result:
    packing: Packing
    bound: int
    seconds: float
    mebibytes: int

    @property
    def gap(self) -> float:
        return (self.packing.arena_bytes - self.bound) / self.bound if self.bound else 0.0


def auto(problem: Problem, capacity: int, seconds: float) -> Packing:
    return pack(problem, timeout=seconds).packing


def to_fit(problem: Problem, capacity: int, seconds: float) -> Packing:
    return pack(problem, timeout=seconds, capacity=capacity).packing


def by_strategy(name: str, problem: Problem, capacity: int, seconds: float) -> Packing | None:
    return STRATEGIES[name](problem) if len(problem.buffers) <= MOST_FOR_STRATEGIES else None


def cp_sat(problem: Problem, capacity: int, seconds: float) -> Packing | None:
    """The smallest arena OR-Tools finds from scratch; None when it finds none, or cannot state the problem."""
    if problem.precedence is not None or len(problem.buffers) > MOST_FOR_CP_SAT:
        return None
    model = cp_model.CpModel()
    top = sum(buffer.size for buffer in problem.buffers)
    arena = model.new_int_var(0, top, "arena")
    offsets, times, bytes_ = [], [], []
    for buffer in problem.buffers:
        unit = model.new_int_var(0, top // buffer.alignment, "")
        offset = unit * buffer.alignment
        offsets.append(unit)
        times.append(model.new_fixed_size_interval_var(buffer.lower, buffer.upper - buffer.lower, ""))
        bytes_.append(model.new_fixed_size_interval_var(offset, buffer.size, ""))
        model.add(offset + buffer.size <= arena)
    model.add_no_overlap_2d(times, bytes_)
    model.minimize(arena)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    found = [solver.value(unit) * b.alignment for unit, b in zip(offsets, problem.buffers, strict=True)]
    return Packing(tuple(found), int(solver.objective_value), "CP-SAT")


def by_command(template: str, problem: Problem, capacity: int, seconds: float) -> Packing | None:
    """A peer that is a program."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "in.csv", Path(folder) / "out.csv"
        write_csv(problem, None, question)
        values = {"capacity": capacity, "in": question, "out": answer}
        try:
            subprocess.run(shlex.split(template.format(**values)), timeout=seconds, check=True, capture_output=True)
        except (subprocess.SubprocessError, OSError):
            return None
        return read_csv(answer)[1] if answer.exists() else None


def peak(who: int) -> int:
    return resource.getrusage(who).ru_maxrss // 1024


def measured(packer: Packer, path: Path, capacity: int, seconds: float) -> Result | None:
    """Runs in a process of its own."""
    problem = read_problem(path)
    bound = lower_bound(problem).bytes
    before, began = peak(resource.RUSAGE_SELF), time.monotonic()
    packing = packer(problem, capacity, seconds)
    took = time.monotonic() - began
    if packing is None:
        return None
    check_packing(problem, packing)
    held = max(peak(resource.RUSAGE_SELF) - before, peak(resource.RUSAGE_CHILDREN))
    return Result(packing, bound, took, held)


def alone(packer: Packer, path: Path, capacity: int, seconds: float) -> Result | None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, packer, path, capacity, seconds).result()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", nargs="?", type=Path, default=Path("..") / "shared" / "problems")
    arguments.add_argument("--seconds", type=float, default=10.0)
    arguments.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    arguments.add_argument("--picture", type=Path, metavar="FILE", help="draws the packing that took auto longest")
    chosen = arguments.parse_args()
    paths = sorted(p for p in chosen.folder.rglob("*") if p.suffix in (".csv", ".json"))
    if not paths:
        sys.exit(f"{chosen.folder} has no problems (*.csv, *.json)")
    packers: dict[str, Packer] = {name: partial(by_strategy, name) for name in STRATEGIES_SHOWN}
    packers |= {"CP-SAT": cp_sat}
    packers |= {shlex.split(template)[0]: partial(by_command, template) for template in chosen.peer}
    table = Table(title=f"Packing within {chosen.seconds:g} s: gap over the proved bound")
    for heading in ("problem", "n", "by", "arena", "bound", "gap", "seconds", "MiB"):
        table.add_column(heading, justify="left" if heading in ("problem", "by") else "right")
    totals: dict[str, list[float]] = {}
    hardest: tuple[float, Path, Result] | None = None
    for path in paths:
        results = rows_of(path, packers, chosen.seconds)
        count = str(len(read_problem(path).buffers))
        for by, result in results.items():
            totals.setdefault(by, []).append(result.seconds)
            figures = (f"{result.packing.arena_bytes:,}", f"{result.bound:,}", f"{result.gap:.2%}")
            first = by == "auto"
            names = (path.stem if first else "", count if first else "", by)
            table.add_row(*names, *figures, f"{result.seconds:.2f}", str(result.mebibytes))
        if hardest is None or results["auto"].seconds > hardest[0]:
            hardest = (results["auto"].seconds, path, results["auto"])
    console = Console(width=120)
    console.print(
        f"{platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, OR-Tools {ortools_version}"
    )
    console.print(table)
    for by, seconds in totals.items():
        console.print(f"{by}: {sum(seconds):.2f} s for {len(seconds)} problems, at most {max(seconds):.2f} s")
    if chosen.picture and hardest:
        _, path, result = hardest
        write_png(picture_of_packing(read_problem(path), result.packing, result.bound), chosen.picture)


def rows_of(path: Path, packers: dict[str, Packer], seconds: float) -> dict[str, Result]:
    """auto and the others that have an answer, by name."""
    ours = alone(auto, path, 0, seconds)
    assert ours is not None
    results = {"auto": ours}
    last = path.stem.rpartition(".")[2]
    if "." in path.stem and last.isdigit() and int(last) >= ours.bound:
        packers = {"to fit": to_fit, **packers}
        capacity = int(last)
    else:
        capacity = ours.packing.arena_bytes
    for by, packer in packers.items():
        result = alone(packer, path, capacity, seconds)
        if result is not None:
            results[by] = result
    return results


if __name__ == "__main__":
    main()
