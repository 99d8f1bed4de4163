"""Types over ranges: at every point, the types that the reader finds for the point alone."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from sublet.api.ranges import compile_ranges, parse_dims
from sublet.base.boxes import Range
from sublet.base.errors import ModelError, PlanError, RunError
from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.types import TensorType, spec_of
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
    ("Conv", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0]}, "f32[n,4,((h - 1)//2) + 1,6]"),
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


COMPUTED = {
    "a bool of an extent is 0 or 1": """
        s = Shape (x)  t = Cast <to = 9> (s)  u = Cast <to = 7> (t)  one = Constant <value = int64[1] {1}> ()
        f = Gather (u, one)  r = Constant <value = int64[1] {-1}> ()  to = Concat <axis = 0> (f, r)
        y = Reshape (x, to)""",
    "steps without axes": """
        s = Shape (x)  b = Constant <value = int64[1] {-1}> ()  e = Constant <value = int64[1] {-9}> ()
        turned = Slice (s, b, e, , b)  y = Reshape (x, turned)""",
    "a remainder with the sign of the dividend": """
        s = Shape (x)  n = Neg (s)  four = Constant <value = int64[1] {4}> ()  m = Mod <fmod = 1> (n, four)
        p = Add (m, four)  i = Constant <value = int64[1] {0}> ()  g = Gather (p, i)  h = Squeeze (g)
        zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()  r = Range (zero, h, one)
        y = Cast <to = 1> (r)""",
    "the last rows": """
        b = Constant <value = int64[1] {-3}> ()  e = Constant <value = int64[1] {99999}> ()
        a = Constant <value = int64[1] {0}> ()  y = Slice (x, b, e, a)""",
    "the last row": "i = Constant <value = int64[1] {-1}> ()  y = Gather <axis = 0> (x, i)",
    "an integer too large for its type": """
        s = Shape (x)  big = Constant <value = int64[2] {4611686018427387904, 4611686018427387904}> ()
        m = Mul (s, big)  i = Constant <value = int64[1] {1}> ()  g = Gather (m, i)  c = Cast <to = 1> (g)
        y = Add (c, x)""",
}


BY_TORCHSCRIPT = {
    "pads in pairs, turned and transposed": """
        s = Shape <end = 1> (x)  z = Constant <value_ints = [0, 0]> ()  o = Constant <value_ints = [0]> ()
        half = Concat <axis = 0> (s, o)  all = Concat <axis = 0> (half, z)
        pairs = Constant <value_ints = [-1, 2]> ()  table = Reshape (all, pairs)
        b = Constant <value_ints = [-1]> ()  e = Constant <value_ints = [-9999]> ()
        turned = Slice (table, b, e, o, b)  columns = Transpose <perm = [1, 0]> (turned)  pads = Reshape (columns, b)
        y = Pad (x, pads)""",
    "a range of floats": """
        s = Shape (x)  i = Constant <value_int = 0> ()  n = Gather (s, i)  f = Cast <to = 1> (n)
        zero = Constant <value_float = 0.0> ()  one = Constant <value_float = 1.0> ()  y = Range (zero, f, one)""",
}


def onnx_net(nodes: str) -> onnx.ModelProto:
    """The model of some nodes that compute y from x, with an output of any shape."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[n, 2] x) => (float[] y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("name", BY_TORCHSCRIPT)
def test_shapes_computed_as_torchscript_writes_them_are_planned(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = onnx_net(BY_TORCHSCRIPT[name])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    executable = compile_ranges(model, {"n": (1, 8)}, optimize="none")
    for n in range(1, 9):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        assert np.array_equal(executable(x=x)["y"], session.run(None, {"x": x})[0]), n


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_shapes_equal_onnx_runtime_or_are_refused(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = onnx_net(COMPUTED[name])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    try:
        executable = compile_ranges(model, {"n": (1, 8)}, optimize="none")
    except PlanError as refusal:
        if "is unknown" in str(refusal):
            return
        raise
    for n in range(1, 9):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        try:
            (wanted,) = session.run(None, {"x": x})
        except Exception:  # a shape that the model does not take
            continue
        assert np.array_equal(executable(x=x)["y"], wanted), n


def test_expressions_of_too_many_parts_are_refused_in_time() -> None:
    squares = [helper.make_node("Mul", [f"a{i}", f"a{i}"], [f"a{i + 1}"]) for i in range(30)]
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["a0"], keepdims=1),
        *squares,
        helper.make_node("Expand", ["x", "a30"], ["y"]),
    ]
    (result,) = read_over(model_of(nodes, ["n", "m"], []), Range("n", 1, 4), Range("m", 1, 4)).graph.outputs
    assert "outside" in str(result.spec)


def test_a_constant_for_an_input_with_a_range_is_refused() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], ["n"], [])
    with pytest.raises(ModelError, match="pass one extent for each dimension"):
        compile_ranges(model, {"n": (1, 8)}, const={"x": 1.0})


def test_dimensions_are_extents_ranges_or_names() -> None:
    extents, ranges = parse_dims({"a": "1..8", "b": (2, 4), "c": "64..960:32", "d": 3, "e": "a", "f": (5, 5)})
    assert {name: str(extent) for name, extent in extents.items()} == {
        **{"a": "a", "b": "b", "c": "32*c", "d": "3", "e": "a", "f": "5"},
    }
    assert list(ranges) == ["a", "b", "c"]
    assert str(parse_dims({"a": "b", "b": "c", "c": (1, 8)})[0]["a"]) == "c"
    with pytest.raises(RunError, match="a = b = a gives no extent"):
        parse_dims({"a": "b", "b": "a"})
    for wrong in ("1..", "8..1", "nowhere", (1, 2, 3, 4), 2.5, "1..10:4"):
        with pytest.raises(RunError, match="--dim"):
            parse_dims({"a": wrong})


@pytest.mark.parametrize(("low", "high"), [(1, 9), (0, 9), (1, 9000)])
def test_the_sign_of_an_extent_is_proven_or_called_unproven(low: int, high: int) -> None:
    a, b = Range("a", low, high).extent, Range("b", 2, 9).extent
    # No rule proves the sign; (1, 9) is small enough to look at each point, and (0, 9) is negative at a = 0.
    type = TensorType(1, ((a * b - (b // 2) * a - 1) // 2 + 1 if low else a - 1, 4))  # type: ignore[arg-type]
    if (low, high) == (1, 9):
        assert isinstance(spec_of(type, ""), TensorSpec)
    else:
        with pytest.raises(ModelError, match="is not proven to be at least 0 at every point"):
            spec_of(type, "")
