"""Models as ONNX Runtime's optimiser rewrites them, and where the results are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.models.architectures import SMALL
from sublet.api.compiling import compile
from sublet.base.errors import ModelError
from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.reading import read_file
from sublet.integrations.onnx.reader.runtime_optimizer import (
    ALL,
    CACHE_NAME,
    MODEL,
    REFUSAL,
    WEIGHTS,
    load_optimized_proto,
)

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper = onnx.helper


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / CACHE_NAME


@pytest.mark.parametrize("name", SMALL)
def test_everything_the_optimiser_writes_can_be_planned(name: str) -> None:
    model = SMALL[name]()
    plain, found = from_proto(model), load_optimized_proto(model)
    assert all(value.plannable for value in found.graph.values())
    assert [v.spec for v in found.graph.outputs] == [v.spec for v in plain.graph.outputs]
    assert found.inputs == plain.inputs
    assert len(found.graph.nodes) < len(plain.graph.nodes)
    for value in found.graph.weights:
        assert found.weights[value.name].array().shape == value.spec.shape


def test_the_second_time_it_comes_from_the_cache(folder: Path) -> None:
    model = SMALL["mobilenet_v2"]()
    first = load_optimized_proto(model)
    [kept] = folder.iterdir()
    stamp = (kept / WEIGHTS).stat().st_mtime_ns
    again = load_optimized_proto(model)
    assert again.graph == first.graph
    assert (kept / WEIGHTS).stat().st_mtime_ns == stamp
    (kept / MODEL).write_bytes(b"not a model")
    assert load_optimized_proto(model).graph == first.graph
    assert (kept / MODEL).read_bytes() != b"not a model"


def test_weights_are_part_of_the_key_and_extents_share_an_entry(folder: Path) -> None:
    info = helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", 1, ("n", 8))], [info("y", 1, ("n", 8))], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for extent in range(5):
        assert load_optimized_proto(model, {"n": extent}).graph.outputs[0].spec.shape == (extent, 8)
    assert len(list(folder.iterdir())) == 1
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((8, 8), np.float32), "w"))
    load_optimized_proto(model, {"n": 3})
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(ModelError, match="open"):
        load_optimized_proto(model)


BLOCKED_WINDOWS = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n,3,h,w] x) => (float[n,16,a,b] y)
{
  s = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, v)
  r = Relu (s)
  t = MaxPool <kernel_shape = [2, 2]> (r)
  y = Conv (t, u)
}"""


def test_open_extents_are_bound_in_the_rewritten_model(folder: Path) -> None:
    """All values of the blocked layout have sizes, and a run equals ONNX Runtime's session over the open file."""
    model = onnx.parser.parse_model(BLOCKED_WINDOWS)
    rng = np.random.default_rng(0)
    for name, shape in {"v": (16, 3, 3, 3), "u": (16, 16, 1, 1)}.items():
        content = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h, w in ((1, 8, 8), (2, 9, 31), (3, 5, 4)):
        dims = {"n": n, "h": h, "w": w}
        found = load_optimized_proto(model, dims)
        assert all(value.plannable for value in found.graph.values())
        x = rng.standard_normal((n, 3, h, w), dtype=np.float32)
        results = compile(model, dims=dims)({"x": x})
        np.testing.assert_array_equal(results["y"], session.run(None, {"x": x})[0])
    assert len(list(folder.iterdir())) == 1


SHAPED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n] x, float[k] z) => (y)
<int64[1] four = {4}>
{
  count = Shape (z)
  is_four = Equal (count, four)
  y = If (is_four) <
    then_branch = a () => (p) { p = Relu (x) },
    else_branch = b () => (q) { q = Concat <axis = 0> (x, x) }
  >
}"""


@pytest.mark.parametrize(("k", "extent"), [(4, 3), (5, 6)])
def test_a_branch_chosen_by_an_extent_is_rewritten_for_this_extent(k: int, extent: int) -> None:
    model = onnx.parser.parse_model(SHAPED)
    found = load_optimized_proto(model, {"n": 3, "k": k})
    assert [value.spec.shape for value in found.graph.outputs] == [(extent,)]
    assert not found.remark


def test_external_data(tmp_path: Path) -> None:
    model = SMALL["mobilenet_v2"]()
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.bin", size_threshold=64)
    found = read_file(path, None, ALL, {})
    assert any("nchwc" in node.op or "Fused" in node.op for node in found.graph.nodes)
    (tmp_path / "net.bin").unlink()
    with pytest.raises(ModelError, match="cannot be found"):
        read_file(path, None, ALL, {})


def test_without_a_cache_the_weights_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")
    found = load_optimized_proto(SMALL["mobilenet_v2"]())
    assert all(np.isfinite(found.weights[value.name].array()).all() for value in found.graph.weights)
    assert not (tmp_path / "cache").exists()


def test_a_model_the_optimiser_refuses_stays_as_it_is() -> None:
    """An operator of nobody's is planned, though ONNX Runtime cannot load it."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["x"], ["y"], domain="elsewhere")], "g", [info("x", 1, (2,))], [info("y", 1, (2,))]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert [node.op for node in load_optimized_proto(model).graph.nodes] == ["onnx.elsewhere.Mystery"]


def test_a_refusal_is_remembered_and_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = helper.make_tensor_value_info
    node = helper.make_node("Mystery", ["x"], ["y"], domain="elsewhere")
    graph = helper.make_graph([node], "g", [info("x", 1, (2,))], [info("y", 1, (2,))])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    first = load_optimized_proto(model)
    assert "ONNX Runtime rejects the model" in first.remark
    [kept] = folder.iterdir()
    assert [path.name for path in kept.iterdir()] == [REFUSAL]
    (kept / REFUSAL).write_text("as remembered")
    assert load_optimized_proto(model).remark.endswith(": as remembered")
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")
    monkeypatch.setenv("SUBLET_CACHE", str(folder / "elsewhere"))
    assert load_optimized_proto(model) == first


UNKNOWN_RANK = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[6] x, bool[3] keep, float[1,3,4] q) => (a, b, c, d, e, h)
<int64[3] all = {2, 3, 1}>
{
  dims = Compress <axis = 0> (all, keep)
  r = Reshape (x, dims)
  t = Transpose <perm = [1, 0]> (r)
  a = MatMul (t, r)
  b = Size (a)
  c = Shape (a)
  d = ReduceSum <keepdims = 0> (a)
  o, key, e = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q)
  s = ReduceSum <keepdims = 0> (x)
  h = com.microsoft.Gelu (s)
}"""
"""Values of a rank that ONNX Runtime does not know, and scalars."""


def test_an_unknown_rank_is_no_scalar() -> None:
    model = onnx.parser.parse_model(UNKNOWN_RANK)
    feeds = {
        "x": np.arange(6, dtype=np.float32),
        "keep": np.array([True, True, False]),
        "q": np.ones((1, 3, 4), np.float32),
    }
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = dict(zip("abcdeh", session.run(None, feeds), strict=True))
    executable = compile(model, optimize="onnxruntime")
    found = executable(feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    specs = {name: value.spec for name, value in executable.outputs.items()}
    assert {name for name, spec in specs.items() if isinstance(spec, TensorSpec) and spec.shape == ()} == set("bh")
    for name, spec in specs.items():
        assert not isinstance(spec, TensorSpec) or spec.shape == wanted[name].shape, name


def test_a_scalar_that_only_onnx_runtime_knows_is_planned() -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
    model = onnx.parser.parse_model(f"{header} g (float[4] x) => (y) {{ y = com.microsoft.FusedMatMul (x, x) }}")
    assert str(load_optimized_proto(model).graph.outputs[0].spec) == "f32[]"


def test_a_local_function_called_in_a_loop_and_outside_is_optimised() -> None:
    """ONNX Runtime inlines it under one name twice, and does not take what it wrote."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "loc" : 1]>
        g (float[3] x) => (float[3] y, float[3] z) <int64 trip = {3}>
        {
          c = Constant <value: tensor = bool {1}> ()
          y = loc.f (x)
          z = Loop (trip, c, x) <body = b (int64 i, bool ci, float[3] p) => (bool co, float[3] q) {
             co = Identity (ci)
             q = loc.f (p)
          }>
        }
        <domain: "loc", opset_import: ["" : 17]>
        f (a) => (t) {
          n = Neg (a)
          t = Tanh (n)
        }
        """)
    assert load_optimized_proto(model).remark == ""
    given = np.array([1, 2, 3], np.float32)
    found = compile(model, optimize="onnxruntime")(x=given)
    for name, rounds in (("y", 1), ("z", 3)):
        after = given
        for _ in range(rounds):
            after = np.tanh(-after)
        np.testing.assert_allclose(found[name], after, rtol=1e-6)


def test_a_weight_of_a_body_outlives_the_folder_it_was_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")
    weight = np.arange(600, dtype=np.float32)
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[600] x) => (float[600] z) <int64 trip = {3}>
        {
          z = Loop (trip, "", x) <body = b (int64 i, bool c, float[600] p) => (bool c, float[600] q) { q = Add (p, w) }>
        }
        """)
    model.graph.node[0].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    found = compile(model, optimize="onnxruntime")(x=weight)
    assert np.array_equal(found["z"], 4 * weight)
