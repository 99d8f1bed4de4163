"""What is computed while importing, and what is left alone because it would cost too much."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sublet.base.errors import ModelError
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.integrations.onnx.reader.model import from_proto
from tests.integrations.onnx.models import parsed


def test_shape_arithmetic_disappears() -> None:
    graph = from_proto(
        parsed("""g (float[2,3,4] x) => (y) {
          s = Shape(x)
          i = Constant <value = int64[1] {0}> ()
          b = Gather(s, i)
          m = Constant <value = int64[1] {-1}> ()
          t = Concat <axis = 0> (b, m)
          y = Reshape(x, t)
        }""")
    ).graph
    assert [node.op for node in graph.nodes] == ["onnx.Reshape"]
    assert [(value.name, value.literal) for value in graph.weights] == [("t", (2, -1))]
    assert str(graph.outputs[0].spec) == "f32[2,12]"


def test_results_of_folding_are_the_weights() -> None:
    imported = from_proto(
        parsed("""g (float[4] x) => (y) {
          a = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
          b = Sqrt(a)
          y = Mul(x, b)
        }""")
    )
    assert imported.weights["b"].array().tolist() == np.sqrt(np.array([1, 2, 3, 4], dtype=np.float32)).tolist()


def test_a_large_fill_is_a_weight_that_takes_no_memory_until_it_is_read() -> None:
    imported = from_proto(
        parsed("""g (float[4096] x) => (y) {
          s = Constant <value = int64[2] {4096, 25088}> ()
          w = ConstantOfShape <value = float[1] {0.5}> (s)
          t = Transpose(w)
          y = MatMul(x, w)
          z = Neg(t)
        }""")
    )
    assert [node.op for node in imported.graph.nodes] == ["onnx.MatMul"]
    assert imported.weights["w"].spec == TensorSpec(imported.graph.inputs[0].spec.dtype, (4096, 25088))


@pytest.mark.parametrize(
    "nodes",
    [
        "y = ConstantOfShape(huge)",
        "one = Constant <value = float[1] {1.0}> () y = Expand(one, huge)",
        "one = Constant <value = float[1,1] {1.0}> () y = Tile(one, huge)",
        "a = Constant <value = int64 {0}> () b = Constant <value = int64 {1099511627776}> () "
        "c = Constant <value = int64 {1}> () y = Range(a, b, c)",
    ],
)
def test_a_small_file_cannot_ask_for_much_memory(nodes: str) -> None:
    begin = time.perf_counter()
    text = "g (float[1] x) => (y, z) { z = Neg(x) huge = Constant <value = int64[2] {1048576, 1048576}> () "
    graph = from_proto(parsed(text + nodes + " }")).graph
    assert time.perf_counter() - begin < 1
    assert len(graph.nodes) == 2
    assert graph.outputs[0].nbytes >= 1 << 42


def test_a_fill_needs_one_number() -> None:
    fill = "y = ConstantOfShape <value = float[2] {1.0, 2.0}> (s)"
    text = "g (float[1] x) => (y) { s = Constant <value = int64[1] {3}> () " + fill + " }"
    with pytest.raises(ModelError, match="fills with 2 numbers"):
        from_proto(parsed(text))


def test_the_cost_of_all_folding_is_bounded() -> None:
    """Each of the 3,000 sums over a million bytes is small; together they are not."""
    chain = "".join(f" a{i + 1} = Add(a{i}, a{i})" for i in range(3000))
    text = "g (float[1] x) => (y) { s = Constant <value = int64[1] {250000}> () a0 = ConstantOfShape(s)" + chain
    begin = time.perf_counter()
    graph = from_proto(parsed(text + " y = Add(a3000, x) }")).graph
    assert time.perf_counter() - begin < 10
    assert 2000 < len(graph.nodes) < 3000


def test_values_whose_shape_depends_on_data_are_outside_and_the_rest_is_planned() -> None:
    graph = from_proto(
        parsed("""g (float[3,4] x) => (n, y, u) {
          n = NonZero(x)
          r = Relu(x)
          y = Neg(r)
          c = Cast <to = 1> (n)
          u = Exp(c)
        }""")
    ).graph
    n, y, u = graph.outputs
    assert isinstance(n.spec, Unplannable)
    assert (n.spec.type, n.spec.reason) == ("i64[2,?]", "the shape depends on data (node NonZero 'n')")
    assert isinstance(u.spec, Unplannable)
    assert u.spec.reason == n.spec.reason
    assert str(y.spec) == "f32[3,4]"


def test_unknown_operators_are_outside_unless_the_file_tells_their_shape() -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "my" : 1]>\n'
    text = "g (float[N] x) => (float[N] y, z) { y = my.Op(x) z = my.Other(x) }"
    graph = from_proto(parsed(text, header), {"N": 5}).graph
    assert str(graph.outputs[0].spec) == "f32[5]"
    assert isinstance(graph.outputs[1].spec, Unplannable)
    assert "my.Other" in graph.outputs[1].spec.reason


def test_defaults_of_inputs_are_weights() -> None:
    model = parsed("g (float[2] x, float[2] w = {1.0, 2.0}) => (y) { y = Add(x, w) }")
    imported = from_proto(model)
    assert imported.inputs == ("x",)
    assert imported.weights["w"].array().tolist() == [1.0, 2.0]


def test_dead_nodes_and_unread_optional_outputs_are_removed() -> None:
    graph = from_proto(
        parsed("""g (float[1,1,4,4] x) => (y) {
          p, indices = MaxPool <kernel_shape = [2, 2]> (x)
          d, mask = Dropout(p)
          y = Relu(d)
          dead = Exp(x)
        }""")
    ).graph
    assert [(node.op, len(node.defs)) for node in graph.nodes] == [
        ("onnx.MaxPool", 1),
        ("onnx.Dropout", 1),
        ("onnx.Relu", 1),
    ]


def test_import_is_the_same_every_time() -> None:
    model = parsed("g (bool c, float[2] x) => (y) { a = Neg(x) b = Neg(a) y = Add(a, b) }")
    assert from_proto(model).graph == from_proto(model).graph
