"""The onnx dialect: every operator has a record; views and parts are where the bytes really are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs, helper

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.dialect import onnx_op
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import Node, Value

ort = pytest.importorskip("onnxruntime")


def test_every_schema_has_a_record_with_arity() -> None:
    seen = set()
    for schema in defs.get_all_schemas_with_history():
        name = f"onnx.{schema.domain}.{schema.name}" if schema.domain else f"onnx.{schema.name}"
        op = onnx_op(name)
        assert op.name == name
        assert op.inputs is not None
        assert op.inputs[0] <= schema.min_input
        assert schema.max_input <= op.inputs[1]
        assert op.outputs is not None
        assert op.outputs[0] <= schema.min_output
        assert schema.max_output <= op.outputs[1]
        seen.add(name)
    assert len(seen) >= 200


def test_random_operators_are_not_pure_and_unknown_ones_have_no_facts() -> None:
    assert not onnx_op("onnx.RandomNormal").pure
    assert not onnx_op("onnx.Bernoulli").pure
    assert onnx_op("onnx.Conv").pure
    custom = onnx_op("onnx.my.domain.Relu")
    assert (custom.pure, custom.inputs, custom.outputs) == (False, None, None)
    x, y = (Value(name, TensorSpec(DType.F32, (4,))) for name in "xy")
    node = Node("n", custom.name, (x,), (y,))
    assert custom.inplace(node) == custom.views(node) == custom.parts(node) == ()


def test_every_non_deterministic_schema_is_impure() -> None:
    for schema in defs.get_all_schemas():
        if schema.name in ("AffineGrid", "If", "Loop", "Scan"):  # as deterministic as their bodies
            continue
        if schema.node_determinism == defs.OpSchema.NodeDeterminism.NonDeterministic:
            assert not onnx_op(f"onnx.{schema.name}").pure, schema.name


Case = tuple[str, tuple[Any, ...], dict[str, Any], int, int, int | None]
"""Op, inputs (the first is data, the rest constants), attributes, version, outputs, shares expected."""


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


VIEWS: list[Case] = [
    ("Reshape", ((4, 6), ints(3, 8)), {}, 17, 1, 1),
    ("Reshape", ((4, 6), ints(0, -1)), {}, 7, 1, 1),
    ("Flatten", ((4, 2, 3),), {"axis": 2}, 17, 1, 1),
    ("Squeeze", ((1, 4, 1), ints(0)), {}, 17, 1, 1),
    ("Squeeze", ((1, 4, 1),), {"axes": [2]}, 11, 1, 1),
    ("Unsqueeze", ((4,), ints(0)), {}, 17, 1, 1),
    ("Identity", ((4, 5),), {}, 17, 1, 1),
    ("Cast", ((4, 5),), {"to": 1}, 17, 1, 1),
    ("Cast", ((4, 5),), {"to": 6}, 17, 1, 0),
    ("Dropout", ((4, 5),), {}, 17, 1, 1),
    ("Dropout", ((4, 5),), {}, 7, 1, 1),
    ("Expand", ((4, 5), ints(1, 4, 5)), {}, 17, 1, 1),
    ("Expand", ((1, 5), ints(4, 5)), {}, 17, 1, 0),
    ("Tile", ((4, 5), ints(1, 1)), {}, 17, 1, 1),
    ("Tile", ((4, 5), ints(2, 1)), {}, 17, 1, 0),
    ("Pad", ((4, 5), ints(0, 0, 0, 0)), {}, 17, 1, 1),
    ("Pad", ((4, 5), ints(0, 1, 0, -1)), {}, 17, 1, 0),
    ("Transpose", ((1, 4, 1, 5),), {"perm": [1, 0, 3, 2]}, 17, 1, 1),
    ("Transpose", ((4, 5),), {}, 17, 1, 0),
    ("Transpose", ((4, 1),), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(2), ints(6)), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(-3), ints(100), ints(0)), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(-100), ints(-2), ints(-2), ints(1)), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(1), ints(3), ints(1)), {}, 17, 1, 0),
    ("Slice", ((1, 8, 5), ints(1), ints(3), ints(1)), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(3, 1), ints(4, 3)), {}, 17, 1, 1),
    ("Slice", ((8, 5), ints(3, 1), ints(5, 3)), {}, 17, 1, 0),
    ("Slice", ((8, 5), ints(0), ints(8), ints(0), ints(2)), {}, 17, 1, 0),
    ("Slice", ((8, 5), ints(7), ints(-100), ints(0), ints(-1)), {}, 17, 1, 0),
    ("Slice", ((8, 5),), {"starts": [2], "ends": [6], "axes": [0]}, 7, 1, 1),
    ("Slice", ((8, 5), ints(4), ints(4)), {}, 17, 1, 0),
    ("Split", ((6, 5), ints(1, 2, 3)), {}, 17, 3, 3),
    ("Split", ((6, 5),), {"axis": 0, "split": [2, 4]}, 11, 2, 2),
    ("Split", ((2, 6), ints(2, 4)), {"axis": 1}, 17, 2, 0),
    ("Split", ((1, 6, 2), ints(2, 4)), {"axis": -2}, 17, 2, 2),
    ("Split", ((7, 5),), {"axis": 0, "num_outputs": 4}, 18, 4, 4),
    ("Gather", ((8, 5), np.array(3)), {}, 17, 1, 1),
    ("Gather", ((8, 5), np.array(-2)), {}, 17, 1, 1),
    ("Gather", ((8, 5), ints(2, 3, 4)), {}, 17, 1, 1),
    ("Gather", ((8, 5), ints(2, 4)), {}, 17, 1, 0),
    ("Gather", ((8, 5), ints(4, 3)), {}, 17, 1, 0),
    ("Gather", ((8, 5), np.array(3)), {"axis": 1}, 17, 1, 0),
    ("Gather", ((1, 8, 5), np.array([[1, 2], [3, 4]])), {"axis": 1}, 17, 1, 1),
]


def _run(case: Case) -> tuple[Node, list[np.ndarray], list[np.ndarray]]:
    """The imported node, its inputs, and its outputs as ONNX Runtime computes them."""
    op, (shape, *constants), attrs, opset, outputs, _ = case
    data = np.random.default_rng(0).random(shape, dtype=np.float32) * 100
    names = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *(f"c{i}" for i in range(len(constants)))], names, **attrs)],
        "one",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_empty_tensor_value_info(name) for name in names],
        [onnx.numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    [node] = from_proto(model).graph.nodes
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    results = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": data})
    return node, [data, *constants], results


@pytest.mark.parametrize("case", VIEWS, ids=lambda case: f"{case[0]}-{case[3]}")
def test_views_are_bytes_of_the_input(case: Case) -> None:
    node, inputs, results = _run(case)
    shares = onnx_op(node.op).views(node)
    assert len(shares) == case[5]
    for share in shares:
        whole, part = inputs[share.input].tobytes(), results[share.output].tobytes()
        assert whole[share.offset : share.offset + len(part)] == part


@pytest.mark.parametrize(
    ("shapes", "axis", "expected"),
    [
        (((2, 3), (4, 3), (1, 3)), 0, 3),
        (((1, 2, 3), (1, 4, 3)), 1, 2),
        (((1, 2, 3), (1, 4, 3)), -2, 2),
        (((2, 2), (2, 3)), 1, 0),
        (((2, 3), (0, 3), (1, 3)), 0, 2),
    ],
)
def test_parts_lie_in_the_output(shapes: tuple[tuple[int, ...], ...], axis: int, expected: int) -> None:
    arrays = [np.random.default_rng(i).random(shape, dtype=np.float32) for i, shape in enumerate(shapes)]
    values = [Value(f"x{i}", TensorSpec(DType.F32, shape)) for i, shape in enumerate(shapes)]
    whole = np.concatenate(arrays, axis)
    node = Node("n", "onnx.Concat", tuple(values), (Value("y", TensorSpec(DType.F32, whole.shape)),), {"axis": axis})
    shares = onnx_op(node.op).parts(node)
    assert len(shares) == expected
    for share in shares:
        part = arrays[share.input].tobytes()
        assert whole.tobytes()[share.offset : share.offset + len(part)] == part


def test_sub_byte_views_start_at_whole_bytes() -> None:
    x = Value("x", TensorSpec(DType.U4, (4, 3)))
    pairs = ((0, 2, 1), (2, 4, 1), (1, 3, 0), (0, 1, 0))
    for begin, end, expected in pairs:
        starts, ends = (Value(n, TensorSpec(DType.I64, (1,)), (k,)) for n, k in (("s", begin), ("e", end)))
        y = Value("y", TensorSpec(DType.U4, (end - begin, 3)))
        node = Node("n", "onnx.Slice", (x, starts, ends), (y,))
        assert len(onnx_op(node.op).views(node)) == expected


def test_a_view_needs_constants_and_planned_values() -> None:
    x, y = Value("x", TensorSpec(DType.F32, (8, 5))), Value("y", TensorSpec(DType.F32, (2, 5)))
    start, end = (Value(name, TensorSpec(DType.I64, (1,))) for name in "se")
    assert onnx_op("onnx.Slice").views(Node("n", "onnx.Slice", (x, start, end), (y,))) == ()
    training = Value("t", TensorSpec(DType.BOOL), (True,))
    ratio = Value("r", TensorSpec(DType.F32), (0.5,))
    z = Value("z", x.spec)
    assert onnx_op("onnx.Dropout").views(Node("n", "onnx.Dropout", (x, ratio, training), (z,))) == ()


def test_overwriting_needs_an_input_of_its_own() -> None:
    data, indices = Value("x", TensorSpec(DType.F32, (8,))), Value("i", TensorSpec(DType.I64, (8,)))
    y, other = Value("y", data.spec), Value("u", data.spec)
    op = onnx_op("onnx.ScatterElements")
    assert len(op.inplace(Node("n", op.name, (data, indices, other), (y,)))) == 1
    assert op.inplace(Node("n", op.name, (data, indices, data), (y,))) == ()
