"""If, Loop and Scan: the graph they become, and that it computes what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sublet.base.errors import ModelError
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import CaseOf, While
from sublet.ir.model import Model
from sublet.ops.verify import findings
from tests.integrations.onnx.models import parsed
from tests.integrations.onnx.reference import run

ort = pytest.importorskip("onnxruntime")


def _same_as_onnx_runtime(model: onnx.ModelProto, *inputs: Any) -> Model:
    """Import `model`, compare the results of the graph with ONNX Runtime's, and give the import."""
    imported = from_proto(model)
    assert findings(imported.graph) == ()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = dict(zip([value.name for value in model.graph.input], map(np.asarray, inputs), strict=True))
    results = run(imported, list(feeds.values()))
    for result, expected in zip(results, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    return imported


BRANCH = """g (bool{dim} c, float[2] x) => (float[2] y) {{
  y = If (c) <
    then_branch = yes () => (float[2] r) {{ t = Abs(x) r = Neg(t) }},
    else_branch = no () => (float[2] r) {{ t = Neg(x) r = Abs(t) }}
  >
}}"""
X = np.array([1.5, -2.5], dtype=np.float32)


@pytest.mark.parametrize("condition", [True, False])
def test_if_has_the_else_branch_first(condition: bool) -> None:
    graph = _same_as_onnx_runtime(parsed(BRANCH.format(dim="")), condition, X).graph
    [node] = graph.nodes
    assert isinstance(node, CaseOf)
    assert [[inner.op for inner in arm.nodes] for arm in node.arms] == [
        ["onnx.Neg", "onnx.Abs"],
        ["onnx.Abs", "onnx.Neg"],
    ]
    assert [value.name for value in graph.values()] == ["c", "x", "y", "t", "r", "t.1", "r.1"]


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_condition_of_one_element(condition: bool) -> None:
    graph = _same_as_onnx_runtime(parsed(BRANCH.format(dim="[1]")), [condition], X).graph
    assert [node.op for node in graph.nodes] == ["onnx.Reshape", "case"]


def test_if_with_a_known_condition_is_replaced_by_its_arm() -> None:
    text = BRANCH.format(dim="").replace("bool c, ", "").replace("{\n", "{ c = Constant <value = bool {1}> ()\n", 1)
    graph = _same_as_onnx_runtime(parsed(text), X).graph
    assert [node.op for node in graph.nodes] == ["onnx.Abs", "onnx.Neg"]
    assert graph.weights == ()


def test_arms_that_give_different_shapes() -> None:
    text = """g (bool c, float[2] x) => (float[n] y, float[2] z) {
      y, z = If (c) <
        then_branch = yes () => (float[2] r, float[2] s) { r = Abs(x) s = Neg(x) },
        else_branch = no () => (float[4] r, float[2] s) { r = Concat <axis = 0> (x, x) s = Abs(x) }
      >
    }"""
    y, z = _same_as_onnx_runtime(parsed(text), False, X).graph.outputs
    assert isinstance(y.spec, Unplannable)
    assert y.spec.type == "f32[?]"
    assert "f32[4] and f32[2]" in y.spec.reason
    assert isinstance(z.spec, TensorSpec)


LOOP = """g ({inputs}float[2] x) => (float[2] last, float[n,2] all) {{
  {constants}
  last, all = Loop ({trip}, {cond}, x) <
    body = round (int64{dim} i, bool{dim} on, float[2] state) => (bool on_next, float[2] state_next, float[2] row) {{
      f = Cast <to = 1> (i)
      row = Add(state, f)
      state_next = Add(row, state)
      limit = Constant <value = float {{20.0}}> ()
      total = ReduceSum <keepdims = 0> (state_next)
      on_next = {on_next}
    }}
  >
}}"""
TRIP = "m = Constant <value = int64 {5}> () "
TRUE = "t = Constant <value = bool {1}> () "


def _loop(*, inputs: str = "", constants: str = "", trip: str = "m", cond: str = "t", on: str, dim: str = "") -> Any:
    text = LOOP.format(inputs=inputs, constants=constants, trip=trip, cond=cond, on_next=on, dim=dim)
    return parsed(text)


@pytest.mark.parametrize("on", ["Identity(on)", "Constant <value = bool {1}> ()", "Not(off)"])
def test_loop_with_a_known_trip_count(on: str) -> None:
    constants = TRIP + TRUE + "off = Not(t) "
    graph = _same_as_onnx_runtime(_loop(constants=constants, on=on), X).graph
    [node] = graph.nodes
    assert isinstance(node, While)
    assert (node.carried, node.check, node.row_axes) == (1, 1, (0,))
    assert node.body.nodes[0].op == "onnx.Less"
    assert [str(value.spec) for value in graph.outputs] == ["f32[2]", "f32[5,2]"]


def test_loop_that_its_body_ends() -> None:
    graph = _same_as_onnx_runtime(_loop(constants=TRIP + TRUE, on="Less(total, limit)"), X).graph
    [node] = graph.nodes
    assert isinstance(node, While)
    assert [early.op for early in node.body.nodes[: node.check]] == ["onnx.Less", "onnx.And"]
    assert (node.carried, node.finals[0]) == (2, None)
    assert isinstance(graph.outputs[1].spec, Unplannable)
    assert "trip count" in graph.outputs[1].spec.reason


@pytest.mark.parametrize(("trip", "cond"), [("m", '""'), ('""', "t"), ('""', '""'), ("m", "t")])
def test_loop_with_omitted_trip_count_or_condition(trip: str, cond: str) -> None:
    model = _loop(constants=TRIP + TRUE, trip=trip, cond=cond, on="Less(total, limit)")
    for position, name in enumerate((trip, cond)):
        loop = next(node for node in model.graph.node if node.op_type == "Loop")
        loop.input[position] = name.strip('"')
    [node] = _same_as_onnx_runtime(model, X).graph.nodes
    assert isinstance(node, While)
    assert node.check == (2 if trip == "m" else 0)
    assert node.condition == (node.body.nodes[1].outputs[0] if trip == "m" else node.parameters[0])


@pytest.mark.parametrize(("rounds", "start"), [(0, True), (3, False), (4, True), (-1, True)])
@pytest.mark.parametrize("on", ["Identity(on)", "Less(total, limit)"])
def test_loop_whose_limits_are_inputs(rounds: int, start: bool, on: str) -> None:
    _same_as_onnx_runtime(_loop(inputs="int64 m, bool t, ", on=on), rounds, start, X)


def test_loop_whose_limits_have_one_element() -> None:
    imported = _same_as_onnx_runtime(
        _loop(inputs="int64[1] m, bool[1] t, ", on="Less(total, limit)", dim="[1]"), [3], [True], X
    )
    assert [node.op for node in imported.graph.nodes] == ["onnx.Reshape", "onnx.Reshape", "while"]


def test_loop_of_zero_rounds_known_before() -> None:
    constants = TRIP + "t = Constant <value = bool {0}> () "
    graph = _same_as_onnx_runtime(_loop(constants=constants, on="Identity(on)"), X).graph
    assert str(graph.outputs[1].spec) == "f32[0,2]"


def test_carried_constant_that_never_changes_is_no_parameter() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) {
      m = Constant <value = int64 {3}> ()
      s = Constant <value = int64[2] {3, 2}> ()
      y, other = Loop (m, , x, s) <
        body = round (int64 i, bool on, float[2,3] a, int64[2] shape) => (bool o, float[2,3] b, int64[2] shape_next) {
          o = Identity(on)
          r = Reshape(a, shape)
          t = Neg(r)
          b = Transpose(t)
          shape_next = Identity(shape)
        }
      >
    }"""
    graph = _same_as_onnx_runtime(parsed(text), np.arange(6, dtype=np.float32).reshape(2, 3)).graph
    [node] = graph.nodes
    assert isinstance(node, While)
    assert node.carried == 1
    assert all(isinstance(value.spec, TensorSpec) for value in graph.values())


def test_carried_value_that_grows_is_outside_and_the_rest_is_planned() -> None:
    text = """g (float[1,2] x) => (float[n,2] y, float[1,2] z) {
      m = Constant <value = int64 {3}> ()
      y, z = Loop (m, , x, x) <
        body = round (int64 i, bool on, float[k,2] a, float[1,2] c) => (bool o, float[k,2] b, float[1,2] d) {
          o = Identity(on)
          b = Concat <axis = 0> (a, x)
          d = Neg(c)
        }
      >
    }"""
    y, z = _same_as_onnx_runtime(parsed(text), X.reshape(1, 2)).graph.outputs
    assert isinstance(y.spec, Unplannable)
    assert (y.spec.type, "between iterations" in y.spec.reason) == ("f32[?,2]", True)
    assert z.spec == TensorSpec(z.spec.dtype, (1, 2)) if isinstance(z.spec, TensorSpec) else False


def test_scan_with_directions_and_axes() -> None:
    text = """g (float[2] start, float[3,2] a, float[2,3] b) => (float[2] last, float[3,2] up, float[2,3] down) {
      last, up, down = Scan <
        num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [0, 1],
        scan_output_axes = [0, -1], scan_output_directions = [1, 0],
        body = step (float[2] s, float[2] p, float[2] q) => (float[2] t, float[2] u, float[2] v) {
          pq = Sub(p, q)
          t = Add(s, pq)
          u = Neg(t)
          v = Mul(t, p)
        }
      > (start, a, b)
    }"""
    a = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = _same_as_onnx_runtime(parsed(text), X, a, 2 * a.T).graph
    [node] = graph.nodes
    assert isinstance(node, While)
    assert (node.slice_axes, node.slice_reversed) == ((0, 1), (False, True))
    assert (node.row_axes, node.row_reversed) == ((0, 1), (True, False))


def test_unused_results_of_loops_and_branches_are_removed() -> None:
    constants = TRIP + TRUE
    model = _loop(constants=constants, on="Identity(on)")
    del model.graph.output[1]
    [node] = _same_as_onnx_runtime(model, X).graph.nodes
    assert isinstance(node, While)
    assert node.row_axes == ()
    assert len(node.body.outputs) == 1


def test_nested_loops_with_weights_inside() -> None:
    text = """g (float[2] x) => (float[3,2,2] y) {
      m = Constant <value = int64 {3}> ()
      on0 = Constant <value = bool {1}> ()
      y = Loop (m, on0) <
        body = outer (int64 i, bool on) => (bool o, float[2,2] rows) {
          o = Identity(on)
          n = Constant <value = int64 {2}> ()
          w = Constant <value = float[2] {3.0, 4.0}> ()
          last, rows = Loop (n, , x) <
            body = inner (int64 j, bool on2, float[2] s) => (bool o2, float[2] t, float[2] row) {
              o2 = Identity(on2)
              f = Cast <to = 1> (i)
              e = Mul(s, w)
              t = Add(e, f)
              row = Neg(t)
            }
          >
        }
      >
    }"""
    graph = _same_as_onnx_runtime(parsed(text), X).graph
    assert {value.name for value in graph.weights} == {"m", "n", "w"}
    assert str(graph.outputs[0].spec) == "f32[3,2,2]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda node: node.input.append("x"), "Loop .* has 4 inputs"),
        (lambda node: node.output.append("more"), "has 3 outputs; its body returns 2"),
        (lambda node: node.attribute[0].g.output.pop(), "has 2 outputs; its body returns 1"),
        (lambda node: node.attribute.pop(), "has no graph 'body'"),
    ],
)
def test_malformed_loop(change: Any, message: str) -> None:
    model = _loop(constants=TRIP + TRUE, on="Identity(on)")
    change(next(node for node in model.graph.node if node.op_type == "Loop"))
    with pytest.raises(ModelError, match=message):
        from_proto(model)


def test_sequence_map_keeps_its_graph_and_lists_what_it_captures() -> None:
    text = """g (float[2] x, float[2] w) => (float[2] y) {
      s = SequenceConstruct(x, x)
      r = SequenceMap (s) < body = each (float[2] e) => (float[2] f) { f = Mul(e, w) } >
      zero = Constant <value = int64 {0}> ()
      y = SequenceAt(r, zero)
    }"""
    imported = from_proto(parsed(text))
    node = next(node for node in imported.graph.nodes if node.op == "onnx.SequenceMap")
    assert [value.name for value in node.uses] == ["s", "w"]
    assert node.attrs["body.captures"] == ("w",)
    body = node.attrs["body"]
    assert isinstance(body, bytes)
    assert onnx.GraphProto.FromString(body).node[0].op_type == "Mul"
    assert findings(imported.graph) == ()
    assert {value.name for value in imported.graph.unplannable_values} == {"s", "r"}
