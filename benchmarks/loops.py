"""Loops that carry large tensors: Sublet beside XLA (JAX on the CPU) and ONNX Runtime's own Loop; in one run.

Each loop runs the same number of rounds in all three, by turns; the results must agree. What is told:

    copies   bytes that a round moves to hand values on, in carried tensors: ours as the plan lists them and the
             run counts them, XLA's as the copy instructions of the loop's body in its optimised program
    extra    memory beyond the carried tensors, in carried tensors: ours is the arena, XLA's the temporary
             allocation of its buffer assignment
    peak     rise of resident memory in the first runs, in a process of its own (see `run_memory`); ours holds the
             inputs as well, ONNX Runtime's are the caller's
    time     milliseconds a round, the fastest and the middle of several runs

    make bench-loops        (or: python -m benchmarks.loops [--repeats N] [--only NAME])
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
from onnx import parser
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.results import Row, exact_row, round_rows
from benchmarks.run_table import machine
from sublet.api import compiling
from sublet.runtime.executable import Executable

MIB = 1 << 20
THREADS = 2
TITLES = {"Sublet": "Sublet", "XLA": "XLA", "ORT": "ONNX Runtime"}
SIDES = tuple(TITLES)
TINY_ROUNDS = 50_000
Feeds = dict[str, np.ndarray]
Step = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Carried:
    """A loop: its parameters, its body and updates in ONNX's text form and for JAX, and the rounds it runs.

    The last argument of `step` is %k, which the loop only reads. `wanted` is how many more tensors than it carries
    a loop may need.
    """

    name: str
    names: str
    body: str
    updates: str
    step: Step
    wanted: int = 0
    rounds: int = 1000
    width: int = 1024
    square: bool = False

    def model(self, nbytes: int) -> onnx.ModelProto:
        names, updates = self.names.split(), self.updates.split()
        spec, results = f"float[{self.rows(nbytes)},{self.width}]", [f"{u}_{i}" for i, u in enumerate(updates)]
        reads = f"float[{self.width if self.square else self.rows(nbytes)},{self.width}] k"
        return parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64 n, {", ".join(f"{spec} {name}0" for name in names)}{f", {reads}" if self.reads else ""}) =>
            ({", ".join(f"{spec} {name}f" for name in names)}) {{
          yes = Constant <value = bool {{1}}> ()
          {", ".join(f"{name}f" for name in names)} = Loop (n, yes, {", ".join(f"{name}0" for name in names)}) <
            body = step (int64 i, bool on, {", ".join(f"{spec} {name}" for name in names)})
                => (bool go, {", ".join(f"{spec} {result}" for result in results)}) {{
              go = Identity(on)
              {self.body}
              {" ".join(f"{to} = Identity({update})" for to, update in zip(results, updates, strict=True))}
            }}
          >
        }}""")

    @property
    def reads(self) -> bool:
        """Whether there is a %k."""
        return "k)" in self.body

    def rows(self, nbytes: int) -> int:
        return nbytes // 4 // self.width

    def feeds(self, nbytes: int, rounds: int) -> Feeds:
        rng = np.random.default_rng(0)
        feeds: Feeds = {"n": np.array(rounds, np.int64)}
        for name in self.names.split():
            feeds[f"{name}0"] = rng.standard_normal((self.rows(nbytes), self.width), np.float32)
        if self.reads:
            rows = self.width if self.square else self.rows(nbytes)
            feeds["k"] = rng.standard_normal((rows, self.width), np.float32) / np.float32(self.width**0.5)
        return feeds

    def in_jax(self, feeds: Feeds) -> tuple[Any, list[Any]]:
        """The compiled program, and its arguments."""
        names = [f"{name}0" for name in self.names.split()]
        arguments = [np.int32(feeds["n"]), feeds.get("k", np.float32(0)), *(feeds[name] for name in names)]

        def run(n: Any, k: Any, *carried: Any) -> Any:
            return jax.lax.fori_loop(0, n, lambda i, values: self.step(*values, k), carried)

        placed = [jax.device_put(argument) for argument in arguments]
        return jax.jit(run).lower(*placed).compile(), placed


LOOPS = (
    Carried("(a, b) <- (b, a + b)", "a b", "s = Add(a, b)", "b s", lambda a, b, k: (b, a + b), wanted=1),
    Carried("swap", "a b", "", "b a", lambda a, b, k: (b, a)),
    Carried("3-deep shift register", "a b c", "s = Neg(a)", "b c s", lambda a, b, c, k: (b, c, -a)),
    Carried("x[c] = -x[c-4]", "a b c d", "s = Neg(a)", "b c d s", lambda a, b, c, d, k: (b, c, d, -a), wanted=1),
    Carried("h <- h @ W", "h", "s = MatMul(h, k)", "s", lambda h, k: (h @ k,), wanted=1, rounds=20, square=True),
)
TINY = Carried("a <- a + k, 8 floats", "a", "s = Add(a, k)", "s", lambda a, k: (a + k,), width=8)


@dataclass(frozen=True)
class Sides:
    """One loop, ready to run on every side; each call runs all rounds."""

    executable: Executable
    program: Any
    calls: dict[str, Callable[[], Any]]
    agree: bool


def prepared(loop: Carried, nbytes: int, rounds: int, threads: int = THREADS) -> Sides:
    model, feeds = loop.model(nbytes), loop.feeds(nbytes, rounds)
    executable = compiling.compile(model)
    program, arguments = loop.in_jax(feeds)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    few = feeds | {"n": np.array(7, np.int64)}
    ours, theirs = list(executable(few).values()), session.run(None, few)
    others = program(*[np.int32(7), *arguments[1:]])
    agree = all(
        a.tobytes() == b.tobytes() and np.allclose(a, c, rtol=1e-3, atol=1e-3)
        for a, b, c in zip(ours, theirs, others, strict=True)
    )
    calls: dict[str, Callable[[], Any]] = {
        "Sublet": lambda: executable.views(feeds),
        "XLA": lambda: jax.block_until_ready(program(*arguments)),
        "ORT": lambda: session.run(None, feeds),
    }
    return Sides(executable, program, calls, agree)


def timed(calls: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds a round of several runs by turns, the fastest first."""
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    for repeat in range(repeats + 1):
        for side, call in calls.items():
            begin = perf_counter()
            call()
            if repeat:  # the first touches memory and warms up
                seconds[side].append((perf_counter() - begin) / rounds)
    return {side: sorted(found) for side, found in seconds.items()}


def copies_in_body(program: Any, tensor: str) -> int:
    """The copy instructions of this shape in the body of the loop."""
    text = program.as_text()
    body = re.search(r"while\(.*body=%?([\w.\-]+)", text)
    assert body, "XLA removed the loop"
    lines = text[text.index(f"%{body[1]} (") :].splitlines()
    inside = lines[: lines.index("}")]
    return sum(f"= {tensor}" in line and re.search(r"\bcopy\(", line) is not None for line in inside)


def peak(side: str, loop: Carried, nbytes: int) -> int:
    """Rise of resident memory while three rounds run."""
    with tempfile.TemporaryDirectory() as folder:
        path, feeds = Path(folder) / "loop.onnx", Path(folder) / "feeds.npz"
        onnx.save(loop.model(nbytes), path)
        np.savez(feeds, **loop.feeds(nbytes, 3))
        command = [sys.executable, "-m", "benchmarks.run_memory", side, str(path), str(feeds), str(THREADS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1])["run"])


def row(loop: Carried, nbytes: int, rounds: int, repeats: int) -> list[str]:
    sides = prepared(loop, nbytes, rounds)
    times = timed(sides.calls, rounds, repeats)
    plan, carried = sides.executable.plan, len(loop.names.split())
    assert plan.moves == () or sides.executable.copied_bytes
    extra = (sides.executable.arena_bytes - loop.reads * loop.feeds(nbytes, 0).get("k", np.empty(0)).nbytes) / nbytes
    analysis = sides.program.memory_analysis()
    theirs = copies_in_body(sides.program, f"f32[{loop.rows(nbytes)},{loop.width}]")
    ours_peak, other_peak = peak("sublet", loop, nbytes), peak("onnxruntime", loop, nbytes)
    best = {side: f"{times[side][0] * 1e3:.4f} / {median(times[side]) * 1e3:.4f}" for side in SIDES}
    ours = times["Sublet"][0]
    return [
        escape(f"{loop.name}, {nbytes // MIB} MiB"),
        str(rounds),
        *(f"{sides.executable.copied_bytes / rounds / nbytes:g}", str(theirs)),
        *(f"{extra - carried:+.3f}", f"{loop.wanted:+d}", f"{analysis.temp_size_in_bytes / nbytes:+.3f}"),
        *(f"{ours_peak / MIB:.1f}", f"{other_peak / MIB:.1f}", f"{ours_peak / other_peak:.2f}"),
        *(best[side] for side in SIDES),
        *(f"{ours / times[side][0]:.3g}" for side in ("XLA", "ORT")),
        "yes" if sides.agree else "NO",
    ]


def result_rows(
    sizes: Sequence[int] = (4 * MIB, 16 * MIB), rounds: int = 100, repeats: int = 5, count: int = len(LOOPS)
) -> Iterator[Row]:
    """Yield the seconds of a round, and the resident memory of Sublet and of ONNX Runtime, for each loop."""
    for nbytes, loop in product(sizes, LOOPS[:count]):
        turns = min(rounds, loop.rounds)
        case, sides = f"{loop.name}, {nbytes // MIB} MiB", prepared(loop, nbytes, turns)
        assert sides.agree, f"{case}: results differ"
        times = timed(sides.calls, turns, repeats)
        yield from round_rows(case, {TITLES[side]: [1e3 * s for s in found] for side, found in times.items()}, "ms")
        for side, title in (("sublet", TITLES["Sublet"]), ("onnxruntime", TITLES["ORT"])):
            yield exact_row(case, title, peak(side, loop, nbytes))


def tiny(repeats: int) -> str:
    """What a round costs beside its work."""
    sides = prepared(TINY, 32, TINY_ROUNDS, threads=1)
    times = timed(sides.calls, TINY_ROUNDS, repeats)
    told = ", ".join(f"{side} {f[0] * 1e6:.2f} (median {median(f) * 1e6:.2f})" for side, f in times.items())
    return f"{TINY.name}, {TINY_ROUNDS:,} rounds, microseconds a round: {told}"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=0, help="of every loop; by default 1,000, of 16 MiB 250")
    arguments.add_argument("--only", default="")
    chosen = arguments.parse_args()
    console = Console(width=200)
    console.print(f"{machine()}, jax {jax.__version__}; {THREADS} threads")
    table = Table(title="Loops (times in ms a round, fastest / median; peak in MiB)")
    headings = ["loop", "rounds", "copies", "XLA", "extra", "wanted", "XLA", "peak", "ORT", "ratio", *SIDES]
    for heading in [*headings, "of XLA", "of ORT", "agree"]:
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    for nbytes in (4 * MIB, 16 * MIB):
        for loop in LOOPS:
            rounds = chosen.rounds or (loop.rounds if nbytes == 4 * MIB else loop.rounds // 4)
            if chosen.only.lower() in loop.name.lower():
                table.add_row(*row(loop, nbytes, rounds, chosen.repeats), end_section=loop is LOOPS[-1])
    console.print(table)
    console.print(tiny(chosen.repeats))


if __name__ == "__main__":
    main()
