"""A plain decoder, present = Concat(past, new), token by token: Sublet's sessions beside ONNX Runtime, in one run.

Sublet appends to the caches of a session in place, and takes the prompt in pieces. ONNX Runtime binds the present of a
step as the past of the next step, and takes the prompt whole. Times are CPU seconds of a token in one thread, from the
same process by turns: medians, and the median of the ratios. Memory is the growth of anonymous resident bytes from the
opened model to the last token, in a process of its own for each side. The logits of both sides must be close.

    python -m benchmarks.decode_plain [--prompt 512] [--tokens 256] [--layers 12] [--width 768] [--sessions 1]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is loaded

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from benchmarks.decode import ANONYMOUS, MIB, Results, cache_bytes, describe_run, measure_sides, size_options
from benchmarks.models.transformers import gpt_with_past
from benchmarks.run_memory import settle
from benchmarks.serve import one_thread, session_of
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges
from sublet.runtime.ranged import RangedExecutable

PIECE = 32
"""Tokens of a prompt that Sublet computes at once: the arena grows with them."""

VOCABULARY = 1000
SIDES = ("empty", "after", "sublet", "onnxruntime")
"""Times from empty caches and after the prompt, and the memory of both."""

Step = Callable[[np.ndarray], np.ndarray]
"""(new tokens) -> logits."""


def executable_of(path: Path, rows: int) -> RangedExecutable:
    """The executable of a decoder whose caches have up to `rows` rows and a piece."""
    one_thread()
    dims = {"batch": 1, "new": (1, PIECE), "past": (0, rows)}
    found = compile_ranges(path, dims, state="auto", options=Options(io="bound"))
    assert not found.why_not_in_place
    return found


def sublet_step(executable: RangedExecutable) -> Step:
    """The step of a new session."""
    session = executable.session()

    def step(ids: np.ndarray) -> np.ndarray:
        pieces = [session(input_ids=ids[:, i : i + PIECE])["logits"] for i in range(0, ids.shape[1], PIECE)]
        return np.asarray(pieces[-1])

    return step


def runtime_step(session: Any) -> Step:
    """The step of ONNX Runtime with caches that grow."""
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    pasts = [each for each in session.get_inputs() if each.name.startswith("past")]
    caches = {each.name: make(np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)) for each in pasts}
    names = [each.name for each in session.get_outputs()]

    def step(ids: np.ndarray) -> np.ndarray:
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        for name, cache in caches.items():
            binding.bind_ortvalue_input(name, cache)
        for name in names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        found = dict(zip(names, binding.get_outputs(), strict=True))
        caches.update({name: found[name.replace("past", "present")] for name in caches})
        return np.asarray(found["logits"].numpy())

    return step


def tokens_of(count: int) -> np.ndarray:
    """Random tokens."""
    return np.random.default_rng(0).integers(0, VOCABULARY, (1, count))


def times(path: Path, prompt: int, tokens: int) -> dict[str, float]:
    """The milliseconds of a token on both sides, by turns, and how far the logits differ."""
    ids, seconds = tokens_of(prompt + tokens), list[tuple[float, float]]()
    steps = sublet_step(executable_of(path, prompt + tokens)), runtime_step(session_of(path))
    if prompt:
        for step in steps:
            step(ids[:, :prompt])
    error = 0.0
    for length in range(prompt, prompt + tokens):
        found, spent = [], []
        for step in steps:
            begin = thread_time()
            found.append(step(ids[:, length : length + 1]))
            spent.append(thread_time() - begin)
        seconds.append((spent[0], spent[1]))
        error = max(error, float(np.abs(found[0] - found[1]).max() / np.abs(found[1]).max()))
    ours, theirs = np.median(seconds, axis=0) * 1e3
    ratio = float(np.median([one / other for one, other in seconds]))
    return {"ours": float(ours), "theirs": float(theirs), "ratio": ratio, "error": error}


def grow(side: str, path: Path, prompt: int, tokens: int, sessions: int) -> dict[str, float]:
    """The growth of anonymous resident bytes, from the opened model to the last token of every session."""
    ids = tokens_of(prompt + tokens)
    steps: list[Step]
    if side == "sublet":
        executable = executable_of(path, prompt + tokens)
        sublet_step(executable)(ids[:, :1])  # the weights are read, the arena is touched later
        before = settle(ANONYMOUS)
        steps = [sublet_step(executable) for _ in range(sessions)]
    else:
        session = session_of(path)
        runtime_step(session)(ids[:, :1])
        before = settle(ANONYMOUS)
        steps = [runtime_step(session) for _ in range(sessions)]
    for step in steps:
        step(ids[:, :prompt])
    for length in range(prompt, prompt + tokens):
        for step in steps:
            step(ids[:, length : length + 1])
    return {"grown": settle(ANONYMOUS) - before}


def memory_table(found: Results, args: argparse.Namespace) -> Table:
    """The growth of memory on both sides."""
    memory = Table("side", "growth", "beyond the caches")
    for side in ("sublet", "onnxruntime"):
        grown = found[side]["grown"]
        memory.add_row(side, f"{grown / MIB:.1f} MiB", f"{(grown - cache_bytes(args)) / MIB:.1f} MiB")
    return memory


def main() -> None:
    """Print the tables."""
    args = size_options(SIDES).parse_args()
    if args.side in ("empty", "after"):
        print(json.dumps(times(args.model, args.prompt if args.side == "after" else 0, args.tokens)))
        return
    if args.side:
        print(json.dumps(grow(args.side, args.model, args.prompt, args.tokens, args.sessions)))
        return
    rows = args.prompt + args.tokens
    model = gpt_with_past(args.layers, args.width, args.width // 64, VOCABULARY, rows + PIECE)
    found = measure_sides("benchmarks.decode_plain", model, args, SIDES)
    console, table = Console(width=120), Table("caches at the start", "ms a token", "ONNX Runtime", "ratio", "error")
    for side, start in (("empty", "empty"), ("after", f"{args.prompt} rows")):
        each = found[side]
        table.add_row(
            start, f"{each['ours']:.2f}", f"{each['theirs']:.2f}", f"{each['ratio']:.3f}", f"{each['error']:.0e}"
        )
    console.print(table)
    console.print(memory_table(found, args))
    console.print(describe_run(args))


if __name__ == "__main__":
    main()
