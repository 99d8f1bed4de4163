"""Operators that the onnx package infers late or otherwise, and caches that are empty at first."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sublet
from sublet.base.errors import ModelError

INFO = helper.make_tensor_value_info
FLOAT = onnx.TensorProto.FLOAT


def model_of(nodes: list[Any], inputs: list[Any], weights: dict[str, Any], opset: int) -> onnx.ModelProto:
    """Return a model whose last node gives the output y."""
    stored = [numpy_helper.from_array(np.asarray(content), name) for name, content in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [INFO("y", FLOAT, None)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agree(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> None:
    """Require that all values are planned, and that a run equals ONNX Runtime's bit for bit."""
    executable = sublet.compile(model, optimize="none", **options)
    assert not executable.plan.outside
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_array_equal(executable(feeds)["y"], expected)


@pytest.mark.parametrize("opset", [12, 15, 16])
@pytest.mark.parametrize("op", ["GreaterOrEqual", "LessOrEqual"])
def test_comparisons_are_planned_before_their_rule_exists(op: str, opset: int) -> None:
    nodes = [helper.make_node(op, ["x", "c"], ["b"]), helper.make_node("Cast", ["b"], ["y"], to=FLOAT)]
    feeds = {"x": np.array([[0.25], [0.5], [1.0]], np.float32)}
    agree(model_of(nodes, [INFO("x", FLOAT, [3, 1])], {"c": np.array([0.5, 0.75], np.float32)}, opset), feeds)


@pytest.mark.parametrize("attributes", [{}, {"onesided": 1}, {"onesided": 0}], ids=str)
def test_a_fourier_transform_without_onesided_is_one_sided(attributes: dict[str, int]) -> None:
    weights = {"step": np.int64(16), "window": np.hanning(40).astype(np.float32)}
    nodes = [helper.make_node("STFT", ["x", "step", "window"], ["y"], **attributes)]
    model = model_of(nodes, [INFO("x", FLOAT, [1, 160])], weights, 17)
    agree(model, {"x": np.random.default_rng(0).standard_normal((1, 160)).astype(np.float32)})


@pytest.mark.parametrize("extent", ["P", 0])
def test_an_extent_may_be_zero(extent: str | int) -> None:
    nodes = [helper.make_node("Concat", ["past", "x"], ["y"], axis=0)]
    model = model_of(nodes, [INFO("past", FLOAT, [extent, 4]), INFO("x", FLOAT, [1, 4])], {}, 21)
    feeds = {"past": np.zeros((0, 4), np.float32), "x": np.ones((1, 4), np.float32)}
    agree(model, feeds, dims={"P": 0} if extent else {})


def test_an_extent_is_not_negative() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(ModelError, match=r"--dim P=-1: an extent is a whole number from 0 to 2\^56"):
        sublet.compile(model_of(nodes, [INFO("x", FLOAT, ["P"])], {}, 21), dims={"P": -1})
