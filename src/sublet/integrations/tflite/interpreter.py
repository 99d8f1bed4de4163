"""Script running models in TensorFlow Lite Micro, in a separate process, and writing measured memory and output hashes.

A model unchecked by the kernels may crash the process, without harm to the caller. The argument is a folder with
`requests.json`, a list. Each answer is one line of `answers.txt`, so answers before a crash are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from tflite_micro.python.tflite_micro import runtime

MAX_ARENA_BYTES = 1 << 28
"""The largest arena tried, in bytes."""

STEP = 16


@contextlib.contextmanager
def capture_stderr(into: list[str]) -> Iterator[None]:
    """Capture the standard error stream, including C++ output, and append the text to `into`."""
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)
            file.seek(0)
            into.append(file.read().decode("utf-8", "replace"))


def open_interpreter(raw: bytes, arena: int) -> tuple[Any, str]:
    """Open an interpreter with an arena of `arena` bytes; return (interpreter, "") or (None, reason)."""
    messages: list[str] = []
    interpreter = None
    with capture_stderr(messages):
        try:
            interpreter = runtime.Interpreter.from_bytes(raw, arena_size=arena)
        except (RuntimeError, ValueError) as error:
            messages.append(str(error))
    return interpreter, "" if interpreter is not None else " ".join(" ".join(messages).split())[:300]


def random_input(details: dict[str, Any], rng: np.random.Generator) -> Any:
    """Draw random numbers for an input: normal floats, 8- and 16-bit integers of full range, wider ones up to 40."""
    dtype, shape = np.dtype(details["dtype"]), tuple(details["shape"])
    if dtype.kind == "f":
        return rng.normal(0, 2, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    minimum, maximum = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize < 4 else (-40, 40)
    return rng.integers(max(minimum, 0) if dtype.kind == "u" else minimum, maximum, shape, endpoint=True).astype(dtype)


def set_random_inputs(interpreter: Any, inputs: int, rng: np.random.Generator) -> None:
    """Set every input to random numbers; needed before each run, as a planned arena may reuse the bytes of inputs."""
    for i in range(inputs):
        interpreter.set_input(random_input(interpreter.get_input_details(i), rng), i)


def measure_model(raw: bytes, request: dict[str, Any]) -> dict[str, Any]:
    """Return the arena statistics of a model, and a hash of the outputs of all runs."""
    arena, why = int(request.get("arena") or max(1 << 16, 4 * len(raw))), ""
    interpreter, why = open_interpreter(raw, arena)
    while interpreter is None and arena < MAX_ARENA_BYTES and not request.get("arena"):
        arena *= 8
        interpreter, why = open_interpreter(raw, arena)
    if interpreter is None:
        return {"refused": why or "no reason reported"}
    rng, digest = np.random.default_rng(request.get("seed", 0)), hashlib.sha256()
    messages: list[str] = []
    with capture_stderr(messages):
        for _ in range(request.get("runs", 1)):
            set_random_inputs(interpreter, request["inputs"], rng)
            interpreter.invoke()
            for i in range(request["outputs"]):
                digest.update(np.ascontiguousarray(interpreter.get_output(i)).tobytes())
        interpreter.print_allocations()
    figures = {
        name: int(count) for name, count in re.findall(r"Arena allocation (\w+) (\d+) bytes", " ".join(messages))
    }
    return {"outputs": digest.hexdigest(), **figures}


def can_open(raw: bytes, arena: int) -> bool:
    """True if the model opens in an arena of `arena` bytes; tested in a child process, because some models crash."""
    child = os.fork()
    if child == 0:
        os._exit(0 if open_interpreter(raw, arena)[0] is not None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def smallest_arena(raw: bytes) -> int:
    """Return the smallest arena for opening the model, to a multiple of `STEP` bytes; -1 above `MAX_ARENA_BYTES`."""
    low, high = 0, 1 << 12
    while not can_open(raw, high):
        low, high = high, high * 2
        if high > MAX_ARENA_BYTES:
            return -1
    while high - low > STEP:
        middle = (low + high) // 2 // STEP * STEP
        if can_open(raw, middle):
            high = middle
        else:
            low = middle
    return high


def answer_request(folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request as a JSON object."""
    with open(os.path.join(folder, request["file"]), "rb") as file:
        raw = file.read()
    try:
        answer = measure_model(raw, request)
        if request.get("smallest") and "refused" not in answer:
            answer["smallest"] = smallest_arena(raw)
    except (RuntimeError, ValueError) as error:
        return {"refused": " ".join(str(error).split())[:300]}
    return answer


def main() -> None:
    """Answer all requests in the folder given as the first argument."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "requests.json"), encoding="utf-8") as file:
        requests = json.load(file)
    with open(os.path.join(folder, "answers.txt"), "w", encoding="utf-8") as answers:
        for request in requests:
            answers.write(json.dumps(answer_request(folder, request)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
