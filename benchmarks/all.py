"""All benchmarks of one table, each in a process of its own: benchmarks/results/NAME.json, drawn on docs/benchmarks.md.

    make bench-all        (or: python -m benchmarks.all [--quick] [--out FOLDER] [NAME ...])

`--quick` takes fewer networks, shapes and rounds. A benchmark that fails is listed with the reason; the file of an
earlier run stays, and the other benchmarks run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.results import BOUND, RESULTS, Row, machine, versions, write_result


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    module    the module in benchmarks/ with the function `result_rows`
    title     the title of the plots
    about     what was measured, in a sentence or two
    peer      the series by which the numbers of the plots are divided; "" for curves
    packages  the packages whose versions matter
    full      arguments of `result_rows`
    quick     changed arguments with `--quick`
    """

    module: str
    title: str
    about: str
    peer: str
    packages: tuple[str, ...] = ()
    full: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the benchmark and of its file."""
        return self.module.replace(".", "_")


BENCHMARKS = (
    Benchmark(
        "packing_generated",
        "Packing",
        "Generated problems, of three seeds each: cut rectangles fill an arena without a hole, so the optimum is known;"
        " live ranges are those of layers, or random. CP-SAT had the given seconds for each problem.",
        BOUND,
        ("ortools",),
        {"seconds": 20.0},
        {"seconds": 3.0, "seeds": (0,)},
    ),
)


def run_benchmark(benchmark: Benchmark, quick: bool) -> list[Row]:
    """Return the rows of a benchmark, measured in this process."""
    arguments = {**benchmark.full, **(benchmark.quick if quick else {})}
    return list(import_module(f"benchmarks.{benchmark.module}").result_rows(**arguments))


def write_benchmark(benchmark: Benchmark, quick: bool, folder: Path) -> str:
    """Run a benchmark in a process of its own, and write its result file; return the reason of a failure, or ""."""
    described = {
        "name": benchmark.name,
        "title": benchmark.title,
        "about": benchmark.about,
        "command": f"python -m benchmarks.all{' --quick' if quick else ''} {benchmark.name}",
        "peer": benchmark.peer,
        "machine": machine(),
        "versions": versions(benchmark.packages),
        "quick": quick,
    }
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            rows = pool.submit(run_benchmark, benchmark, quick).result()
    except Exception as error:  # a missing extra, a wrong result, a process that was ended
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    if not rows:
        return "no row was measured"
    write_result(folder / f"{benchmark.name}.json", described, rows)
    return ""


def run_all(benchmarks: Sequence[Benchmark], quick: bool, folder: Path) -> dict[str, str]:
    """Run benchmarks one after the other; return the reasons of those that failed, by name."""
    failed = {}
    for benchmark in benchmarks:
        began = perf_counter()
        reason = write_benchmark(benchmark, quick, folder)
        if reason:
            failed[benchmark.name] = reason
        print(f"{benchmark.name}: {reason or 'written'}, {perf_counter() - began:.0f} s", flush=True)
    return failed


def main() -> None:
    """Run the named benchmarks, or all; exit with status 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(by_name)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: minutes instead of an hour")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the result files")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in by_name]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; known are {', '.join(by_name)}")
    failed = run_all([by_name[name] for name in chosen.names or by_name], chosen.quick, chosen.out)
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
