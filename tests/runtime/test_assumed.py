"""Shapes that were told of values nobody knows: planned, kept through a plan file, and refused where a run differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sublet
from sublet.base.errors import ModelError, RunError

X = np.array([[1, 0, 2, 0], [0, 3, 0, 4]], np.float32)


def model(op: str) -> onnx.ModelProto:
    """A node whose shape depends on data, and one that reads it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    makers = {
        "NonZero": helper.make_node("NonZero", ["x"], ["a"]),
        "Reshape": helper.make_node("Reshape", ["x", "shape"], ["a"]),
    }
    nodes = [makers[op], helper.make_node("Abs", ["a"], ["b"]), helper.make_node("Abs", ["b"], ["y"])]
    elem = TensorProto.INT64 if op == "NonZero" else TensorProto.FLOAT
    inputs = [x] if op == "NonZero" else [x, shape]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", elem, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RIGHT = {"NonZero": "i64[2,4]", "Reshape": "[4,2]"}
WRONG = {"NonZero": "[2,7]", "Reshape": "[8,1]"}


def given(op: str) -> dict[str, Any]:
    shape = np.array([4, 2])
    return {"x": X} if op == "NonZero" else {"x": X, "shape": shape}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("op", RIGHT)
def test_a_run_holds_what_was_assumed(op: str, backend: str) -> None:
    free = sublet.compile(model(op), backend=backend, optimize="none")
    assert free.plan.gap is None
    right = sublet.compile(model(op), backend=backend, assume={"a": RIGHT[op]})
    assert (right.plan.outside, [name for name, _ in right.plan.assumed_types]) == ((), ["a"])
    assert np.array_equal(right(given(op))["y"], free(given(op))["y"])
    wrong = sublet.compile(model(op), backend=backend, assume={"a": WRONG[op]})
    with pytest.raises(RunError):
        wrong(given(op))


def test_a_plan_remembers_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model("NonZero").SerializeToString())
    read = sublet.read_model(path, assume={"a": "[2,4]"})
    sublet.save(sublet.plan_memory(read), tmp_path / "plan.json")
    plan = sublet.load(tmp_path / "plan.json")
    assert plan.assumed_types == (("a", "i64[2,4]"),)
    assert np.array_equal(sublet.compile(path, plan=plan, backend="onnxruntime")(x=X)["y"], np.nonzero(X))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"a": "[3,4]"}, "is i64[2,?], which contradicts [3,4]"),
        ({"a": "f32[2,4]"}, "which contradicts f32"),
        ({"a": "two"}, "write a shape"),
        ({"z": "[2]"}, "is not in this model; values of unknown shape are: 'a'"),
        ({"x": "[2,5]"}, "is f32[2,4], which contradicts"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, told: dict[str, str], words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model("NonZero").SerializeToString())
    with pytest.raises(ModelError) as caught:
        sublet.read_model(path, assume=told)
    assert words in str(caught.value)
