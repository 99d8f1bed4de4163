"""The memory of a dropped executable is free at once: nothing waits for the garbage collector."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.api.ranges import compile_ranges
from tests.runtime.loop_models import CARRIED
from tests.runtime.networks import CHAIN, inception
from tests.runtime.test_ranged import feeds_at, two_dimensions

VECTOR = np.ones(16, np.float32)
DIMS: Any = {"n": (1, 4), "s": "2..64"}


def chain() -> Any:
    """An executable after two runs, with a change of a weight in between."""
    run = compile(CHAIN, backend="reference", weights={"w": VECTOR}, options=Options(weights="arena"))
    run(x=VECTOR)
    run.weights["w"] = VECTOR * 2
    run(x=VECTOR)
    return run


def loop(name: str) -> Any:
    """An executable of a loop."""
    run = compile(CARRIED[name].model())
    run(
        {
            each: np.int64(3) if each == "n" else np.ones(value.spec.shape, np.float32)
            for each, value in run.inputs.items()
        }
    )
    return run


def streams() -> Any:
    """An executable with worker threads."""
    run = compile(inception(), options=Options(streams=2))
    run({name: np.ones(each.spec.shape, np.float32) for name, each in run.inputs.items()})
    return run


def ranged() -> Any:
    """An executable of all shapes."""
    run = compile_ranges(two_dimensions(), DIMS)
    run(feeds_at(2, 8))
    run(feeds_at(3, 5))
    return run


def tiers() -> Any:
    """An executable with a plan for each tier."""
    run = compile_ranges(two_dimensions(), DIMS, tiers={"s": (8, 16)})
    run(feeds_at(2, 8))
    run(feeds_at(3, 25))
    return run


def training_step() -> Any:
    """The executable of a training step of PyTorch."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import sublet

    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = sublet.torch.train_step(module, torch.nn.functional.mse_loss, optimizer)
    step(torch.ones(4, 16), torch.zeros(4, 16))
    [bound] = step._steps.values()
    return bound.executable


LOOPS = [partial(loop, name) for name in CARRIED]


@pytest.mark.parametrize("make", [chain, *LOOPS, streams, ranged, tiers, training_step])
def test_memory_of_a_dropped_executable_is_free_at_once(make: Callable[[], Any]) -> None:
    run = make()
    gc.collect()
    gc.disable()
    try:
        memory = run.planned_memory if hasattr(run, "planned_memory") else run.memory
        raw = memory.raw("arena")
        whole = ref(raw if raw.base is None else raw.base)
        del raw, memory
        assert whole() is not None
        del run
        assert whole() is None
    finally:
        gc.enable()


def test_threads_of_streams_end_with_the_executable() -> None:
    before = threading.active_count()
    for _ in range(3):
        streams()
    for thread in threading.enumerate():
        if thread.name == "sublet stream":
            thread.join(timeout=10)
    assert threading.active_count() == before
