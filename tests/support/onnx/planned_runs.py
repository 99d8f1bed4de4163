"""A random ONNX model in ONNX Runtime, and in the planned memory of random options: the same bits."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

import sublet
from sublet.analysis.options import Options
from sublet.base.tensor import TensorSpec
from sublet.packing import STRATEGIES, MemoryRegion
from sublet.plan import bound_storage_name
from sublet.planning.pipeline import is_without_fallback
from tests.support.onnx.models import Program
from tests.support.onnx.several_outputs import onnx_program

LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "onnxruntime": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
WIDE = 64
"""From this alignment on ONNX Runtime's kernels round as in its own memory: at others their loops over vectors begin
with other elements, and what is computed one by one may differ in the last bit. The same is true of rows in place."""

CLOSE = {2: 2e-2, 4: 1e-4, 8: 1e-6}
"""How far floats may be off, by their bytes, in those cases, and where an optimiser rewrites the model."""


MOST_SECONDS = 60
"""Of the processor, for one model; what takes tenths of a second does not end when it takes more than this."""


@dataclass(frozen=True)
class Outcome:
    """`refused` says why ONNX Runtime does not run the model, `wrong` what differs; both "" when all is well.

    `unfollowed` tells that the plan points less because the checker could not follow it.
    """

    refused: str = ""
    wrong: str = ""
    nodes: int = 0
    unfollowed: bool = False


def options_of(rng: random.Random) -> Options:
    """Random ways to plan."""
    return Options(
        strategy=rng.choice([*STRATEGIES, "auto", "auto", "no_reuse"]),
        alignment=1 << rng.randint(0, 8),
        io=rng.choice(["arena", "bound"]),
        weights=rng.choice(["arena", "bound"]),
        streams=rng.choice([1, 1, 1, 2, 3]),
        share=rng.random() < 0.9,
        in_place_from=rng.choice([None, 0, 0, 8, 1 << 20]),
        order=rng.choice(["given", "given", "less"]),
        regions=rng.choice([(), (), (), (MemoryRegion("fast", 1024, 1), MemoryRegion("slow", 1 << 24, 10))]),
    )


def runtime(program: Program, level: str) -> dict[str, Any]:
    """The outputs of ONNX Runtime. Raises whatever it raises."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = LEVELS[level]
    session = ort.InferenceSession(program.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, program.feeds), strict=True))


def check_onnx_apart(seed: int) -> Outcome:
    """`check_onnx` in a process of its own, which ONNX Runtime's kernels may end, and which must come to an end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(check_onnx(seed, lambda stage: (pickle.dump(stage, pipe), pipe.flush())), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    stage: Any = ""
    with os.fdopen(reading, "rb") as pipe:
        try:
            while not isinstance(stage, Outcome):
                stage = pickle.load(pipe)
        except EOFError:
            pass
    status = os.waitpid(child, 0)[1]
    if isinstance(stage, Outcome):
        return stage
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit status {status}"
    if stage == "runtime":
        return Outcome(refused=f"ONNX Runtime ends the process: {ended}")
    return Outcome(wrong=f"seed {seed}: {stage} ends the process: {ended}")


def check_onnx(seed: int, trace: Any = None) -> Outcome:
    """One model. `trace` is told each stage before it begins."""
    tell = trace or (lambda stage: None)
    program = onnx_program(seed)
    rng = random.Random(seed)
    options, level = options_of(rng), rng.choice(["none", "none", "onnxruntime"])
    nodes = len(program.model.graph.node)
    tell("runtime")
    try:
        wanted = runtime(program, level)
    except Exception as error:
        refused = f"{type(error).__name__}: {' '.join(str(error).split())[-160:]}"
        tell("refused")
        return Outcome(refused, _bare(program, options, level), nodes)
    tell("compile")
    where = f"seed {seed}, optimize={level}, {options}"
    try:
        executable = sublet.compile(program.model, optimize=level, options=options)
        if options.io == "bound":
            _bind(rng, executable)
        tell("run")
        runs = [executable(program.feeds), executable(program.feeds)]
        tell("poisoned")
        runs.append(sublet.run_poisoned(executable, program.feeds))
        executable.close()
    except Exception as error:
        return Outcome(wrong=f"{where}: {type(error).__name__}: {error}", nodes=nodes)
    exact = level == "none" and options.alignment >= WIDE and options.in_place_from in (None, 1 << 20)
    for kind, found in zip(("first", "second", "poisoned"), runs, strict=True):
        off = _differing(wanted, found, exact=exact)
        if off:
            return Outcome(wrong=f"{where}: the {kind} run differs in {off}", nodes=nodes)
    return Outcome(nodes=nodes, unfollowed=not is_without_fallback(executable.plan))


def _bind(rng: random.Random, executable: sublet.Executable) -> None:
    """Some outputs lie in memory of the caller's; not those that are inputs or weights, whose content that would be."""
    given = {*executable.graph.inputs, *executable.graph.weights}
    for name, value in executable.outputs.items():
        bound = bound_storage_name(value.name) in {storage.name for storage in executable.plan.storages}
        if bound and isinstance(value.spec, TensorSpec) and value not in given and rng.random() < 0.5:
            executable.bind(name, sublet.aligned_bytes(value.nbytes, WIDE))


def _bare(program: Program, options: Options, level: str) -> str:
    """What is wrong with what a user is told about a model that ONNX Runtime refuses."""
    try:
        executable = sublet.compile(program.model, optimize=level, options=options)
        executable(program.feeds)
        executable.close()
    except sublet.SubletError:
        return ""
    except Exception as error:
        return f"{type(error).__name__} reaches the user: {error}"
    return ""


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any], *, exact: bool) -> Sequence[str]:
    return [name for name, array in wanted.items() if not _same(array, np.asarray(found[name]), exact)]


def _same(a: Any, b: Any, exact: bool) -> bool:
    """ONNX Runtime gives a loop of no rounds rows of an extent 0 where it does not know a shape that we know."""
    if a.dtype == b.dtype and a.size == b.size == 0:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return a.tobytes() == b.tobytes()
    if np.array_equal(a, b, equal_nan=True):
        return True
    close = CLOSE[a.dtype.itemsize]
    return not exact and np.allclose(a.astype(np.float64), b.astype(np.float64), close, close, equal_nan=True)
