"""Every stretch of a network in two halves computes what the network computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest

import sublet
from benchmarks.models.builder import Builder
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.region_split import AxisSlice, RegionSplit, propose_splits, split_region
from sublet.ir.model import Constant, Model

pytest.importorskip("onnxruntime")


@dataclass(frozen=True)
class Part:
    """A part of a weight, as the weight of the changed graph."""

    whole: Constant
    cut: AxisSlice

    def array(self) -> Any:
        where = (slice(None),) * self.cut.axis + (slice(self.cut.begin, self.cut.end),)
        return np.ascontiguousarray(self.whole.array()[where])


def vision() -> onnx.ModelProto:
    """Two images through the operators that work on feature maps."""
    b = Builder("vision")
    x = b.conv_norm(b.input("x", (2, 3, 13, 13)), 8, 3, 2)
    y = b.op("Clip", b.conv_norm(x, 8, 5, group=8), b.filled(0.0), b.filled(6.0))
    y = b.op("Conv", y, b.random_weight(8, 8, 3, 3), dilations=[2, 2], pads=[2, 1, 1, 2], kernel_shape=[3, 3])
    b.channels[y] = 8
    scale, zero = b.constant(np.array(0.05, np.float32)), b.constant(np.array(3, np.uint8))
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", y, scale, zero), scale, zero)
    y = b.op("Mul", y, b.random_weight(8, 1, 1))
    z = b.pool("MaxPool", y, 3, 2, 1)
    z = b.op("AveragePool", z, kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
    z = b.op("Add", b.op("Relu", z), b.op("Sigmoid", z))
    flat = b.op("Flatten", b.op("GlobalAveragePool", z))
    y = b.op("Gemm", flat, b.random_weight(8, 6), b.random_weight(6))
    return b.model(y=b.op("Softmax", y, axis=-1))


def language() -> onnx.ModelProto:
    """Rows of numbers through the operators that work on rows."""
    b = Builder("language")
    x = b.input("x", (6, 5, 8))
    y = b.op("LayerNormalization", b.linear(x, 8, 16), b.filled(1.0, 16), b.filled(0.5, 16), axis=-1)
    y = b.op("Softmax", b.op("Add", b.linear(b.op("Tanh", y), 16, 8), x), axis=-1)
    y = b.op("Add", y, b.random_weight(6, 1, 8))
    return b.model(y=b.op("Where", b.op("Greater", y, b.filled(0.2)), y, b.random_weight(5, 8)))


def with_parts(model: Model, changed: RegionSplit) -> Model:
    """The changed graph with the contents of its weights."""
    parts = {name: Part(model.weights[whole], cut) for name, (whole, cut) in changed.weight_slices.items()}
    return replace(model, graph=changed.graph, weights={**model.weights, **parts})


def outputs(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return sublet.compile(model, options=sublet.Options(strategy="best_fit_by_size"), backend=("numpy", "reference"))(
        inputs
    )


@pytest.mark.parametrize("network", [vision, language])
def test_every_stretch_in_two_halves_computes_the_same(network: Any) -> None:
    model = from_proto(network())
    x = np.random.default_rng(1).random(model.graph.inputs[0].spec.shape, dtype=np.float32)  # type: ignore[union-attr]
    expected = outputs(model, {"x": x})["y"]
    seen: set[tuple[str, int]] = set()
    nodes = model.graph.nodes
    for first in range(len(nodes)):
        for length in (1, 4) if first % 4 == 0 else (1,):
            for axis in range(3):
                changed = split_region(model.graph, list(nodes[first : first + length]), axis)
                if changed is None or any(v.literal for v in changed.graph.weights if v in model.graph.weights):
                    continue
                found = outputs(with_parts(model, changed), {"x": x})["y"]
                assert np.allclose(found, expected, rtol=1e-5, atol=1e-6), changed.what
                seen.update((node.op, axis) for node in nodes[first : first + length])
    wanted = {op for op, _ in seen}
    assert wanted >= {node.op for node in nodes} - {"onnx.Flatten", "onnx.Identity"}
    assert {axis for _, axis in seen} >= ({0, 1, 2} if network is vision else {0, 1})


def test_what_is_not_known_to_be_exact_is_left_whole() -> None:
    refused = {
        "onnx.Softmax(%x) {axis = 0}": 0,
        "onnx.CumSum(%x, %k)": 0,
        "onnx.com.microsoft.Gelu(%x)": 0,
        'onnx.MaxPool(%x) {kernel_shape = [1, 1], auto_pad = "SAME_UPPER"}': 2,
        "onnx.MaxPool(%x) {kernel_shape = [1, 1], ceil_mode = 1}": 2,
        "onnx.BatchNormalization(%x, %s, %s, %s, %s) {training_mode = 1}": 0,
        "onnx.BatchNormalization(%x, %s, %s, %s, %s) {spatial = 0}": 2,
        "onnx.QuantizeLinear(%x, %s)": 1,
        "onnx.GlobalAveragePool(%x)": 2,
    }
    for text, axis in refused.items():
        body = f"  weights %k: i64[] = [0], %s: f32[4]\n  %y: f32[4,4,4,4] = {text}\n  return %y"
        graph = sublet.parse(f"graph @g(%x: f32[4,4,4,4]) {{\n{body}\n}}")
        assert split_region(graph, list(graph.nodes), axis) is None, text


def test_the_stretch_around_a_peak_needs_less() -> None:
    b = Builder("peak")
    x = b.input("x", (1, 4, 32, 32))
    wide = b.op("Relu", b.conv(x, 64, 1))
    model = from_proto(b.model(y=b.conv(b.pool("MaxPool", wide, 2, 2), 4, 1)))
    plan = sublet.plan_memory(model)
    found = list(propose_splits(model.graph, plan.peak_point.node))
    assert found
    best = min(sublet.plan_memory(each.graph).arena_bytes for each in found)
    assert best < 0.7 * plan.arena_bytes
    assert list(propose_splits(model.graph, "nowhere")) == []
