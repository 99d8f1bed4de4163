"""Types over ranges: at every point, the types that the reader finds for the point alone."""

from __future__ import annotations

import random

import onnx
import pytest
from onnx import TensorProto, helper

from sublet.api.ranges import parse_dims
from sublet.base.boxes import Range
from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.model import Model
from sublet.plan.ranges import graph_at
from tests.support.onnx.ranged_programs import RANGES, ranged_program


def read_over(model: onnx.ModelProto, *ranges: Range) -> Model:
    """The model over ranges, before any optimiser."""
    return from_proto(model, parse_dims({each.name: each for each in ranges})[0])


@pytest.mark.parametrize("seed", range(40))
def test_types_over_ranges_are_the_types_at_each_point(seed: int) -> None:
    model = ranged_program(seed)
    over, rng = read_over(model, *RANGES), random.Random(seed)
    for _ in range(3):
        point = {each.name: rng.randint(each.low, each.high) for each in RANGES}
        alone = {value.name: value.spec for value in from_proto(model, point).graph.values()}
        here = graph_at(over.graph, lambda extent, point=point: extent if isinstance(extent, int) else extent.at(point))
        known = [value for value in here.values() if isinstance(value.spec, TensorSpec) and value.name in alone]
        assert len(known) > 2
        for value in known:
            assert value.spec == alone[value.name], value


def model_of(nodes: list[onnx.NodeProto], shape: list[object], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """A model of one input x and one output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "small", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WINDOWS = [
    ("Conv", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0]}, "f32[n,4,((h -1)//2) + 1,6]"),
    ("Conv", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [4, 4]}, "f32[n,4,((h + 3)//4),4]"),
    ("ConvTranspose", {"kernel_shape": [3, 3], "strides": [2, 2]}, "f32[n,4,2*h + 1,27]"),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, "f32[n,4,((h)//2),6]"),
]


@pytest.mark.parametrize(("op", "attrs", "expected"), WINDOWS)
def test_windows_over_ranges(op: str, attrs: dict[str, object], expected: str) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4, 3, 3], [0.5] * 144)
    inputs = ["x"] if op == "MaxPool" else ["x", "w"]
    model = model_of([helper.make_node(op, inputs, ["y"], **attrs)], ["n", 4, "h", 13], [weight])
    (result,) = read_over(model, Range("n", 1, 4), Range("h", 8, 99)).graph.outputs
    assert str(result.spec) == expected


def test_different_extents_that_meet_have_no_type() -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Add", ["x", "t"], ["y"])]
    model = model_of(nodes, ["a", "b"], [])
    (result,) = read_over(model, Range("a", 1, 4), Range("b", 1, 4)).graph.outputs
    assert str(result.spec) == "outside<f32[?,?]>"


def test_dimensions_are_extents_ranges_or_names() -> None:
    extents, ranges = parse_dims({"a": "1..8", "b": (2, 4), "c": "64..960:32", "d": 3, "e": "a", "f": (5, 5)})
    assert {name: str(extent) for name, extent in extents.items()} == {
        **{"a": "a", "b": "b", "c": "32*c", "d": "3", "e": "a", "f": "5"},
    }
    assert list(ranges) == ["a", "b", "c"]
    for wrong in ("1..", "8..1", "nowhere", (1, 2, 3, 4), 2.5, "1..10:4"):
        with pytest.raises(RunError, match="--dim"):
            parse_dims({"a": wrong})
