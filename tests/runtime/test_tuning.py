"""Autotune takes the fastest of several backends, and remembers it; optimisers that refuse a model say so."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
from onnx import helper

import sublet
from benchmarks.run_table import left_behind
from sublet.ir.graph import Node
from sublet.runtime.kernel import Array
from sublet.runtime.tuning import CACHE, CHOICE, Tuner, time_backends
from tests.runtime.networks import ARITHMETIC, CHAIN, PythonBackend

W = np.full(16, 3, np.float32)
X = np.arange(16, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path))
    return tmp_path / CACHE


@dataclass
class Slow(PythonBackend):
    """Sleeps in the operators of `slow`, and counts how often each runs."""

    slow: tuple[str, ...] = ()
    runs: dict[str, int] = field(default_factory=dict)

    def kernel(self, node: Node, constants: Mapping[Any, Array]) -> Any:
        function = ARITHMETIC[node.op]

        def compute(*inputs: Array) -> Array:
            self.runs[node.op] = self.runs.get(node.op, 0) + 1
            if node.op in self.slow:
                time.sleep(0.005)
            return function(*inputs)

        return PythonBackend({node.op: compute}, self.scratch).kernel(node, constants)


def pair(scratch: int = 0) -> list[Slow]:
    return [
        Slow(name="first", slow=("onnx.Mul", "onnx.Add")),
        Slow(name="second", slow=("onnx.Sub",), scratch=scratch),
    ]


def tuned(backends: list[Slow], **how: Any) -> dict[str, str]:
    executable = sublet.compile(CHAIN, backend=backends, weights={"w": W}, autotune=True, **how)
    assert np.array_equal(executable(x=X)["c"], X * W + X - X * W)
    return {name: chosen.backend for name, chosen in executable._chosen_kernels().items() if chosen}


def test_the_fastest_is_taken_and_remembered(folder: Path) -> None:
    backends = pair()
    assert tuned(backends) == {"first": "second", "second": "second", "third": "first"}
    assert len(list(folder.iterdir())) == 3
    contents = [json.loads((kept / CHOICE).read_text()) for kept in folder.iterdir()]
    assert all(content["seconds"].keys() == {"first", "second"} for content in contents)
    fresh = pair()
    tuned(fresh)
    assert fresh[0].runs == {"onnx.Sub": 1}, "only the run itself"
    assert fresh[1].runs == {"onnx.Mul": 1, "onnx.Add": 1}
    for kept in folder.iterdir():
        (kept / CHOICE).write_text("broken")
    again = pair()
    tuned(again)
    assert again[0].runs["onnx.Mul"] > 1


def test_without_autotune_the_order_decides(folder: Path) -> None:
    executable = sublet.compile(CHAIN, backend=pair(), weights={"w": W})
    assert executable.nodes_of_backends == {"first": 3}
    assert not folder.exists()


def test_a_question_that_needs_too_much_is_not_asked() -> None:
    assert set(tuned(pair(scratch=1000), workspace=1000).values()) == {"first"}
    assert set(tuned(pair(scratch=1000), workspace=2000).values()) == {"first", "second"}


def test_equal_nodes_are_one_question(folder: Path) -> None:
    graph = sublet.parse(
        """graph @net(%x: f32[16], %z: f32[8]) {
          %a: f32[16] = onnx.A(%x)  %b: f32[16] = onnx.A(%a)  %c: f32[8] = onnx.A(%z)
          return %b, %c
        }"""
    )
    backends = [Slow(name="first"), Slow(name="second", slow=("onnx.A",))]
    assert Tuner(backends, {}).choices(graph, {}) == dict.fromkeys("abc", "first")
    assert len(list(folder.iterdir())) == 2


def test_a_kernel_that_cannot_run_on_made_up_operands_is_no_candidate() -> None:
    def fail(x: Array) -> Array:
        raise IndexError("out of range")

    graph = sublet.parse("graph @net(%x: f32[16]) { %a: f32[16] = onnx.A(%x) return %a }")
    node = graph.nodes[0]
    backends = [PythonBackend({"onnx.A": fail}, name="fails"), PythonBackend({"onnx.A": np.copy}, name="works")]
    assert time_backends(node, backends, {}).keys() == {"works"}


def test_real_backends(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph = sublet.parse(
        """graph @net(%x: f32[4,64], %k: i64[2]) {
          weights %w: f32[64,64], %axes: i64[1] = [1]
          %a: f32[4,64] = onnx.MatMul(%x, %w)
          %b: f32[4,64] = onnx.Relu(%a)
          %c: f32[4,64] = onnx.Gelu(%b)
          %d: f32[2,64] = onnx.Gather(%c, %k)
          %y: f32[2,1] = onnx.ReduceSum(%d, %axes)
          return %y
        }"""
    )
    feeds = {"x": np.ones((4, 64), np.float32), "k": np.array([3, -1])}
    weights = {"w": np.eye(64, dtype=np.float32)}
    plain = sublet.compile(graph, weights=weights)
    assert plain.nodes_of_backends == {"onnxruntime": 5}
    found = sublet.compile(graph, weights=weights, autotune=True)
    assert set(found.nodes_of_backends) <= {"onnxruntime", "numpy"}
    np.testing.assert_allclose(found(feeds)["y"], plain(feeds)["y"], rtol=1e-5)
    answers = {
        json.loads((kept / CHOICE).read_text())["question"].split(",")[0]: json.loads((kept / CHOICE).read_text())
        for kept in folder.iterdir()
    }
    assert set(answers["['onnx.MatMul'"]["seconds"]) == {"onnxruntime", "numpy"}
    assert answers["['onnx.Gelu'"]["backend"] == ""


def refused() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mystery", ["x"], ["t"], domain="elsewhere"),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", 1, (2,))], [info("y", 1, (2,))])
    graph.value_info.append(info("t", 1, (2,)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_refusal_of_the_optimiser_is_told() -> None:
    pytest.importorskip("onnxruntime")
    mystery = PythonBackend({"onnx.elsewhere.Mystery": lambda x: x - 1})
    executable = sublet.compile(refused(), backend=["onnxruntime", mystery])
    assert executable(x=np.array([0, 2], np.float32))["y"].tolist() == [0, 1]
    assert executable.remark.startswith("not optimised, ONNX Runtime rejects the model: ")
    assert "elsewhere" in executable.remark
    assert sublet.compile(refused(), backend=["onnxruntime", mystery], optimize="none").remark == ""


@pytest.mark.parametrize("backend", ["auto", "numpy", "reference"])
def test_runs_leave_no_python_memory_behind(backend: str) -> None:
    executable = sublet.compile(CHAIN, backend=backend, weights={"w": W})
    feeds = {"x": X}
    for _ in range(10):
        executable.views(feeds)
    assert left_behind(lambda: executable.views(feeds)) == 0


def test_prepare_leaves_nothing_to_do_for_the_first_run() -> None:
    backend = Slow()
    executable = sublet.compile(CHAIN, backend=backend, weights={"w": W})
    executable.prepare()
    program = executable._program
    assert program is not None
    assert backend.runs == {}
    assert np.array_equal(executable(x=X)["c"], X * W + X - X * W)
    assert executable._program is program


@pytest.mark.parametrize("given", [W.tolist(), np.repeat(W, 2)[::2], np.frombuffer(b"-" + W.tobytes(), np.uint8)[1:]])
def test_weights_that_are_copied_lie_at_lines_of_the_cache(given: Any) -> None:
    array = given.view(np.float32) if getattr(given, "dtype", None) == np.uint8 else np.asarray(given, np.float32)
    executable = sublet.compile(CHAIN, backend=PythonBackend(), weights={"w": array})
    weight = executable.bytes_of(executable.graph.weights[0])
    if not np.may_share_memory(weight, array):
        assert weight.ctypes.data % 64 == 0
    else:
        assert array.flags.c_contiguous
        assert array.ctypes.data % 4 == 0
    assert np.array_equal(executable(x=X)["c"], X * W + X - X * W)


def test_commands_are_tuned_among_the_kernels_there_are(folder: Path) -> None:
    """PyTorch's and the reference's; what was found holds for the version and the number of threads."""
    torch = pytest.importorskip("torch")
    g = sublet.Graph()
    x = g.input("x", (4, 5))
    g.output("y", sublet.nn.tanh(x) * 2 + sublet.nn.histogram(x, bins=5, low=-1, high=1).astype("f32"))
    plain, right = sublet.compile(g, backend="reference"), np.full((4, 5), 0.25, np.float32)
    executable = sublet.compile(g, backend=["torch", "reference"], autotune=True)
    np.testing.assert_allclose(executable(x=right)["y"], plain(x=right)["y"], rtol=1e-6)
    contents = [json.loads((kept / CHOICE).read_text()) for kept in folder.iterdir()]
    found = {content["question"].split("'")[1]: content for content in contents}
    assert found["nn.tanh"]["seconds"].keys() == {"torch", "reference"}
    assert found["nn.tanh"]["backend"] in ("torch", "reference")
    assert found["nn.histogram"]["seconds"] == {}, "there is one kernel"
    assert torch.__version__.partition("+")[0] in found["nn.tanh"]["question"]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        sublet.compile(g, backend=["torch", "reference"], autotune=True)
    finally:
        torch.set_num_threads(threads)
    assert len(list(folder.iterdir())) == 2 * len(contents)
