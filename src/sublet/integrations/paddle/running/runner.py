"""Script that runs a training program in Paddle and writes the results, for the Python with Paddle.

The script imports no module of Sublet and runs under every Python since 3.8: an environment with an old Paddle has an
old Python. `verify` starts the script with a folder that contains `request.json` and its files, and reads
`answer.json`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.update(FLAGS_enable_pir_api="0")  # Paddle reads the flag at import

import numpy as np
import paddle

SEED = 7


def framework() -> Any:
    """Return Paddle's module with Program and core, under its name in this version."""
    return paddle.base.framework if hasattr(paddle, "base") else paddle.fluid.framework


def parse_program(path: str) -> Any:
    """Parse a program from a file."""
    with open(path, "rb") as file:
        return framework().Program.parse_from_string(file.read())


def memory_counters() -> tuple[Callable[[], int], Callable[[], int], Callable[[], None]]:
    """Return functions for the bytes held by Paddle's allocator, for the peak since the last reset, and for the reset.

    Paddle 1.8.5 has no counter; a preloaded library can supply the functions. Paddle 2.6 cannot reset, so its peak is
    over all steps so far.
    """
    preloaded = ctypes.CDLL(None)
    if hasattr(preloaded, "allocations_current"):
        preloaded.allocations_current.restype = preloaded.allocations_peak.restype = ctypes.c_long
        return preloaded.allocations_current, preloaded.allocations_peak, preloaded.allocations_reset
    core = framework().core

    def counter(name: str) -> Callable[[], int]:
        """Return a function for a counter of Paddle; a function for 0 if the counter is missing."""
        read = getattr(core, f"host_memory_stat_{name}_value", None)
        return (lambda: 0) if read is None else lambda: int(read("Allocated", 0))

    reset = getattr(core, "host_memory_stat_reset_peak_value", None)
    return counter("current"), counter("peak"), (lambda: None) if reset is None else lambda: reset("Allocated", 0)


def feeds_of(folder: str) -> list[dict[str, Any]]:
    """Return a dict of feeds for each run, from arrays named NAME.RUN; NAME.RUN.lod has the offsets of sequences."""
    runs: dict[int, dict[str, Any]] = {}
    with np.load(os.path.join(folder, "feeds.npz")) as arrays:
        for key in arrays.files:
            if not key.endswith(".lod"):
                name, _, run = key.rpartition(".")
                value = arrays[key]
                if key + ".lod" in arrays.files:
                    value = paddle.fluid.create_lod_tensor(
                        value, [arrays[key + ".lod"].tolist()], framework().core.CPUPlace()
                    )
                runs.setdefault(int(run), {})[name] = value
    return [runs[run] for run in sorted(runs)]


def hex_floats(value: Any) -> list[str]:
    """Return a fetched value as hex floats: equal text means equal bits (except the payload of a NaN)."""
    return [float(number).hex() for number in np.asarray(value).astype(np.float64).ravel()]


def persistables(program: Any) -> list[Any]:
    """Return the persistable tensors of a program."""
    kinds = framework().core.VarDesc.VarType
    plain = (getattr(kinds, "DENSE_TENSOR", None), getattr(kinds, "LOD_TENSOR", None))
    return [v for v in program.list_vars() if v.persistable and v.type in plain]


def draw_parameters(scope: Any, program: Any) -> None:
    """Initialise all persistable tensors with random numbers, for a program without a startup program."""
    random = np.random.RandomState(SEED)
    for variable in persistables(program):
        numbers = random.uniform(0.01, 0.1, variable.shape).astype("float32")
        scope.var(variable.name).get_tensor().set(numbers, framework().core.CPUPlace())


def state_digests(scope: Any, program: Any) -> dict[str, str]:
    """Return the SHA-256 of each persistable tensor's bytes."""
    found = {}
    for variable in persistables(program):
        held = scope.find_var(variable.name)
        if held is not None and held.get_tensor()._is_initialized():
            found[variable.name] = hashlib.sha256(np.array(held.get_tensor()).tobytes()).hexdigest()
    return found


def static_modules() -> tuple[Any, Any]:
    """Return the module with Executor and the module with save and load; switch Paddle to static graphs."""
    if hasattr(paddle, "enable_static"):
        paddle.enable_static()
    if hasattr(paddle, "seed"):
        paddle.seed(SEED)
    modern = hasattr(paddle, "static") and hasattr(paddle.static, "Executor")
    return (paddle.static, paddle.static) if modern else (paddle.fluid, paddle.fluid)


def bytes_at_rest(current: Callable[[], int]) -> int:
    """Return the bytes held after all pending frees: Paddle frees on a separate thread."""
    held, looks = current(), 0
    while looks < 3:
        time.sleep(0.002)
        now = current()
        held, looks = now, looks + 1 if now == held else 0
    return held


def train(folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested steps and return version, fetched values, peaks and state."""
    api, files = static_modules()
    core = framework().core
    program, executor, scope = (
        parse_program(os.path.join(folder, "program.pb")),
        api.Executor(core.CPUPlace()),
        core.Scope(),
    )
    current, peak, reset = memory_counters()
    fetched: list[list[list[str]]] = []
    peaks: list[int] = []
    feeds = feeds_of(folder)
    with api.scope_guard(scope):
        if os.path.exists(os.path.join(folder, "startup.pb")):
            startup = parse_program(os.path.join(folder, "startup.pb"))
            startup.random_seed = SEED
            executor.run(startup)
        else:
            draw_parameters(scope, program)
        if request["restore"]:
            files.load(program, request["restore"], executor)
        for step in range(request["first"], request["first"] + request["steps"]):
            held = bytes_at_rest(current)
            reset()
            values = executor.run(program, feed=feeds[step % len(feeds)], fetch_list=request["fetch"])
            peaks.append(peak() - held)
            fetched.append([hex_floats(value) for value in values])
            del values
        if request["save"]:
            files.save(program, request["save"])
        state = state_digests(scope, program)
    return {"version": paddle.__version__, "fetched": fetched, "peaks": peaks, "state": state}


def main() -> None:
    """Read the request, train, and write the answer."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
        request = json.load(file)
    answer = train(folder, request)
    with open(os.path.join(folder, "answer.json"), "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
