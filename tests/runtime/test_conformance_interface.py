"""ONNX's backend interface: models with open dimensions, single operators, devices, clear errors."""

from __future__ import annotations

import unittest
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import BackendTest

import sublet.integrations.onnx.onnx_backend as backend
from sublet.analysis.options import Options
from sublet.base.errors import ModelError, RunError, SubletError
from sublet.integrations.onnx.onnx_backend import MAX_EXECUTABLES

F32 = TensorProto.FLOAT
REFERENCE: dict[str, Any] = {"backend": "reference"}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(
    *nodes: onnx.NodeProto, shapes: dict[str, Any], outputs: list[str], initializer: Any = (), opset: int = 21
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, F32, shape) for name, shape in shapes.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", inputs, results, initializer=list(initializer))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def adding(x: Any, y: Any) -> onnx.ModelProto:
    return model(helper.make_node("Add", ["x", "y"], ["z"]), shapes={"x": x, "y": y}, outputs=["z"])


@pytest.mark.parametrize("shape", [["n", "c"], [None, 3], [2, "c"], None, ["", "?"]])
def test_open_dimensions_take_the_extents_of_the_inputs(shape: Any) -> None:
    rep = backend.prepare(adding(shape, [1, 3]), **REFERENCE)
    for rows in (2, 2, 1):
        x = np.ones((rows, 3), np.float32) if shape != [2, "c"] else X
        (z,) = rep.run([x, X[:1]])
        np.testing.assert_array_equal(z, x + X[:1])


def test_an_extent_may_be_zero() -> None:
    (z,) = backend.run_model(adding(["n", 3], [1, 3]), [X[:0], X[:1]], **REFERENCE)
    assert z.shape == (0, 3)


def test_one_name_may_stand_for_two_extents() -> None:
    (z,) = backend.run_model(adding(["n", 3], ["n", 3]), [X, X[:1]], **REFERENCE)
    np.testing.assert_array_equal(z, X + X[:1])


def test_executables_are_kept_by_shape_but_not_for_ever() -> None:
    rep = backend.prepare(adding(["n"], ["n"]), **REFERENCE)
    feeds = [{"x": np.ones(n, np.float32), "y": np.ones(n, np.float32)} for n in range(1, MAX_EXECUTABLES + 2)]
    first = rep.executable(feeds[0])
    assert rep.executable(feeds[0]) is first
    for feed in feeds:
        rep.run(feed)
    assert rep.executable(feeds[-1]) is rep.executable(feeds[-1])
    assert rep.executable(feeds[0]) is not first


def test_a_closed_model_is_compiled_once_when_it_is_prepared() -> None:
    rep = backend.prepare(adding([2, 3], [2, 3]), options=Options(io="bound"), **REFERENCE)
    assert rep.executable({}) is rep.executable({"x": X, "y": X})
    assert rep.executable({}).arena_bytes == 0


def test_an_operator_nobody_computes_is_named_when_the_model_is_prepared() -> None:
    absent = model(helper.make_node("Absent", ["x"], ["z"], domain="nowhere"), shapes={"x": [1]}, outputs=["z"])
    absent.opset_import.append(helper.make_opsetid("nowhere", 1))
    with pytest.raises(RunError, match=r"no backend has a kernel for onnx.nowhere.Absent"):
        backend.prepare(absent, **REFERENCE)


def test_an_input_with_a_default_may_be_left_out_or_given() -> None:
    weight = onnx.numpy_helper.from_array(X, "w")
    shapes = {"x": [2, 3], "w": [2, 3]}
    made = model(helper.make_node("Mul", ["x", "w"], ["z"]), shapes=shapes, outputs=["z"], initializer=[weight])
    rep = backend.prepare(made, **REFERENCE)
    np.testing.assert_array_equal(rep.run(X)[0], X * X)
    np.testing.assert_array_equal(rep.run([X, X + 1])[0], X * (X + 1))
    np.testing.assert_array_equal(rep.run({"w": X + 2, "x": X})[0], X * (X + 2))
    np.testing.assert_array_equal(rep.run([X])[0], X * X)


def test_outputs_go_by_position_and_name_and_may_repeat() -> None:
    nodes = helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2)
    result = backend.run_model(model(nodes, shapes={"x": [2, 3]}, outputs=["b", "a", "b"]), [X], **REFERENCE)
    np.testing.assert_array_equal(result[1], X[:1])
    np.testing.assert_array_equal(result["a"], X[:1])  # type: ignore[call-overload]
    np.testing.assert_array_equal(result[0], result[2])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([X], "1 inputs were passed; the model takes 2: x, y"),
        ([X, X, X], "3 inputs were passed"),
        ({"x": X}, "the input 'y' is missing; the model's inputs are x, y"),
        ({"x": X, "y": X, "q": X}, "the model has no input 'q'"),
        (
            [X, X.astype(np.float64)],
            r"input y: must be f32\[2,3\], an array of float32 with the shape \[2, 3\], not float64",
        ),
        ([X, X[:1]], r"input y: must be f32\[2,3\]"),
        ([X[0], X], "input x has 2 dimensions; the shape passed has 1"),
        ([[[1.0], [1.0, 2.0]], X], "input 'x' is not an array"),
    ],
)
def test_wrong_inputs_are_explained(inputs: Any, message: str) -> None:
    rep = backend.prepare(adding(["n", 3], [2, 3]), **REFERENCE)
    with pytest.raises(SubletError, match=message):
        rep.run(inputs)
    np.testing.assert_array_equal(rep.run([X, X])[0], X + X)


def test_a_malformed_model_is_refused_when_it_is_prepared() -> None:
    with pytest.raises(ModelError, match="reads 'q', which nothing defines"):
        backend.prepare(model(helper.make_node("Relu", ["q"], ["z"]), shapes={"x": [1]}, outputs=["z"]))


def test_run_node_runs_one_operator() -> None:
    (z,) = backend.run_node(helper.make_node("Add", ["a", "b"], ["z"]), [X, X], **REFERENCE)
    np.testing.assert_array_equal(z, X + X)
    (z,) = backend.run_node(helper.make_node("Mul", ["a", "a"], ["z"]), X, **REFERENCE)
    np.testing.assert_array_equal(z, X * X)
    node = helper.make_node("Clip", ["x", "", "top"], ["z"])
    (z,) = backend.run_node(node, {"x": X, "top": np.float32(2)}, **REFERENCE)
    np.testing.assert_array_equal(z, X.clip(max=2))


def test_run_node_of_an_old_version_of_another_domain_and_of_sequences() -> None:
    node = helper.make_node("Softmax", ["x"], ["z"], axis=0)
    (old,) = backend.run_node(node, [X], opset_version=11, **REFERENCE)
    np.testing.assert_allclose(old.sum(), 1, rtol=1e-6)
    (new,) = backend.run_node(node, [X], opset_version=13, **REFERENCE)
    np.testing.assert_allclose(new.sum(), 3, rtol=1e-6)
    node = helper.make_node("Binarizer", ["x"], ["z"], domain="ai.onnx.ml", threshold=2.0)
    np.testing.assert_array_equal(backend.run_node(node, [X], **REFERENCE)[0], X > 2)
    node = helper.make_node("ConcatFromSequence", ["s"], ["z"], axis=0)
    np.testing.assert_array_equal(backend.run_node(node, {"s": [X, X]}, **REFERENCE)[0], np.concatenate([X, X]))
    words = np.array(["a", "b"], object)
    (joined,) = backend.run_node(helper.make_node("StringConcat", ["x", "y"], ["z"]), [words, words], **REFERENCE)
    assert joined.tolist() == ["aa", "bb"]


def test_run_node_explains_wrong_inputs() -> None:
    node = helper.make_node("Add", ["a", "b"], ["z"])
    with pytest.raises(RunError, match="1 inputs were passed; Add takes a, b"):
        backend.run_node(node, [X])
    with pytest.raises(RunError, match="input 'b': datetime64 is not a tensor"):
        backend.run_node(node, [X, np.datetime64("2020-01-01")])


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(RunError, match="no device 'CUDA'; Sublet runs on 'CPU'"):
        backend.prepare(adding([1], [1]), "CUDA")


def test_onnx_takes_the_module_for_a_backend() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner: Any = BackendTest(backend, __name__)
    kind = runner.include("test_relu_cpu|test_add_c").test_cases["OnnxBackendNodeModelTest"]
    result = unittest.TestResult()
    for name in ("test_relu_cpu", "test_add_cpu", "test_add_cuda"):
        kind(name).run(result)
    assert result.wasSuccessful()
    assert [reason for _, reason in result.skipped] == ["Backend doesn't support device CUDA"]
