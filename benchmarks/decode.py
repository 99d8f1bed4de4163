"""A decoder with caches, token by token: Sublet's session beside ONNX Runtime, in one run.

A prompt, then single tokens. Three sides, each in a process of its own, with one thread and the same greedy tokens:

    sublet   a session over ranges of lengths; GroupQueryAttention appends to the caches of the session in place
    grown    ONNX Runtime with IOBinding: the present of a step is bound as the past of the next
    shared   ONNX Runtime with IOBinding: past and present of all steps in one buffer, as ONNX Runtime GenAI runs it

Time is CPU seconds of a token. Memory is the growth of anonymous resident bytes from the opened model to the last
token. The tokens of all sides must be equal.

    python -m benchmarks.decode [--prompt 512] [--tokens 256] [--layers 12] [--width 768] [--sessions 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

from benchmarks.models.transformers import decoder_with_caches
from benchmarks.run_memory import settle
from benchmarks.serve import one_thread, session_of
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges

SIDES = ("sublet", "grown", "shared")
VOCABULARY = 32_000
ANONYMOUS = "RssAnon"
"""The resident bytes of no file: rows of weights that a token reads first stay out of the growth."""

MIB = 1 << 20

Step = Callable[[np.ndarray, int], np.ndarray]
"""(new tokens, length with the new tokens) -> logits."""

Results = dict[str, dict[str, Any]]
"""By side: the result of its process."""


def state_of(layers: int) -> dict[str, str]:
    """The caches: inputs by name, with the outputs that update them."""
    return {f"past.{i}.{kind}": f"present.{i}.{kind}" for i in range(layers) for kind in ("key", "value")}


def sublet_steps(path: Path, layers: int, rows: int, prompt: int, sessions: int) -> list[Step]:
    """The steps of sessions over one executable."""
    one_thread()
    dims = {"batch": 1, "new": (1, prompt), "total": (1, rows), "past": rows}
    executable = compile_ranges(path, dims, state=state_of(layers), options=Options(io="bound"))

    def step_of(session: Any) -> Step:
        return lambda ids, length: session(input_ids=ids, attention_mask=np.ones((1, length), np.int64))["logits"]

    return [step_of(executable.session()) for _ in range(sessions)]


def runtime_steps(path: Path, layers: int, rows: int, sessions: int, shared: bool) -> list[Step]:
    """The steps of ONNX Runtime, with caches that grow or lie in one buffer."""
    session = session_of(path)
    shape = next(each.shape for each in session.get_inputs() if each.name.startswith("past"))

    def step_of() -> Step:
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        size = (1, shape[1], rows if shared else 0, shape[3])
        caches = {name: make(np.zeros(size, np.float32)) for name in state_of(layers)}

        def step(ids: np.ndarray, length: int) -> np.ndarray:
            binding = session.io_binding()
            binding.bind_cpu_input("input_ids", ids)
            binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
            binding.bind_output("logits", "cpu")
            for name, result in state_of(layers).items():
                binding.bind_ortvalue_input(name, caches[name])
                if shared:
                    binding.bind_ortvalue_output(result, caches[name])
                else:
                    binding.bind_output(result, "cpu")
            session.run_with_iobinding(binding)
            found = dict(zip((each.name for each in session.get_outputs()), binding.get_outputs(), strict=True))
            if not shared:
                caches.update({name: found[result] for name, result in state_of(layers).items()})
            return np.asarray(found["logits"].numpy())

        return step

    return [step_of() for _ in range(sessions)]


def decode(side: str, path: Path, layers: int, prompt: int, tokens: int, sessions: int) -> dict[str, Any]:
    """The tokens of the first session, the CPU seconds of a token, and the growth of memory over all sessions."""
    rows = prompt + tokens
    if side == "sublet":
        steps = sublet_steps(path, layers, rows, prompt, sessions)
    else:
        steps = runtime_steps(path, layers, rows, sessions, side == "shared")
    before, drawn, seconds, all_tokens = settle(ANONYMOUS), np.random.default_rng(0), [], list[int]()
    ids = drawn.integers(0, VOCABULARY, (1, prompt))
    following = [ids] * sessions
    for length in range(prompt, rows):
        for i, step in enumerate(steps):
            begin = thread_time()
            logits = step(following[i], length)
            seconds.append(thread_time() - begin)
            following[i] = np.argmax(logits[:, -1:], axis=-1)
            if i == 0:
                all_tokens.append(int(following[0][0, 0]))
    grown = settle(ANONYMOUS) - before
    return {"tokens": all_tokens, "seconds": float(np.median(seconds[sessions:])), "grown": grown}


def size_options(sides: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a decoding: the sizes, and the side that a process of its own measures."""
    parser = argparse.ArgumentParser()
    for name, default in (("prompt", 512), ("tokens", 256), ("layers", 12), ("width", 768), ("sessions", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--side", default="", choices=("", *sides))
    parser.add_argument("--model", type=Path)
    return parser


def measure_sides(module: str, model: onnx.ModelProto, args: argparse.Namespace, sides: Sequence[str]) -> Results:
    """The result of `module` for each side, in a process of its own, with the sizes of `args`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        onnx.save(model, path, save_as_external_data=True, location="weights.bin")
        sizes = [f"--{name}={getattr(args, name)}" for name in ("prompt", "tokens", "layers", "width", "sessions")]
        command = [sys.executable, "-m", module, *sizes, f"--model={path}"]
        done = {side: subprocess.run([*command, "--side", side], capture_output=True, check=True) for side in sides}
        return {side: json.loads(each.stdout) for side, each in done.items()}


def cache_bytes(args: argparse.Namespace) -> int:
    """The bytes of the caches of all sessions after the last token."""
    return int(2 * args.layers * (args.prompt + args.tokens) * args.width * 4 * args.sessions)


def describe_run(args: argparse.Namespace) -> str:
    """The machine, the versions and the sizes."""
    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread; "
        f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}; "
        f"{args.layers} layers of {args.width}, prompt {args.prompt}, {args.tokens} tokens, {args.sessions} sessions, "
        f"caches {cache_bytes(args) / MIB:.1f} MiB"
    )


def main() -> None:
    """Print the table."""
    args = size_options(SIDES).parse_args()
    if args.side:
        print(json.dumps(decode(args.side, args.model, args.layers, args.prompt, args.tokens, args.sessions)))
        return
    rows, heads = args.prompt + args.tokens, args.width // 64
    model = decoder_with_caches(args.layers, args.width, heads, heads, VOCABULARY, rows)
    found = measure_sides("benchmarks.decode", model, args, SIDES)
    table = Table("side", "ms a token", "of grown", "growth", "of the caches", "tokens equal")
    for side, each in found.items():
        ratio = each["seconds"] / found["grown"]["seconds"]
        table.add_row(
            side, f"{each['seconds'] * 1e3:.2f}", f"{ratio:.3f}", f"{each['grown'] / MIB:.1f} MiB",
            f"{each['grown'] / cache_bytes(args):.2f}", str(each["tokens"] == found["shared"]["tokens"]),
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    console.print(describe_run(args))


if __name__ == "__main__":
    main()
