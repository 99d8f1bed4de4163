"""Runs models in TensorFlow Lite Micro and writes what they need and compute: a script, in a process of its own.

A model that its kernels do not check well ends this process, and no other. It is started with a folder that holds
`requests.json`, a list; each answer is one line of `answers.txt`, so that those before a crash are there.
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

MOST = 1 << 28
"""Bytes of an arena that is tried at most."""

STEP = 16


@contextlib.contextmanager
def overheard(into: list[str]) -> Iterator[None]:
    """What is printed to the standard error meanwhile, by C++ too."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            into.append(file.read().decode("utf-8", "replace"))


def opened(raw: bytes, arena: int) -> tuple[Any, str]:
    """An interpreter with an arena of so many bytes, or None and why there is none."""
    said: list[str] = []
    made = None
    with overheard(said):
        try:
            made = runtime.Interpreter.from_bytes(raw, arena_size=arena)
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    return made, "" if made is not None else " ".join(" ".join(said).split())[:300]


def drawn(details: dict[str, Any], rng: np.random.Generator) -> Any:
    """Numbers for an input: all that small integers can be, few of large ones."""
    dtype, shape = np.dtype(details["dtype"]), tuple(details["shape"])
    if dtype.kind == "f":
        return rng.normal(0, 2, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize < 4 else (-40, 40)
    return rng.integers(max(least, 0) if dtype.kind == "u" else least, most, shape, endpoint=True).astype(dtype)


def fed(interpreter: Any, inputs: int, rng: np.random.Generator) -> None:
    """Every input set anew: a planned arena may hold something else there by now."""
    for i in range(inputs):
        interpreter.set_input(drawn(interpreter.get_input_details(i), rng), i)


def measured(raw: bytes, request: dict[str, Any]) -> dict[str, Any]:
    """What runs of a model compute, as a hash, and what they hold."""
    arena, why = int(request.get("arena") or max(1 << 16, 4 * len(raw))), ""
    interpreter, why = opened(raw, arena)
    while interpreter is None and arena < MOST and not request.get("arena"):
        arena *= 8
        interpreter, why = opened(raw, arena)
    if interpreter is None:
        return {"refused": why or "it does not say why"}
    rng, digest = np.random.default_rng(request.get("seed", 0)), hashlib.sha256()
    said: list[str] = []
    with overheard(said):
        for _ in range(request.get("runs", 1)):
            fed(interpreter, request["inputs"], rng)
            interpreter.invoke()
            for i in range(request["outputs"]):
                digest.update(np.ascontiguousarray(interpreter.get_output(i)).tobytes())
        interpreter.print_allocations()
    figures = {name: int(count) for name, count in re.findall(r"Arena allocation (\w+) (\d+) bytes", " ".join(said))}
    return {"outputs": digest.hexdigest(), **figures}


def fits(raw: bytes, arena: int) -> bool:
    """Whether a model can be opened in so many bytes: tried in a child, as some models crash for want of memory."""
    child = os.fork()
    if child == 0:
        os._exit(0 if opened(raw, arena)[0] is not None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def smallest(raw: bytes) -> int:
    """The smallest arena that a model can be opened in."""
    least, most = 0, 1 << 12
    while not fits(raw, most):
        least, most = most, most * 2
        if most > MOST:
            return -1
    while most - least > STEP:
        middle = (least + most) // 2 // STEP * STEP
        if fits(raw, middle):
            most = middle
        else:
            least = middle
    return most


def answered(folder: str, request: dict[str, Any]) -> dict[str, Any]:
    with open(os.path.join(folder, request["file"]), "rb") as file:
        raw = file.read()
    try:
        answer = measured(raw, request)
        if request.get("smallest") and "refused" not in answer:
            answer["smallest"] = smallest(raw)
    except (RuntimeError, ValueError) as error:
        return {"refused": " ".join(str(error).split())[:300]}
    return answer


def main() -> None:
    folder = sys.argv[1]
    with open(os.path.join(folder, "requests.json"), encoding="utf-8") as file:
        requests = json.load(file)
    with open(os.path.join(folder, "answers.txt"), "w", encoding="utf-8") as answers:
        for request in requests:
            answers.write(json.dumps(answered(folder, request)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
