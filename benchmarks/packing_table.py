"""Every packing problem of a folder with every strategy, and with peers, as one table.

    make bench-packing        (or: python -m benchmarks.packing_table [FOLDER] [--seconds 10]
                               [--peer 'minimalloc --capacity={capacity} --input={in} --output={out}'])

A peer reads MiniMalloc's CSV and writes it with offsets; `{capacity}` is the arena Sublet needs. The peer
built in is OR-Tools' CP-SAT with `no_overlap_2d`, minimising the arena within the same time. Times are
wall seconds of this machine; every packing is checked.
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
from pathlib import Path

from ortools import __version__ as ortools_version
from ortools.sat.python import cp_model
from rich.console import Console
from rich.table import Table

from sublet.packing import STRATEGIES, Packing, Problem, check_packing, pack, read_csv, read_problem, write_csv

MOST_FOR_CP_SAT = 2_000
Peer = Callable[[Problem, int, float], Packing | None]


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


def command(template: str) -> Peer:
    """A peer that is a program."""

    def run(problem: Problem, capacity: int, seconds: float) -> Packing | None:
        with tempfile.TemporaryDirectory() as folder:
            question, answer = Path(folder) / "in.csv", Path(folder) / "out.csv"
            write_csv(problem, None, question)
            values = {"capacity": capacity, "in": question, "out": answer}
            try:
                subprocess.run(shlex.split(template.format(**values)), timeout=seconds, check=True, capture_output=True)
            except (subprocess.SubprocessError, OSError):
                return None
            return read_csv(answer)[1] if answer.exists() else None

    return run


def cell(arena: int, bound: int, seconds: float) -> str:
    gap = (arena - bound) / bound if bound else 0.0
    return f"{gap:.2%} {seconds:.2f}s"


def row(path: Path, seconds: float, peers: dict[str, Peer]) -> list[str]:
    problem = read_problem(path)
    report = pack(problem, timeout=seconds)
    tried = {name: (arena, took) for name, arena, took in report.tried}
    cells = [path.stem, str(len(problem.buffers)), f"{report.packing.arena_bytes:,}", f"{report.bound.bytes:,}"]
    cells += [report.packing.strategy, cell(report.packing.arena_bytes, report.bound.bytes, report.seconds)]
    best_greedy = min((tried[name] for name in tried if name not in ("no_reuse", "search")), default=None)
    cells.append(cell(best_greedy[0], report.bound.bytes, best_greedy[1]) if best_greedy else "")
    graph = tried.get("allocation_graph")
    if graph is None and len(problem.buffers) <= 3_000:
        began = time.monotonic()
        graph = (STRATEGIES["allocation_graph"](problem).arena_bytes, time.monotonic() - began)
    cells.append(cell(graph[0], report.bound.bytes, graph[1]) if graph else "")
    for peer in peers.values():
        began = time.monotonic()
        packing = peer(problem, report.packing.arena_bytes, seconds)
        if packing is None:
            cells.append("-")
            continue
        took = time.monotonic() - began
        check_packing(problem, packing)
        cells.append(cell(packing.arena_bytes, report.bound.bytes, took))
    return cells


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", nargs="?", type=Path, default=Path("..") / "shared" / "problems")
    arguments.add_argument("--seconds", type=float, default=10.0)
    arguments.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    chosen = arguments.parse_args()
    peers: dict[str, Peer] = {"CP-SAT": cp_sat}
    peers |= {shlex.split(template)[0]: command(template) for template in chosen.peer}
    paths = sorted(p for p in chosen.folder.rglob("*") if p.suffix in (".csv", ".json"))
    if not paths:
        sys.exit(f"{chosen.folder} has no problems (*.csv, *.json)")
    table = Table(title="Packing: gap over the proved bound, and seconds")
    for heading in ("problem", "n", "arena", "bound", "won by", "auto", "best greedy", "allocation graph", *peers):
        table.add_column(heading, justify="left" if heading in ("problem", "won by") else "right")
    for path in paths:
        table.add_row(*row(path, chosen.seconds, peers))
    console = Console(width=200)
    python = sys.version.split()[0]
    console.print(f"{platform.processor() or platform.machine()}, Python {python}, OR-Tools {ortools_version}")
    console.print(table)
    console.print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
