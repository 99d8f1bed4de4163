"""Greedy decoding as one ONNX Loop, with caches as carried values: Sublet beside ONNX Runtime, in one run.

The caches of `decode_plain`, present = Concat(past, new), inside a Loop. Sublet appends in place, in a buffer for the
most rows; ONNX Runtime concatenates in every iteration. Both sides run by turns in one process and thread; the time is
the median of the ratios over whole calls. Memory is the growth of anonymous resident bytes from the opened model to the
end of the first call, in a process for each side. The tokens of both sides must be equal.

    python -m benchmarks.decode_loop [--prompt 512] [--tokens 256] [--layers 12] [--width 768]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.decode import ANONYMOUS, describe_run, measure_sides, size_options
from benchmarks.decode_plain import SIDES, VOCABULARY, memory_table
from benchmarks.models.transformers import decode_in_one_loop, gpt_with_past
from benchmarks.run_memory import settle
from benchmarks.serve import one_thread, session_of
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges

CALLS = 5

Run = Callable[[dict[str, Any]], np.ndarray]
"""Inputs by name -> tokens."""


def sublet_run(path: Path, prompt: int) -> Run:
    """Return the call of an executable for up to `prompt` rows."""
    one_thread()
    executable = compile_ranges(path, {"batch": 1, "new": 1, "past": (0, prompt)}, options=Options(io="bound"))
    return lambda inputs: np.asarray(executable(inputs)["tokens"])


def runtime_run(path: Path) -> Run:
    """Return the call of a session of ONNX Runtime."""
    session = session_of(path)
    return lambda inputs: np.asarray(session.run(None, inputs)[0])


def inputs_of(layers: int, width: int, rows: int) -> dict[str, Any]:
    """Return a first token and random caches of `rows` rows."""
    rng, shape = np.random.default_rng(0), (1, width // 64, rows, 64)
    names = [f"past_{i}_{kind}_start" for i in range(layers) for kind in ("key", "value")]
    return {"first": np.array([[3]]), **{name: rng.standard_normal(shape, dtype=np.float32) for name in names}}


def times(path: Path, inputs: dict[str, Any], prompt: int, tokens: int) -> dict[str, float]:
    """Return the milliseconds of a token on both sides, by turns, and the share of equal tokens."""
    runs, seconds = (sublet_run(path, prompt), runtime_run(path)), list[list[float]]()
    for _ in range(CALLS + 1):
        found, spent = [], []
        for run in runs:
            begin = thread_time()
            found.append(run(inputs))
            spent.append(thread_time() - begin)
        seconds.append(spent)
    ours, theirs = np.median(seconds[1:], axis=0) * 1e3 / tokens
    ratio = float(np.median([one / other for one, other in seconds[1:]]))
    equal = float((found[0] == found[1]).mean())
    return {"ours": float(ours), "theirs": float(theirs), "ratio": ratio, "equal": equal}


def grow(side: str, path: Path, inputs: dict[str, Any], prompt: int) -> dict[str, float]:
    """Return the growth of anonymous resident bytes from the opened model to the end of the first call."""
    run = sublet_run(path, prompt) if side == "sublet" else runtime_run(path)
    before = settle(ANONYMOUS)
    run(inputs)
    return {"grown": settle(ANONYMOUS) - before}


def main() -> None:
    """Print the tables."""
    args = size_options(SIDES).parse_args()
    if args.side:
        inputs = inputs_of(args.layers, args.width, 0 if args.side == "empty" else args.prompt)
        if args.side in ("empty", "after"):
            found = times(args.model, inputs, args.prompt, args.tokens)
        else:
            found = grow(args.side, args.model, inputs, args.prompt)
        print(json.dumps(found))
        return
    step = gpt_with_past(args.layers, args.width, args.width // 64, VOCABULARY, args.prompt + args.tokens)
    measured = measure_sides("benchmarks.decode_loop", decode_in_one_loop(step, args.tokens), args, SIDES)
    console = Console(width=120)
    table = Table("caches at the start", "ms a token", "ONNX Runtime", "ratio", "tokens equal")
    for side, start in (("empty", "empty"), ("after", f"{args.prompt} rows")):
        each = measured[side]
        numbers = (f"{each['ours']:.2f}", f"{each['theirs']:.2f}", f"{each['ratio']:.3f}", f"{each['equal']:.0%}")
        table.add_row(start, *numbers)
    console.print(table)
    console.print(memory_table(measured, args))
    console.print(describe_run(args))


if __name__ == "__main__":
    main()
