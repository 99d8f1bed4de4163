"""Streams and memory of an executable: equal results in every interleaving, and figures that are true."""

from __future__ import annotations

import ctypes
import inspect
import random
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest
from sublet.api.compiling import compile
from sublet.api.model_files import read_model
from sublet.base.errors import RunError
from sublet.ir.graph import Node
from sublet.ir.text import parse
from sublet.packing import MemoryRegion
from sublet.runtime import workspace
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.poison import run_poisoned
from sublet.runtime.profile import Profile
from sublet.runtime.workspace import NOT_YET
from tests.runtime.networks import CHAIN, WIDE, PythonBackend, inception, with_functions

GOOGLENET = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_inception_v1.onnx"
MIB = 1 << 20
W = np.full(16, 3, np.float32)
X = np.arange(16, dtype=np.float32)
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured by Linux' and glibc's means")


def delays(seed: int) -> Any:
    """A watch that sleeps for a random while before each point."""
    rng = random.Random(seed)

    def watch(index: int, action: Call) -> Call:
        def late() -> Any:
            time.sleep(rng.random() * 0.002)
            return action()

        return late

    return watch


@pytest.mark.parametrize("streams", [2, 4])
def test_streams_compute_the_same_whatever_the_delays(streams: int) -> None:
    model = inception()
    x = np.random.default_rng(1).standard_normal((1, 4, 10, 10)).astype(np.float32)
    one = compile(model, backend="reference")
    several = compile(model, backend="reference", options=Options(streams=streams))
    assert {step.stream for step in several.plan.schedule.steps} == set(range(streams))
    (right,) = one(x=x).values()
    for seed in range(4):
        (found,) = several.run_watched({"x": x}, delays(seed)).values()
        assert np.array_equal(found, right)
    (found,) = several(x=x).values()
    assert np.array_equal(found, right)
    several.close()


def test_streams_of_googlenet_compute_the_same_whatever_the_delays() -> None:
    pytest.importorskip("onnxruntime")
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    right: np.ndarray | None = None
    for streams in (1, 2, 4):
        executable = compile(read_model(GOOGLENET), backend="onnxruntime", options=Options(streams=streams))
        (name,) = executable.inputs
        for seed in range(2):
            (found,) = executable.run_watched({name: x}, delays(seed)).values()
            right = found if right is None else right
            assert np.array_equal(found, right)
        executable.close()


def test_streams_overlap() -> None:
    """Each of two streams waits until the other has begun: run one after another, they would never end."""
    begun: set[str] = set()

    def meet(name: str, other: str) -> Any:
        def compute(x: np.ndarray) -> np.ndarray:
            begun.add(name)
            for _ in range(5000):
                if other in begun:
                    return x
                time.sleep(0.001)
            raise AssertionError(f"{other} never began")

        return compute

    executable = compile(WIDE, backend=with_functions(A=meet("A", "B"), B=meet("B", "A")), options=Options(streams=2))
    assert executable(x=np.ones(64, np.float32))["y"].tolist() == [0] * 64
    executable.close()


REGIONS = (MemoryRegion("sram", 600, 1), MemoryRegion("dram", 1 << 20, 10))


def test_plans_with_memory_regions_run() -> None:
    executable = compile(WIDE, backend=PythonBackend(), options=Options(regions=REGIONS))
    assert {place.region.storage for place in executable.plan.placements} == {"sram", "dram"}
    x = np.arange(64, dtype=np.float32)
    right = x + 2 - x * 4
    assert np.array_equal(executable(x=x)["y"], right)
    assert np.array_equal(run_poisoned(executable, {"x": x})["y"], right)
    sram = aligned_bytes(600, 64)
    sram[:] = 0
    executable.bind("sram", sram)
    assert np.array_equal(executable(x=x)["y"], right)
    assert sram.any()
    with pytest.raises(RunError, match="there are 'x', 'y', 'sram', 'dram'"):
        executable.bind("arena", sram)
    profile = Profile(executable)
    executable.run_watched({"x": x}, profile.watch)
    counters = [event["args"] for event in profile.trace()["traceEvents"] if event["ph"] == "C"]
    assert max(counter["sram"] for counter in counters) <= 600
    assert max(counter["dram"] for counter in counters) > 0


class Careless(PythonBackend):
    """The kernel of node a0 also writes 8 bytes at a distance from its output."""

    distance = 0

    def kernel(self, node: Node, constants: Any) -> Any:
        kernel = super().kernel(node, constants)
        return kernel if node.name != "a0" else CarelessKernel(self)


@dataclass
class CarelessKernel:
    backend: Careless
    scratch: int = 0

    def bind(self, inputs: Any, outputs: Any, scratch: Any) -> Call:
        def run() -> None:
            outputs[0][...] = inputs[0] + 1
            ctypes.memset(outputs[0].ctypes.data + self.backend.distance, 0, 8)

        return run


@pytest.mark.parametrize("regions", [(), REGIONS])
def test_poison_tells_who_writes_beside_its_output(regions: tuple[MemoryRegion, ...]) -> None:
    backend = Careless()
    executable = compile(WIDE, backend=backend, options=Options(regions=regions))
    x = np.ones(64, np.float32)
    at = {place.value: place.region for place in executable.plan.placements}
    size = next(storage.nbytes for storage in executable.plan.storages if storage.name == at["a0"].storage)
    start = at["a0"].offset
    for byte in (-8, size, size + 2000):
        backend.distance = byte - start
        with pytest.raises(RunError, match=f"a0: wrote outside its outputs, at byte {byte} of the {at['a0'].storage}"):
            run_poisoned(executable, {"x": x})


def test_poison_shows_what_a_kernel_leaves_unwritten() -> None:
    class Lazy(PythonBackend):
        def kernel(self, node: Node, constants: Any) -> Any:
            return LazyKernel() if node.name == "a1" else super().kernel(node, constants)

    executable = compile(WIDE, backend=Lazy())
    assert (
        np.isnan(run_poisoned(executable, {"x": np.ones(64, np.float32)})["y"]).tolist() == [False] * 32 + [True] * 32
    )


class LazyKernel:
    scratch = 0

    def bind(self, inputs: Any, outputs: Any, scratch: Any) -> Call:
        def run() -> None:
            outputs[0][:32] = inputs[0][:32]

        return run


def chain(backend: Any, **options: Any) -> Executable:
    return compile(CHAIN, backend=backend, weights={"w": W}, options=Options(**options))


def test_memory_counts_the_plan() -> None:
    memory = chain(PythonBackend(), io="bound").memory
    assert (memory.inputs, memory.outputs, memory.weights, memory.scratch) == (64, 64, 64, 0)
    assert memory.allocated.total_bytes is None
    assert memory.allocated.reason == NOT_YET
    executable = compile(WIDE, backend=PythonBackend(scratch=100))
    memory = executable.memory
    assert (memory.inputs, memory.outputs, memory.weights, memory.scratch) == (0, 0, 0, 100)
    assert memory.arena == executable.plan.arena_bytes >= 256 + 100
    assert (memory.outside_values, memory.outside) == (0, 0)
    assert executable(x=np.ones(64, np.float32))["y"].tolist() == [3 - 4] * 64
    assert executable.nodes_of_backends == {"python": 5}


def test_memory_counts_what_lies_outside_the_plan() -> None:
    graph = (
        'graph @net(%x: f32[8]) {\n  %n: outside("i64[1,?]", "depends on data") = onnx.NonZero(%x)\n'
        "  %y: f32[8] = onnx.Relu(%x)\n  return %n, %y\n}\n"
    )
    executable = compile(parse(graph), backend="reference")
    executable(x=np.ones(8, np.float32))
    assert (executable.memory.outside_values, executable.memory.outside) == (1, 64)
    executable(x=np.zeros(8, np.float32))
    assert executable.memory.outside == 0


@needs_linux
@pytest.mark.parametrize(("keep", "take"), [(0, 0), (0, 24 * MIB), (16 * MIB, 0), (5 * MIB, 12 * MIB)])
def test_what_libraries_take_is_measured(keep: int, take: int) -> None:
    """The middle kernel keeps some memory from its first run on, and takes some while it runs."""
    kept: list[np.ndarray] = []

    def greedy(a: np.ndarray, x: np.ndarray) -> np.ndarray:
        if not kept:
            kept.append(np.ones(keep, np.uint8))
        return a + x + np.zeros(take, np.uint8).max(initial=0) * np.ones(take, np.uint8).max(initial=0)

    executable = chain(with_functions(Add=greedy))
    assert np.array_equal(executable.measured(x=X)["c"], X * W + X - X * W)
    found = executable.memory.allocated
    assert found.reason == ""
    assert found.held_bytes is not None
    assert found.peak_bytes is not None
    assert found.total_bytes == found.held_bytes + found.peak_bytes
    assert abs(found.held_bytes - keep) < MIB, "what others free meanwhile counts too"
    assert abs(found.peak_bytes - take) < 3 * MIB, "resident memory comes and goes in pages of other things, too"
    executable.measured(x=X)
    assert executable.memory.allocated.held_bytes == found.held_bytes


@needs_linux
def test_what_threads_take_is_measured() -> None:
    """Other threads have heaps of their own, which keep what is freed unless they are told not to."""
    take = 12 * MIB

    def greedy(x: np.ndarray) -> np.ndarray:
        return x + np.ones(take, np.uint8).min() - 1

    executable = compile(WIDE, backend=with_functions(B=greedy), options=Options(streams=2))
    executable.run_watched({"x": np.ones(64, np.float32)}, delays(1))
    for _ in range(2):
        executable.measured(x=np.ones(64, np.float32))
        found = executable.memory.allocated.peak_bytes
        assert found is not None
        assert abs(found - take) < MIB
    executable.close()


@needs_linux
def test_the_arena_and_outputs_are_no_workspace() -> None:
    """A large arena that is touched for the first time must not look like memory of a library."""
    graph = parse("graph @n(%x: f32[4194304]) {\n  %a: f32[4194304] = onnx.A(%x)\n  return %a\n}")
    executable = compile(graph, backend=with_functions(A=lambda x: x))
    executable.measured(x=np.zeros(4194304, np.float32))
    found = executable.memory.allocated
    assert found.held_bytes is not None
    assert found.peak_bytes is not None
    assert found.held_bytes < MIB
    assert found.peak_bytes < 2 * MIB


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workspace, "CLEAR_REFS", tmp_path / "no" / "such")
    monkeypatch.setattr(workspace, "_libc", lambda: None)
    executable = chain("reference")
    assert np.array_equal(executable.measured(x=X)["c"], X * W + X - X * W)
    found = executable.memory.allocated
    assert (found.held_bytes, found.peak_bytes, found.total_bytes) == (None, None, None)
    assert "cannot be reset" in found.reason


class Asked(PythonBackend):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[str] = []

    def kernel(self, node: Node, constants: Any) -> Any:
        self.nodes.append(node.name)
        return super().kernel(node, constants)


def test_a_backend_is_asked_once_for_each_node_until_a_weight_may_have_changed() -> None:
    backend, memory = Asked(), W.copy()
    executable = compile(CHAIN, backend=backend, weights={"w": memory})
    executable(x=X)
    executable(x=X)
    assert backend.nodes == ["first", "second", "third"]
    for factor in (2, 5):
        memory[:] = factor
        executable.bind("w", memory)
        assert np.array_equal(executable(x=X)["c"], X * factor + X - X * factor)
    assert backend.nodes == ["first", "second", "third"] * 3


def test_its_repr_is_one_line_and_chooses_no_kernels() -> None:
    backend = Asked()
    executable = compile(CHAIN, backend=backend, weights={"w": W})
    backend.nodes.clear()
    assert repr(executable) == "<Executable chain: arena 128 bytes, inputs 1, outputs 1>"
    assert repr(executable.plan) == "<MemoryPlan chain: arena 128 bytes, values 5>"
    assert repr(executable.graph) == "<Graph chain: nodes 3, inputs 1, outputs 1, weights 1>"
    assert not backend.nodes


def test_compile_shows_its_arguments_to_editors_and_puts_them_into_one_record() -> None:
    arguments = {name: each.default for name, each in inspect.signature(compile).parameters.items()}
    assert arguments == {field.name: field.default for field in fields(CompileRequest)} | {
        "model": inspect.Parameter.empty
    }
