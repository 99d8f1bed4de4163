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
    peer      the series by which the numbers of the plots are divided, or several, separated by commas; "" for curves
    packages  the packages whose versions matter
    full      arguments of `result_rows`
    quick     changed arguments with `--quick`; None for a benchmark that takes too long for `--quick`
    """

    module: str
    title: str
    about: str
    peer: str
    packages: tuple[str, ...] = ()
    full: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] | None = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the benchmark and of its file."""
        return self.module.removesuffix(".__main__")


ORT, EAGER = ("onnx", "onnxruntime"), ("torch",)
BENCHMARKS = (
    Benchmark(
        "arenas", "Arenas of networks",
        "Published networks in the order of the file. Best fit with reuse places whole tensors in order of first use.",
        "no reuse", ("onnx", "onnxsim"), {}, {"names": ("squeezenet", "inception_v1", "shufflenet", "unet", "bert")},
    ),
    Benchmark(
        "packing_generated", "Packing",
        "Generated problems of several seeds. Cut rectangles fill an arena without a hole, so the optimum is known; "
        "other live ranges are those of layers, or random. CP-SAT had 20 seconds a problem (quick: 2).",
        BOUND, ("ortools",), {"seconds": 20.0}, {"seconds": 2.0, "seeds": (0,)},
    ),
    Benchmark(
        "run_table", "Runs beside ONNX Runtime",
        "Time of a run in one thread, and the rise of resident memory in the first runs. Outputs are bit-equal.",
        "ONNX Runtime", ORT, {}, {"rounds": 7, "only": ("MobileNetV2",)},
    ),
    Benchmark(
        "serve", "Ranges of dimensions",
        "One plan for all shapes: time at random shapes with the binding of each shape, and the growth of resident "
        "memory over many calls. Outputs are bit-equal.",
        "ONNX Runtime", (*ORT, "openvino"), {}, {"only": ("BERT, 6 layers",), "shapes": 5, "calls": 20},
    ),
    Benchmark(
        "loops", "Loops that carry large tensors",
        "Time of an iteration in two threads, and the rise of resident memory in the first runs.",
        "ONNX Runtime", (*ORT, "jax"), {}, {"sizes": (4 << 20,), "rounds": 20, "repeats": 3, "count": 3},
    ),
    Benchmark(
        "patches", "Image networks in patches",
        "MobileNetV2 with its front in patches, for the smallest arena and as `sublet run` patches.",
        "whole", ORT, {}, {"rounds": 5},
    ),
    Benchmark(
        "edge", "TensorFlow Lite Micro",
        "Bytes of tensors and scratch memory in the arena of the interpreter, with its own plan and with Sublet's. "
        "Outputs are equal.",
        "tflite-micro", ("tflite-micro", "pymicro-wakeword"), {}, {"count": 8},
    ),
    Benchmark(
        "train_table", "Training steps",
        "Bytes of activations and gradients in a step, and seconds of the processor for a step. The memory of libnnc "
        "was measured before, and includes the momentum.",
        "PyTorch, libnnc", EAGER, {}, {"memory": (("ResNet-50", 1), ("GoogLeNet", 1)), "timed": ()},
    ),
    Benchmark(
        "budget_table", "Training within budgets",
        "Predicted time of a training step by bytes of the arena. The checker proved the plans of Sublet's points; "
        "equal segments are estimates of bytes and time.",
        "", (), {}, {"networks": (("VGG-16", 32),), "percents": (80, 60, 40)},
    ),
    Benchmark(
        "dynamic_models", "The dynamic graph",
        "Seconds of the processor for a training step of a jit function.",
        "PyTorch eager", EAGER, {}, None,
    ),
    Benchmark(
        "torch.__main__", "Networks under torch.compile",
        "Peaks of a step without parameters, gradients and optimizer state, and of an inference; time in one thread, "
        "by turns.",
        "PyTorch eager", ("torch", "torchvision", "transformers"), {},
        {"names": ("U-Net",), "kinds": ("step",), "rounds": 5},
    ),
)  # fmt: skip


def run_benchmark(benchmark: Benchmark, quick: bool) -> list[Row]:
    """Return the rows of a benchmark, measured in this process."""
    arguments = {**benchmark.full, **((quick and benchmark.quick) or {})}
    return list(import_module(f"benchmarks.{benchmark.module}").result_rows(**arguments))


def write_benchmark(benchmark: Benchmark, quick: bool, folder: Path, measured_on: Mapping[str, Any]) -> str:
    """Run a benchmark in a process of its own, and write its result file; return the reason of a failure, or ""."""
    described = {
        "name": benchmark.name,
        "title": benchmark.title,
        "about": benchmark.about,
        "command": f"python -m benchmarks.all{' --quick' if quick else ''} {benchmark.name}",
        "peer": benchmark.peer,
        "machine": measured_on,
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
    failed, measured_on = {}, machine()  # the load of other programs, before any benchmark
    for benchmark in benchmarks:
        if quick and benchmark.quick is None:
            print(f"{benchmark.name}: left out of --quick", flush=True)
            continue
        began = perf_counter()
        reason = write_benchmark(benchmark, quick, folder, measured_on)
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
