"""The ONNX Runtime backend against ONNX Runtime's own sessions: the same bits, in planned and in poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.models.architectures import SMALL
from benchmarks.models.wheels import RealModel, light_models
from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.runtime.executable import Executable
from sublet.runtime.poison import run_poisoned

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper = onnx.helper


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def feeds_of(executable: Executable) -> dict[str, np.ndarray]:
    """Inputs that every network here takes: small floats, ones for indices."""
    rng = np.random.default_rng(1)
    feeds = {}
    for name, value in executable.inputs.items():
        assert isinstance(value.spec, TensorSpec)
        dtype = NUMPY[value.spec.dtype]
        draws = rng.standard_normal(value.spec.shape)
        feeds[name] = draws.astype(dtype) if dtype.kind == "f" else np.ones(value.spec.shape, dtype)
    return feeds


def of_its_own(model: Any, feeds: dict[str, np.ndarray], level: str = "ORT_ENABLE_ALL") -> dict[str, np.ndarray]:
    """What a session of ONNX Runtime over the whole model gives."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    session = ort.InferenceSession(model if isinstance(model, str) else model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.asarray(a[k]).tobytes() == np.asarray(b[k]).tobytes() for k in a)


def one_node(op: str, inputs: dict[str, Any], outputs: int = 1, opset: int = 21, **attrs: Any) -> Any:
    """A model of one node whose outputs are typed by inference."""
    number = helper.np_dtype_to_tensor_dtype
    node = helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], **attrs)
    infos = [helper.make_tensor_value_info(name, number(np.dtype(d)), shape) for name, (d, shape) in inputs.items()]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "one", infos, results)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


HEAVY = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512", "light_densenet121", "light_inception_v2")
"""Hundreds of megabytes of weights or of nodes, and operators of the others; `test_real_models` plans them."""


@pytest.mark.parametrize(
    "model", [model for model in light_models() if model.name not in HEAVY], ids=lambda model: model.name
)
def test_networks_of_the_onnx_package(model: RealModel) -> None:
    executable = compile(model.path)
    feeds = feeds_of(executable)
    assert set(executable.nodes_of_backends) <= {"onnxruntime", ""}
    expected = of_its_own(str(model.path), feeds)
    assert same_bits(executable(feeds), expected)
    assert same_bits(executable(feeds), expected)


@pytest.mark.parametrize("name", SMALL)
def test_generated_architectures_planned_and_poisoned(name: str) -> None:
    model = SMALL[name]()
    executable = compile(model)
    feeds = feeds_of(executable)
    expected = of_its_own(model, feeds)
    assert same_bits(executable(feeds), expected)
    assert same_bits(run_poisoned(executable, feeds), expected)


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert", "lstm_loop"])
def test_a_model_that_is_not_optimised(name: str) -> None:
    """Node by node the kernels are those of a session that fuses nothing."""
    model = SMALL[name]()
    executable = compile(model, optimize="none")
    feeds = feeds_of(executable)
    assert not any("microsoft" in node.op for node in executable.graph.walk())
    found, expected = executable(feeds), of_its_own(model, feeds, "ORT_DISABLE_ALL")
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, atol=1e-5)
    assert same_bits(run_poisoned(executable, feeds), found)


def test_two_streams() -> None:
    model = SMALL["googlenet"]()
    executable = compile(model, options=Options(streams=2))
    feeds = feeds_of(executable)
    for _ in range(3):
        assert same_bits(executable(feeds), of_its_own(model, feeds))
    executable.close()


def test_straight_lines_are_one_call_in_the_order_of_the_plan() -> None:
    """300 nodes that overwrite each other's 16 bytes: any other order gives another result."""
    ops = ["Neg", "Exp", "Sin", "Floor", "Sigmoid", "Abs"]
    nodes = [helper.make_node(ops[i % 6], [f"v{i}"], [f"v{i + 1}"]) for i in range(300)]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "line", [info("v0", 1, (4,))], [info("v300", 1, (4,))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = compile(model, optimize="none")
    feeds = {"v0": np.array([0.1, -2.0, 3.5, 0.7], np.float32)}
    assert executable.arena_bytes == 16
    assert same_bits(executable(feeds), of_its_own(model, feeds))
    assert len(executable._program.calls) == 1


def test_nodes_without_a_kernel_go_to_the_reference() -> None:
    model = one_node("Max", {"a": ("i2", (3,)), "b": ("i2", (3,))})
    executable = compile(model, backend=["onnxruntime", "reference"])
    assert executable.nodes_of_backends == {"reference": 1}
    found = executable(a=np.array([1, 9, 3], np.int16), b=np.array([5, 6, -7], np.int16))
    assert found["y0"].tolist() == [5, 9, 3]


def test_a_node_that_onnx_runtime_unfolds_stays_alone() -> None:
    """There is no f16 kernel: conversions around the f32 one would run out of turn among others."""
    nodes = [helper.make_node("Exp", ["x"], ["y"]), helper.make_node("Sin", ["y"], ["z"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "halves", [info("x", 10, (64,))], [info("z", 10, (64,))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = compile(model, optimize="none", backend="onnxruntime")
    x = np.linspace(0, 1, 64, dtype=np.float16)
    np.testing.assert_allclose(executable(x=x)["z"], np.sin(np.exp(x)), rtol=3e-3)
    assert len(executable._program.calls) == 2


def test_values_outside_the_plan() -> None:
    model = one_node("NonZero", {"x": ("f4", (2, 3))}, opset=17)
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    executable = compile(model, backend="onnxruntime")
    assert executable(x=x)["y0"].tolist() == [[0, 1, 1], [1, 0, 2]]
    assert executable(x=-x * 0)["y0"].shape == (2, 0)


def test_sequences_and_strings() -> None:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "which"], ["part"]),
        helper.make_node("Cast", ["part"], ["text"], to=onnx.TensorProto.STRING),
    ]
    which = onnx.numpy_helper.from_array(np.array(1, np.int64), "which")
    graph = helper.make_graph(nodes, "split", [info("x", 1, (2, 2))], [info("text", 8, None)], [which])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = compile(model, optimize="none", backend="onnxruntime")
    found = executable(x=np.array([[1, 2], [3, 4]], np.float32))["text"]
    assert [float(text) for text in np.asarray(found).ravel()] == [3.0, 4.0]


def test_a_weight_can_be_replaced() -> None:
    """A kernel that holds a rearranged copy of the weight makes a new one."""
    weight = np.eye(32, dtype=np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [info("x", 1, (4, 32))],
        [info("y", 1, (4, 32))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    backend = OnnxRuntime({"": 17}, threads=1)
    executable = compile(model, backend=backend)
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    assert np.array_equal(executable(x=x)["y"], x)
    assert backend.prepared_bytes == weight.nbytes
    executable.bind("w", weight * 3)
    assert np.array_equal(executable(x=x)["y"], 3 * x)
    assert backend.prepared_bytes == weight.nbytes


def test_sessions_of_the_user_are_left_alone(tmp_path: Path) -> None:
    """No pool of threads is made for the whole process, which would forbid sessions with threads of their own."""
    model = SMALL["mobilenet_v2"]()
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    executable = compile(path)
    feeds = feeds_of(executable)
    executable(feeds)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = 3
    assert ort.InferenceSession(str(path), options).run(None, feeds)


@pytest.mark.parametrize(
    ("op", "attrs"), [("ThresholdedRelu", {"alpha": 0.5}), ("Affine", {}), ("ImageScaler", {"bias": [0.0, 0.0, 0.0]})]
)
def test_operators_that_are_no_longer_onnxs_run_where_onnx_runtime_has_them(op: str, attrs: dict[str, Any]) -> None:
    node = onnx.helper.make_node(op, ["x"], ["y"], **attrs)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3, 4, 4))
    graph = onnx.helper.make_graph(
        [node], "old", [x], [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 3, 4, 4))]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 7)], ir_version=6)
    fed = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": fed})
    assert np.array_equal(compile(model)(x=fed)["y"], expected)
