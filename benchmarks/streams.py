"""What several streams cost in bytes and bring in time, as one table.

    python -m benchmarks.streams [MODEL.onnx] [--backend auto] [--repeat 5]

The model is GoogLeNet (of the onnx package) unless another is given; inputs are from chance. A run with
several streams must give the outputs of one stream, bit for bit. Times are wall seconds of this machine, the
fastest of the runs, copying inputs and outputs included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import onnx
from rich.console import Console
from rich.table import Table

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.api.model_files import read_model
from sublet.base.formatting import human
from sublet.cli.array_io import random_arrays
from sublet.runtime.differential import equal_bits

GOOGLENET = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_inception_v1.onnx"
STREAMS = (1, 2, 4)


def main() -> None:
    """Print the table; exit 1 when a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=GOOGLENET)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=options.model.name)
    for name in ("streams", "arena", "of one stream", "lower bound", "seconds", "of one stream"):
        table.add_column(name, justify="right")
    first: tuple[int, float] | None = None
    right = None
    model = read_model(options.model)
    for streams in STREAMS:
        executable = compile(model, backend=options.backend, options=Options(streams=streams))
        inputs = random_arrays(executable.inputs, seed=0)
        outputs = executable(inputs)
        right = right or outputs
        if not all(equal_bits(outputs[name], right[name]) for name in right):
            sys.exit(f"{streams} streams: the outputs differ from those of one stream")
        seconds = min(timed(partial(executable, inputs)) for _ in range(options.repeat))
        executable.close()
        first = first or (executable.arena_bytes, seconds)
        bytes_ratio, time_ratio = executable.arena_bytes / first[0], seconds / first[1]
        bound = human(executable.plan.lower_bound_bytes)
        figures = f"{bytes_ratio:.2f}", bound, f"{seconds:.4f}", f"{time_ratio:.2f}"
        table.add_row(str(streams), human(executable.arena_bytes), *figures)
    Console().print(table)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = perf_counter()
    run()
    return perf_counter() - started


if __name__ == "__main__":
    main()
