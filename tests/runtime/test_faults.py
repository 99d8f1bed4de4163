"""What may go wrong in a run: the error says where, and the executable runs right afterwards."""

from __future__ import annotations

import mmap
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import KernelError, PlanError, PlanViolation, RunError
from sublet.ir.text import parse
from sublet.planning.pipeline import plan_memory
from sublet.runtime.executable import Executable
from sublet.runtime.memory import aligned_bytes
from tests.runtime.networks import CHAIN, LOOP, WIDE, PythonBackend, with_functions

X = np.arange(16, dtype=np.float32)
W = np.full(16, 3, np.float32)
RIGHT = X * W + X - X * W


def chain(backend: Any = "reference", **options: Any) -> Executable:
    return compile(CHAIN, backend=backend, weights={"w": W}, options=Options(**options))


def wide(backend: Any, streams: int = 2) -> Executable:
    return compile(WIDE, backend=backend, options=Options(streams=streams))


def wide_right(x: np.ndarray) -> np.ndarray:
    return x + 2 - x * 4


class Once:
    """A function whose first call does something else before it computes."""

    def __init__(self, what: Any) -> None:
        self.what = what
        self.calls = 0

    def __call__(self, x: Any, *_: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            self.what()
        return x + 1


def fail() -> None:
    raise ZeroDivisionError("no such luck")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_kernel_that_raises(streams: int) -> None:
    executable = wide(with_functions(A=Once(fail)), streams)
    x = np.ones(64, np.float32)
    with pytest.raises(KernelError, match=r"node a0, onnx\.A .*ZeroDivisionError: no such luck") as caught:
        executable(x=x)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert np.array_equal(executable(x=x)["y"], wide_right(x))
    executable.close()


def test_an_interrupt_in_the_middle_of_a_run() -> None:
    executable = wide(with_functions(A=Once(interrupt)), streams=1)
    x = np.ones(64, np.float32)
    with pytest.raises(KeyboardInterrupt):
        executable(x=x)
    assert np.array_equal(executable(x=x)["y"], wide_right(x))


@pytest.mark.parametrize("interrupted", ["A", "B"])
def test_an_interrupt_waits_until_no_stream_writes_any_more(interrupted: str) -> None:
    running: list[str] = []

    def slow(x: np.ndarray) -> np.ndarray:
        running.append("slow")
        try:
            time.sleep(0.05)
        finally:
            running.pop()
        return x * 2 if interrupted == "A" else x + 1

    def stop() -> None:
        while not running:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)  # Python runs the handler in the main thread, whoever raises it

    once = Once(stop)
    kernels = {interrupted: once, {"A": "B", "B": "A"}[interrupted]: slow}
    executable = wide(with_functions(**kernels))
    x = np.ones(64, np.float32)
    with pytest.raises(KeyboardInterrupt):
        executable(x=x)
    assert not running
    right = wide_right(x) if interrupted == "A" else x + 2 - (x + 2)
    for _ in range(3):
        assert np.array_equal(executable(x=x)["y"], right)
    executable.close()


def test_interrupts_while_streams_end() -> None:
    ended: list[int] = []

    def slow(x: np.ndarray) -> np.ndarray:
        for _ in range(3):
            time.sleep(0.02)
            if threading.current_thread() is not threading.main_thread():
                signal.raise_signal(signal.SIGINT)
        ended.append(1)
        return x * 2

    executable = wide(with_functions(A=lambda x: x + 1, B=slow))
    assert executable.plan.schedule.steps[0].node == "a0", "the first stream runs in the main thread"
    x = np.ones(64, np.float32)
    with pytest.raises(KeyboardInterrupt):
        executable(x=x)
    assert ended
    executable.close()


def test_threads_may_call_one_executable() -> None:
    executable = wide(PythonBackend())
    wrong: list[float] = []

    def use(seed: int) -> None:
        x = np.random.default_rng(seed).integers(-99, 99, 64).astype(np.float32)
        for _ in range(50):
            if not np.array_equal(executable(x=x)["y"], wide_right(x)):
                wrong.append(seed)

    threads = [Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    executable.close()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "'x' is missing"),
        ({"y": X}, "no input 'y'; the inputs are 'x'"),
        ({"x": X[:15]}, r"must be f32\[16\].*not float32\[15\]"),
        ({"x": X.astype(np.float64)}, r"not float64\[16\]"),
        ({"x": X.astype(">f4")}, "must be f32"),
        ({"x": None}, "Python objects"),
        ({"x": [[1.0], [2.0, 3.0]]}, "is no array"),
        ({"x": X, "\x1b[31m": X}, r"\\x1b\[31m"),
    ],
)
def test_wrong_inputs(inputs: dict[str, Any], words: str) -> None:
    executable = chain()
    with pytest.raises(RunError, match=words):
        executable(inputs)
    assert np.array_equal(executable(x=X)["c"], RIGHT)


def test_inputs_may_lie_anyhow() -> None:
    executable = chain()
    assert np.array_equal(executable(x=np.repeat(X, 2)[::2])["c"], RIGHT)
    assert np.array_equal(executable(x=X[::-1])["c"], (X * W + X - X * W)[::-1])
    assert np.array_equal(executable(x=list(X))["c"], RIGHT)


def test_views_may_be_the_inputs_of_the_next_run() -> None:
    graph = parse("graph @n(%x: f32[4], %z: f32[4]) {\n  %a: f32[4] = onnx.Sub(%x, %z)\n  return %a, %x\n}")
    executable = compile(graph, backend="reference")
    seen = executable.views(x=np.full(4, 5, np.float32), z=np.ones(4, np.float32))
    assert executable(x=seen["a"], z=seen["x"])["a"].tolist() == [-1] * 4


def arenas(nbytes: int) -> dict[str, tuple[Any, str]]:
    whole = aligned_bytes(nbytes + 64, 64)
    read_only = aligned_bytes(nbytes, 64)
    read_only.flags.writeable = False
    return {
        "too small": (whole[: nbytes - 1], "needs"),
        "misaligned": (whole[1 : 1 + nbytes], "multiple of 64"),
        "read-only": (read_only, "read-only"),
        "read-only bytes": (bytes(nbytes + 64), "read-only|multiple"),
        "not contiguous": (np.empty(2 * nbytes, np.uint8)[::2], "contiguous"),
        "objects": (np.empty(nbytes, object), "Python objects"),
        "no memory": (object(), "does not expose"),
    }


@pytest.mark.parametrize("what", arenas(1))
def test_arenas_that_do_not_fit(what: str) -> None:
    executable = chain()
    arena, words = arenas(executable.arena_bytes)[what]
    with pytest.raises(RunError, match=words):
        executable.bind("arena", arena)
    assert np.array_equal(executable(x=X)["c"], RIGHT)


@pytest.mark.parametrize("weights", ["bound", "arena"])
def test_the_arena_may_be_anybodys_memory(weights: str, tmp_path: Path) -> None:
    executable = chain(weights=weights, alignment=1)
    size = executable.arena_bytes
    path = tmp_path / "arena"
    path.write_bytes(bytes(size))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        for arena in (bytearray(size + 8), memoryview(bytearray(size)), np.empty(size, np.uint8), Dlpack(size), mapped):
            executable.bind("arena", arena)
            assert np.array_equal(executable(x=X)["c"], RIGHT)
        executable.bind("arena", aligned_bytes(size, 1))
        assert any(mapped[:])


class Dlpack:
    """Offers its memory by DLPack alone, as tensors of other libraries do."""

    def __init__(self, size: int) -> None:
        self.array = np.empty(size, np.uint8)

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_bound_inputs_and_outputs_are_used_where_they_are() -> None:
    executable = chain(io="bound")
    x, c = X.copy(), bytearray(64)
    executable.bind("x", x)
    executable.bind("c", c)
    executable()
    assert np.array_equal(np.frombuffer(c, np.float32), RIGHT)
    x += 1
    assert np.array_equal(executable.views()["c"], np.frombuffer(c, np.float32))
    assert np.array_equal(np.frombuffer(c, np.float32), x * W + x - x * W)
    assert np.array_equal(executable(x=X)["c"], RIGHT)
    assert np.array_equal(x, X), "an input that is given is put where the input is bound"


def test_bound_memory_that_does_not_fit() -> None:
    executable = chain(io="bound")
    read_only = X.copy()
    read_only.flags.writeable = False
    shared = np.zeros(32, np.float32)
    executable.bind("x", shared[:16])
    for name, memory, words in (
        ("x", np.repeat(X, 2)[::2], "contiguous"),
        ("x", X.astype(">f4"), "must be f32"),
        ("x", X[:4], "must be f32"),
        ("x", np.zeros(65, np.uint8)[1:], "multiple of 4"),
        ("c", read_only, "read-only"),
        ("c", bytes(64), "read-only"),
        ("c", shared[8:24], "shares memory with '%x'"),
        ("nobody", X, "no input, output or weight 'nobody'"),
        ("a", X, "no input, output or weight 'a'"),
    ):
        with pytest.raises(RunError, match=words):
            executable.bind(name, memory)
    executable.bind("x", read_only)
    assert np.array_equal(executable()["c"], RIGHT)
    with pytest.raises(RunError, match="bound to read-only memory"):
        executable(x=X)
    with pytest.raises(RunError, match="io='bound'"):
        chain().bind("x", X)


def test_a_value_outside_the_plan_cannot_be_bound() -> None:
    """The sizes of a reshaped tensor and of a sequence are known only in a run."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 4] x, int64[2] s, seq(float[2]) q) => (float[a, b] y, seq(float[2]) w) {
          r = Reshape (x, s)
          y = Relu (r)
          w = Identity (q)
        }"""
    )
    executable = compile(model, options=Options(io="bound"), backend="reference")
    for name, found in (
        ("y", r"f32\[\?,\?\]; the shape depends on data"),
        ("q", r"seq\(f32\[2\]\); a sequence has no"),
    ):
        with pytest.raises(
            RunError, match=f"'{name}' lies outside the plan: expected a size known before the run, found {found}"
        ):
            executable.bind(name, np.zeros((4, 4), np.float32))
    with pytest.raises(RunError, match=r"no input, output or weight 'r' \(an intermediate value"):
        executable.bind("r", np.zeros((4, 4), np.float32))
    shown = compile(model, options=Options(io="bound"), backend="reference", assume={"r": "f32[2,8]"})
    y = np.zeros((2, 8), np.float32)
    shown.bind("y", y)
    shown(x=np.ones((4, 4), np.float32), s=np.array([2, 8]), q=[])
    assert (y == 1).all(), "a declared shape makes the value one of the plan"


def test_packed_weights_can_be_bound() -> None:
    graph = parse(
        "graph @n(%x: f32[4]) {\n  weights %w: i4[4], %k: f32[] = [1.0]\n"
        "  %q: f32[4] = onnx.DequantizeLinear(%w, %k)\n  %a: f32[4] = onnx.Sub(%x, %q)\n  return %a\n}"
    )
    one = np.ones(4, np.float32)
    executable = compile(graph, backend="reference", weights={"w": np.array([1, 2, 3, -4], ml_dtypes.int4)})
    assert executable(x=one)["a"].tolist() == [0, -1, -2, 5]
    executable.bind("w", bytes([0x21, 0x43]))
    assert executable(x=one)["a"].tolist() == [0, -1, -2, -3]
    assert executable.run_watched({"x": one}, lambda _, action: action)["a"].tolist() == [0, -1, -2, -3]


def test_plans_of_another_graph_and_wrong_plans_are_refused() -> None:
    other = parse("graph @other(%x: f32[16]) {\n  %a: f32[16] = onnx.Relu(%x)\n  return %a\n}")
    with pytest.raises(PlanError, match="made for another graph"):
        compile(CHAIN, backend="reference", weights={"w": W}, plan=plan_memory(other))
    plan = plan_memory(CHAIN)
    broken = tuple(replace(p, region=replace(p.region, offset=0)) for p in plan.placements)
    with pytest.raises(PlanViolation):
        compile(CHAIN, backend="reference", weights={"w": W}, plan=replace(plan, placements=broken))


def loop_inputs(limit: int) -> dict[str, Any]:
    return {"h0": np.zeros(3, np.float32), "xs": np.ones((9, 3), np.float32), "limit": np.array(limit)}


def test_a_loop_beyond_its_rounds() -> None:
    executable = compile(LOOP, backend="reference")
    with pytest.raises(RunError, match="loop loop: runs more than the planned 9 iterations"):
        executable(loop_inputs(10))
    assert executable(loop_inputs(9))["h"].tolist() == [9] * 3
    assert executable(loop_inputs(4))["h"].tolist() == [4] * 3


def test_an_endless_loop_can_be_interrupted() -> None:
    graph = parse(
        """graph @endless(%x: f32[4], %on: bool[]) {
          %y: f32[4] = while(%i: i64[]; %p: f32[4] = %x; ) @loop body @step {
            continue if %on
            %q: f32[4] = onnx.A(%p)
            next %q;
          }
          return %y
        }"""
    )
    rounds = 0

    def grow(x: np.ndarray) -> np.ndarray:
        nonlocal rounds
        rounds += 1
        if rounds == 1000:
            signal.raise_signal(signal.SIGINT)
        return x + 1

    executable = compile(graph, backend=with_functions(A=grow))
    x = np.zeros(4, np.float32)
    with pytest.raises(KeyboardInterrupt):
        executable(x=x, on=np.array(True))
    assert rounds >= 1000
    assert executable(x=x, on=np.array(False))["y"].tolist() == [0] * 4


@pytest.mark.parametrize(("index", "fine"), [(0, True), (1, True), (2, False), (-1, False), (2**40, False)])
def test_a_branch_index_out_of_range(index: int, fine: bool) -> None:
    graph = parse(
        """graph @choice(%x: f32[3], %which: i64[]) {
          %r: f32[3] = case %which @choose {
            arm @negate {
              %a: f32[3] = onnx.Neg(%x)
              yield %a
            }
            arm @keep {
              yield %x
            }
          }
          return %r
        }"""
    )
    executable = compile(graph, backend="reference")
    x = np.ones(3, np.float32)
    if fine:
        assert executable(x=x, which=np.array(index))["r"].tolist() == [2 * index - 1] * 3
    else:
        with pytest.raises(RunError, match=f"branch choose: the index is {index}, expected 0 to 1"):
            executable(x=x, which=np.array(index))


def test_what_nobody_computes_and_weights_without_content() -> None:
    with pytest.raises(RunError, match=r"no backend has a kernel for onnx\.A \(node a0\)"):
        wide("reference")
    with pytest.raises(RunError, match="pass 'w' in"):
        compile(CHAIN, backend="reference")
    with pytest.raises(RunError, match="no backend 'magic'"):
        compile(CHAIN, backend="magic", weights={"w": W})
