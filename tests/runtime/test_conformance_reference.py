"""What ONNX's reference implementation gets wrong or lacks, and kinds of constants, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sublet.base.errors import KernelError, ModelError, RunError
from sublet.integrations.onnx.onnx_backend import run_model

RNG = np.random.default_rng(7)


def model(
    *nodes: onnx.NodeProto, feeds: Mapping[str, Any], opset: int, output: int = TensorProto.FLOAT, **parts: Any
) -> onnx.ModelProto:
    kinds = {name: helper.np_dtype_to_tensor_dtype(content.dtype) for name, content in feeds.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], content.shape) for name, content in feeds.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_tensor_value_info("z", output, None)], **parts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def same_as_onnxruntime(made: onnx.ModelProto, feeds: Mapping[str, Any]) -> Any:
    """The one output, once both agree on it."""
    (found,) = run_model(made, feeds, backend="reference")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, dict(feeds))
    assert found.dtype == expected.dtype
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)
    return found


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [7, 9, 13, 15])
def test_batch_normalization_with_one_output_normalizes_by_what_it_is_given(opset: int) -> None:
    feeds = {"x": floats(2, 3, 4), "s": floats(3), "b": floats(3), "m": floats(3), "v": np.abs(floats(3))}
    node = helper.make_node("BatchNormalization", list("xsbmv"), ["z"], epsilon=1e-3)
    same_as_onnxruntime(model(node, feeds=feeds, opset=opset), feeds)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(9, None), (9, 2), (11, 0), (11, -1), (11, None), (13, 1), (13, None)])
def test_softmax_sees_a_matrix_before_version_13(op: str, opset: int, axis: int | None) -> None:
    feeds = {"x": floats(2, 3, 4)}
    node = helper.make_node(op, ["x"], ["z"], **({} if axis is None else {"axis": axis}))
    same_as_onnxruntime(model(node, feeds=feeds, opset=opset), feeds)


@pytest.mark.parametrize("opset", [10, 13, 19])
def test_dequantize_linear_of_every_version(opset: int) -> None:
    feeds = {
        "x": RNG.integers(-9, 9, (2, 3)).astype(np.int8),
        "s": np.array(0.5, np.float32),
        "p": np.array(2, np.int8),
    }
    node = helper.make_node("DequantizeLinear", ["x", "s", "p"], ["z"])
    same_as_onnxruntime(model(node, feeds=feeds, opset=opset), feeds)


def test_scatter_is_scatter_elements() -> None:
    feeds = {"x": floats(3, 4), "i": np.array([[2, 0], [1, 3]]), "u": floats(2, 2)}
    node = helper.make_node("Scatter", list("xiu"), ["z"], axis=1)
    same_as_onnxruntime(model(node, feeds=feeds, opset=9), feeds)


def test_the_first_version_of_clip_runs() -> None:
    feeds = {"x": floats(9)}
    node = helper.make_node("Clip", ["x"], ["z"], min=-0.5, max=0.25)
    (found,) = run_model(model(node, feeds=feeds, opset=5), feeds, backend="reference")
    np.testing.assert_array_equal(found, feeds["x"].clip(-0.5, 0.25))


def test_an_empty_optional_is_none() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    empty = helper.make_node("Optional", [], ["o"], type=kind)
    has = helper.make_node("OptionalHasElement", ["o"], ["z"])
    (found,) = run_model(model(empty, has, feeds={}, opset=18, output=TensorProto.BOOL), [], backend="reference")
    assert found.item() is False
    take = helper.make_node("OptionalGetElement", ["o"], ["z"])
    with pytest.raises(KernelError, match=r"node OptionalGetElement.*has no value"):
        run_model(model(empty, take, feeds={}, opset=18), [], backend="reference")


def test_an_optional_holds_what_it_was_given() -> None:
    feeds = {"x": floats(2)}
    nodes = (
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("Identity", ["o"], ["p"]),
        helper.make_node("OptionalGetElement", ["p"], ["z"]),
    )
    same_as_onnxruntime(model(*nodes, feeds=feeds, opset=18), feeds)


def sparse(indices: Any, name: str = "w") -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([5, 7], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices), "i"), [2, 3])


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_initializer_is_a_dense_weight(indices: Any) -> None:
    feeds = {"x": floats(2, 3)}
    node = helper.make_node("Add", ["x", "w"], ["z"])
    made = model(node, feeds=feeds, opset=13, sparse_initializer=[sparse(indices)])
    found = same_as_onnxruntime(made, feeds)
    np.testing.assert_array_equal(found - feeds["x"] > 1, [[False, True, False], [False, False, True]])


def test_a_constant_may_be_sparse() -> None:
    feeds = {"x": floats(2, 3)}
    constant = helper.make_node("Constant", [], ["w"], sparse_value=sparse([1, 5]))
    same_as_onnxruntime(model(constant, helper.make_node("Mul", ["x", "w"], ["z"]), feeds=feeds, opset=13), feeds)


@pytest.mark.parametrize("indices", [[1, 6], [-1, 2], [1], [[0, 1], [2, 0]]])
def test_indices_outside_a_sparse_tensor_are_refused(indices: Any) -> None:
    feeds = {"x": floats(2, 3)}
    made = model(helper.make_node("Add", ["x", "w"], ["z"]), feeds=feeds, opset=13, sparse_initializer=[sparse([0, 1])])
    made.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array(indices), "i"))
    with pytest.raises(ModelError, match="sparse tensor 'w'"):
        run_model(made, feeds, backend="reference")


@pytest.mark.parametrize("value", [{"value_strings": ["a", "bé"]}, {"value_string": "c"}])
def test_constants_may_be_strings(value: Any) -> None:
    constant = helper.make_node("Constant", [], ["z"], **value)
    made = model(constant, feeds={}, opset=13, output=TensorProto.STRING)
    same_as_onnxruntime(made, {})


def test_a_number_may_come_from_a_constant_text() -> None:
    feeds = {"x": floats(2)}
    text = helper.make_node("Constant", [], ["t"], value_strings=["0.5", "-2"])
    number = helper.make_node("Cast", ["t"], ["n"], to=TensorProto.FLOAT)
    made = model(text, number, helper.make_node("Add", ["x", "n"], ["z"]), feeds=feeds, opset=13)
    same_as_onnxruntime(made, feeds)


def test_packed_elements_of_unknown_shape_are_refused_rather_than_mistaken() -> None:
    feeds = {"c": np.array(True), "two": floats(2), "three": floats(3)}
    arms = {
        f"{arm}_branch": helper.make_graph(
            [helper.make_node("Cast", [source], [arm], to=TensorProto.INT4)],
            arm,
            [],
            [helper.make_tensor_value_info(arm, TensorProto.INT4, None)],
        )
        for arm, source in (("then", "two"), ("else", "three"))
    }
    nodes = helper.make_node("If", ["c"], ["w"], **arms), helper.make_node("Cast", ["w"], ["z"], to=TensorProto.FLOAT)
    with pytest.raises(RunError, match="branch If_0: i4 elements of a shape that depends on data"):
        run_model(model(*nodes, feeds=feeds, opset=21), feeds, backend="reference")
