"""Inputs fixed to constants, and inputs with a default in the file: graphs, runs and plans are those of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import external_data_helper, helper

import sublet
from sublet.api.plans import check_plan
from sublet.api.sources import model_of_plan
from sublet.base.errors import ModelError, PlanError, RunError
from sublet.ir.graph import CaseOf
from tests.integrations.onnx.models import parsed

ort = pytest.importorskip("onnxruntime")
LEVELS = ("none", "onnxruntime-basic", "onnxruntime")

DETECTOR = """detector (float[batch, n] x, float[batch, 4] state, int64 sr)
  => (float[batch, 4] y, float[batch, 4] after) <float[1] gain = {0.5}, int64 wide = {16000}, int64 one = {1}> {
  fast = Equal(sr, wide)
  rows = Shape(x)
  axis = Constant<value: tensor = int64 {1}>()
  n = Gather(rows, axis)
  y, after = If(fast) <
    then_branch = wide_band () => (y_wide, after_wide) <float[4, 4] w = {
        1, 2, 3, 4, 0, 1, 0, 2, 3, 1, 1, 0, 1, 2, 1, 2}> {
      eight = Constant<value: tensor = int64 {8}>()
      whole = Equal(n, eight)
      a = If(whole) <
        then_branch = halves () => (h) { p, q = Split<axis = 1, num_outputs = 2>(x)  t = Add(p, q)  h = Mul(t, gain) },
        else_branch = none () => (h) { h = Mul(x, gain) }
      >
      t = MatMul(a, w)
      after_wide = Add(state, t)
      y_wide = Relu(after_wide)
    },
    else_branch = narrow_band () => (y_narrow, same) <float[1] w = {2}> {
      same = Identity(state)
      t = Mul(x, w)
      y_narrow = Add(t, state)
    }
  >
}"""
"""A speech detector for two sampling rates: x of another extent conflicts with the branch for the other rate."""

DIMS = {16000: {"batch": 1, "n": 8}, 8000: {"batch": 1, "n": 4}}


def detector(opset: int = 18, ir_version: int = 9) -> onnx.ModelProto:
    return parsed(DETECTOR, f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n')


def truth(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds)))


def sound(rate: int) -> dict[str, Any]:
    rng = np.random.default_rng(rate)
    extents = DIMS[rate]
    state = rng.standard_normal((extents["batch"], 4), np.float32)
    return {"x": rng.standard_normal((extents["batch"], extents["n"]), np.float32), "state": state}


def assert_runs_as(wanted: list[Any], network: sublet.Executable, feeds: Mapping[str, Any]) -> None:
    for results in (network(feeds), network(feeds), sublet.run_poisoned(network, feeds)):
        for result, want in zip(results.values(), wanted, strict=True):
            np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("ir_version", [4, 9])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rate", DIMS)
def test_a_constant_takes_the_branch_that_the_run_would_take(rate: int, level: str, ir_version: int) -> None:
    model, feeds = detector(ir_version=ir_version), sound(rate)
    network = sublet.compile(model, dims=DIMS[rate], const={"sr": rate}, optimize=level)
    assert list(network.inputs) == ["x", "state"]
    assert not any(isinstance(node, CaseOf) for node in network.graph.nodes)
    assert network.plan.gap is not None, "the verdict is decided"
    assert not network.remark
    assert_runs_as(truth(model, {**feeds, "sr": np.array(rate)}), network, feeds)
    with pytest.raises(RunError, match=f"input sr: planned as the constant {rate}; to pass a value, plan without"):
        network(feeds, sr=np.array(rate))


def test_the_branch_never_taken_leaves_unknown_shapes_without_a_constant() -> None:
    open_plan = sublet.compile(detector(), dims=DIMS[16000], optimize="none").plan
    fixed = sublet.compile(detector(), dims=DIMS[16000], const={"sr": 16000}, optimize="none").plan
    assert (len(open_plan.outside) > 0, fixed.outside) == (True, ())


def test_a_plan_remembers_its_constants(tmp_path: Path) -> None:
    path, feeds = tmp_path / "m.onnx", sound(16000)
    onnx.save(detector(), path)
    read = sublet.read_model(path, DIMS[16000], const={"sr": 16000})
    sublet.save(sublet.plan_memory(read), tmp_path / "plan.json")
    plan = sublet.load(tmp_path / "plan.json")
    assert plan.recipe.const == (("sr", "16000"),)
    assert "with sr=16000" in plan.recipe.description
    assert not check_plan(path, plan).findings
    for network in (
        sublet.with_plan(path, plan),
        sublet.compile(path, dims=DIMS[16000], plan=plan, const={"sr": 16000}),
        sublet.compile(path, plan=plan),
        sublet.compile(read, plan=plan),
    ):
        np.testing.assert_array_equal(network(feeds)["y"], truth(detector(), {**feeds, "sr": np.array(16000)})[0])
    with pytest.raises(PlanError, match="contradicts the plan"):
        sublet.compile(path, dims=DIMS[16000], plan=plan, const={"sr": 8000})
    with pytest.raises(PlanError, match="contradicts the plan"):
        sublet.compile(path, dims={name: extent + 1 for name, extent in DIMS[16000].items()}, plan=plan)
    other = replace(plan, recipe=replace(plan.recipe, const=(("sr", "8000"),)))
    with pytest.raises(ModelError, match="do not broadcast"):
        model_of_plan(path, other)
    with pytest.raises(RunError, match="pass `const` to `read_model`"):
        sublet.compile(read, plan=other)


def identity(elem: int, shape: list[Any] | None) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", elem, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [
        helper.make_tensor_value_info("y", elem, None)
    ])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ELEMENTS = {
    "bool": True, "int8": -128, "uint8": 255, "int16": -3, "uint16": 65535, "int32": -(2**31), "uint32": 2**32 - 1,
    "int64": -(2**63), "uint64": 2**64 - 1, "float16": 0.1, "float32": 1e-42, "float64": 0.1,
}  # fmt: skip
SHAPES: list[tuple[list[Any] | None, tuple[int, ...]]] = [
    ([], ()), ([1], (1,)), ([2, 3], (2, 3)), (["n"], (5,)), ([2, "n"], (2, 2)), (None, ()), (None, (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "shape"), SHAPES)
@pytest.mark.parametrize("dtype", [*map(np.dtype, ELEMENTS), np.dtype(ml_dtypes.bfloat16)])
def test_a_constant_has_the_type_of_the_input(
    dtype: np.dtype[Any], declared: list[Any] | None, shape: tuple[int, ...]
) -> None:
    array = np.full(shape, ELEMENTS.get(dtype.name, 1.5)).astype(dtype)
    model = identity(helper.np_dtype_to_tensor_dtype(dtype), declared)
    text = ",".join(map(str, array.ravel().tolist()))
    for const in (array, array.tolist(), text) if array.ndim < 2 else (array, text):
        network = sublet.compile(model, const={"x": const}, backend="reference")
        result = network()["y"]
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    ("const", "words"),
    [
        ({"rate": 1}, "--const rate: not an input; the inputs are"),
        ({"sr": "fast"}, r"the input is i64\[\]; not a number of type int64"),
        ({"sr": 0.5}, "not a number of type int64"),
        ({"sr": 2**63}, "not a number of type int64"),
        ({"sr": [1, 2]}, r"the input is i64\[\]; cannot reshape"),
        ({"sr": []}, "not a number"),
        ({"sr": "9" * 5000}, "not a number"),
        ({"x": np.zeros(5000)}, "5000 numbers, more than 4096"),
        ({"x": [1, [2]]}, "is ragged"),
        ({"state": np.zeros(9)}, "cannot reshape"),
        ({"sr": "open"}, "has no default"),
        ({"gain": "open"}, "not an input"),
    ],
)
def test_constants_that_do_not_fit_are_refused(const: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        sublet.compile(detector(), dims={"batch": 1, "n": 8}, const=const, optimize="none")


@pytest.mark.parametrize("elem", [onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.INT4])
def test_constants_are_tensors_of_whole_bytes(elem: int) -> None:
    with pytest.raises(ModelError, match="not a tensor of numbers"):
        sublet.compile(identity(elem, [1]), const={"x": 1}, optimize="none")


def test_other_sources_have_no_constants(tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text("graph @net(%x: f32[4]) {\n  %y: f32[4] = onnx.Relu(%x)\n  return %y\n}\n")
    with pytest.raises(ModelError, match="graph in text form"):
        sublet.read_model(path, const={"x": 1})
    with pytest.raises(ModelError, match="is for ONNX models"):
        sublet.read_model(tmp_path / "net.tflite", const={"x": 1})
    with pytest.raises(RunError, match="needs an ONNX path"):
        sublet.compile(sublet.read_model(path), const={"x": 1})


# Inputs with a default: initialisers that are inputs too.

DEFAULTS = """g (float[4] x, float[4] w, int64[2] shape, float[4] z) => (y, r)
<float[4] w = {1, 2, 3, 4}, int64[2] shape = {2, 2}, float[4] two = {2, 2, 2, 2}> {
  folded = Mul(w, two)
  overwritten = Relu(w)
  a = Add(x, folded)
  b = Add(a, overwritten)
  r = Reshape(b, shape)
  y = Sub(b, z)
}"""
"""An initialiser in a folded product and read in place, and another initialiser that decides a shape."""


def with_defaults(ir_version: int = 9) -> onnx.ModelProto:
    return parsed(DEFAULTS, f'<ir_version: {ir_version}, opset_import: ["" : 17]>\n')


FEEDS = {"x": np.array([1, -2, 3, -4], np.float32), "z": np.array([5, 6, 7, 8], np.float32)}
GIVEN = {"w": np.array([-9, 8, -7, 6], np.float32), "shape": np.array([4, 1])}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("names", [("w",), ("shape",), ("w", "shape")])
def test_an_open_default_is_given_like_any_input(names: tuple[str, ...], level: str) -> None:
    model = with_defaults()
    network = sublet.compile(model, const=dict.fromkeys(names, "open"), optimize=level)
    assert list(network.inputs) == [name for name in ("x", "w", "shape", "z") if name in {"x", "z", *names}]
    for given in ({}, {name: GIVEN[name] for name in names}, {}, {names[0]: GIVEN[names[0]]}):
        feeds = {**FEEDS, **given}
        assert_runs_as(truth(model, feeds), network, feeds)
    for closed in {"w", "shape"} - {*names}:
        with pytest.raises(
            RunError, match=f"input {closed}: planned as the constant in the file.*--const {closed}=open"
        ):
            network({**FEEDS, closed: GIVEN[closed]})


def test_a_default_is_a_constant_unless_opened_and_may_be_another() -> None:
    model = with_defaults()
    closed = sublet.compile(model, optimize="none")
    assert_runs_as(truth(model, FEEDS), closed, FEEDS)
    other = sublet.compile(model, const={"w": GIVEN["w"], "shape": [4, 1]}, optimize="none")
    assert (list(other.inputs), other.plan.outside) == (["x", "z"], ())
    assert_runs_as(truth(model, {**FEEDS, **GIVEN}), other, FEEDS)
    with pytest.raises(RunError, match="input shape: must be i64"):
        sublet.compile(model, const={"shape": "open"})({**FEEDS, "shape": np.array([4, 1, 1])})
    oldest = sublet.compile(with_defaults(ir_version=3), const={"w": "open"})  # fixed in ONNX Runtime, open in ONNX
    assert_runs_as(truth(model, {**FEEDS, "w": GIVEN["w"]}), oldest, {**FEEDS, "w": GIVEN["w"]})


def test_a_plan_remembers_its_open_defaults(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", with_defaults()
    external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, path)
    plan = sublet.compile(path, const={"w": "open"}).plan
    sublet.save(plan, tmp_path / "plan.json")
    network = sublet.with_plan(path, sublet.load(tmp_path / "plan.json"))
    for given in ({}, {"w": GIVEN["w"]}):
        assert_runs_as(truth(with_defaults(), {**FEEDS, **given}), network, {**FEEDS, **given})


def test_reading_changes_no_model_in_memory() -> None:
    model = with_defaults()
    before = model.SerializeToString(deterministic=True)
    sublet.compile(model, const={"w": "open", "x": [1, 2, 3, 4]})
    assert model.SerializeToString(deterministic=True) == before


NESTED = """g (float[1, n] x, float[2, 1, 4] state, int64 sr) => (y)
<int64 wide = {16000}, int64 zero = {0}, int64 one = {1}, int64[1] front = {0}> {
  fast = Equal(sr, wide)
  y = If(fast) <
    then_branch = a () => (r) <int64[1] axis = {0}> {
      u = Neg(x)
      extents = Shape(u)
      batch = Gather(extents, zero)
      single = Equal(batch, one)
      p = If(single) <then_branch = c () => (q) { q = Squeeze(u, axis) }, else_branch = d () => (q) { q = Identity(u) }>
      layers = Shape(state)
      count = Gather(layers, zero)
      some = Cast<to = 9>(count)
      r = If(some) <
        then_branch = e () => (v) {
          shape = Shape(p)
          rank = Size(shape)
          flat = Equal(rank, one)
          w = If(flat) <
            then_branch = i () => (q) <float[1] k = {2}> { q = Mul(p, k) },
            else_branch = j () => (q) { q = Unsqueeze(p, front) }>
          v = Relu(w)
        },
        else_branch = f () => (v) { v = Abs(p) }>
    },
    else_branch = b () => (r) <float[1] k = {3}> { r = Mul(x, k) }
  >
}"""
"""Branches in branches: ONNX Runtime fails, or crashes, where it inlines all of them at once."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rate", DIMS)
def test_branches_in_branches_are_inlined_before_the_optimiser(rate: int, level: str) -> None:
    model, state = parsed(NESTED), np.zeros((2, 1, 4), np.float32)
    for n in (8, 3):
        feeds = {"x": np.linspace(-1, 1, n, dtype=np.float32)[None], "state": state}
        network = sublet.compile(model, dims={"n": n}, const={"sr": rate}, optimize=level)
        assert (network.remark, network.plan.outside) == ("", ())
        assert_runs_as(truth(model, {**feeds, "sr": np.array(rate)}), network, feeds)


def test_branches_may_share_names_and_return_captured_values() -> None:
    text = """g (float[2] x, bool c, bool d) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
      y = If(c) <then_branch = a () => (r) <float[2] k = {3, 4}> {
          t = Mul(x, k)
          r = If(d) <then_branch = e () => (t1) { t1 = Add(t, k) }, else_branch = f () => (u) { u = Sub(t, k) }>
        }, else_branch = b () => (r) { t = Add(x, w)  r = Neg(t) }>
      z = If(d) <then_branch = i () => (r) <float[2] k = {5, 6}> { t = Div(y, k)  r = Mul(t, w) },
        else_branch = j () => (r) { r = Identity(x) }>
    }"""
    model, x = parsed(text), np.array([3, -7], np.float32)
    for c in (False, True):
        for d in (False, True):
            for level in LEVELS:
                network = sublet.compile(model, const={"c": c, "d": d}, optimize=level)
                assert not network.remark
                assert_runs_as(truth(model, {"x": x, "c": np.array(c), "d": np.array(d)}), network, {"x": x})


def test_numbers_survive_as_text() -> None:
    array = np.float32([0.1, 3e38, -0.0, np.inf, np.nan])
    model = identity(1, [5])
    assert sublet.compile(model, const={"x": array})()["y"].tobytes() == array.tobytes()
