"""Batch, layer, group and RMS normalisation against PyTorch's own functions and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")
F = torch.nn.functional


def _batch(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return F.batch_norm(x, mean.detach().clone(), var.detach().clone(), scale, bias, True, 0.1, 1e-5)


def _batch_last(x: Any, *others: Any) -> Any:
    return _batch(x.movedim(-1, 1), *others).movedim(1, -1)


def _inference(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Written out: PyTorch's has no derivatives by the running statistics."""
    mean, var, scale, bias = (v[:, None, None] for v in (mean, var, scale, bias))
    return (x - mean) / torch.sqrt(var + 1e-3) * scale + bias


def _channels(count: int) -> tuple[str, ...]:
    return (*[f"f64[{count}]"] * 2, f"f64[{count}] -1:1", f"f64[{count}] 0.5:2")


ROWS: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("batch_norm", ("f64[4,16,14,14]", *_channels(16)), {}, _batch),
    ("batch_norm", ("f64[32,20]", *_channels(20)), {}, _batch),
    ("batch_norm", ("f64[4,14,14,16]", *_channels(16)), {"axis": -1}, _batch_last),
    ("batch_norm_inference", ("f64[4,16,14,14]", *_channels(16)), {"epsilon": 1e-3}, _inference),
    ("layer_norm", ("f64[4,128,96]", "f64[96]", "f64[96]"), {}, lambda x, w, b: F.layer_norm(x, (96,), w, b)),
    # Larger than what the gradient kernel asks of ATen at once.
    ("layer_norm", ("f64[2,400,200]", "f64[200]"), {}, lambda x, w: F.layer_norm(x, (200,), w)),
    ("layer_norm", ("f64[8,12,10]",), {"axes": 2, "epsilon": 0.1}, lambda x: F.layer_norm(x, (12, 10), eps=0.1)),
    ("group_norm", ("f64[3,8,9,9]", "f64[8]", "f64[8]"), {"groups": 4}, lambda x, w, b: F.group_norm(x, 4, w, b)),
    ("group_norm", ("f64[6,8,64,64]", "f64[8]"), {"groups": 2}, lambda x, w: F.group_norm(x, 2, w)),
    ("group_norm", ("f64[3,8,9]",), {"groups": 1}, lambda x: F.group_norm(x, 1)),
    ("rms_norm", ("f64[2,400,200]", "f64[200]"), {}, lambda x, w: F.rms_norm(x, (200,), w, 1e-5)),
    ("rms_norm", ("f64[4,128,96]",), {}, lambda x: F.rms_norm(x, (96,), eps=1e-5)),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{i}" for i, row in enumerate(ROWS)])
def test_is_pytorchs(row: Any) -> None:
    if row[0] == "batch_norm_inference":
        _forward_agrees(*row)
    else:
        agrees(*row)


def _forward_agrees(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Callable[..., Any]) -> None:
    """Its gradient is made of other commands, which the registry's tests check."""
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    expected = function(*(torch.from_numpy(array) for array in case.arrays.values())).numpy()
    (output,) = case.graph.outputs
    for backend in (TorchBackend(), ReferenceBackend()):
        found = computed(case.graph, dict(case.arrays), backend)[output.name]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("shape", "axis"), [("6,5,3,3", 1), ("6,3,3,5", -1)])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=["torch", "reference"])
def test_running_statistics_are_moved_once(shape: str, axis: int, shared: bool, backend: Backend) -> None:
    case = case_of(COMMANDS["batch_norm"], Example((f"f32[{shape}]", *["f32[5] 0.5:2"] * 4), {"axis": axis}))
    (node,) = case.graph.nodes
    arrays = [array.copy() for array in case.arrays.values()]
    x = torch.from_numpy(arrays[0].copy()).movedim(axis, 1)
    mean, var = torch.from_numpy(arrays[3].copy()), torch.from_numpy(arrays[4].copy())
    F.batch_norm(x, mean, var, training=True)
    outputs = [np.full(v.spec.shape, 7, np.float32) for v in node.defs]
    if shared:
        outputs[:3] = arrays[0], arrays[3], arrays[4]
    kernel = backend.kernel(node, {})
    assert kernel is not None
    kernel.bind(arrays, outputs, np.zeros(kernel.scratch, np.uint8) if kernel.scratch else None)()
    np.testing.assert_allclose(outputs[1], mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(outputs[2], var.numpy(), rtol=1e-5)
    if not shared:
        assert np.array_equal(arrays[3], case.arrays["x3"])
        assert np.array_equal(arrays[4], case.arrays["x4"])


def test_a_large_mean_does_not_spoil_the_variance() -> None:
    """The variance is of x - mean, not the difference of two squares."""
    case = case_of(COMMANDS["batch_norm"], Example(("f32[4,2,8,8] 999:1001", *["f32[2] 1:2"] * 4)))
    rstd = case.graph.outputs[4]
    found, exact = (
        computed(case.graph, dict(case.arrays), backend)[rstd.name] for backend in (TorchBackend(), ReferenceBackend())
    )
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    np.testing.assert_allclose(found, 3**0.5, rtol=0.1)


def test_the_gradient_of_batch_norm_allocates_only_by_channel() -> None:
    case = case_of(COMMANDS["batch_norm_gradient"], Example(("f32[4,16,28,28]", "f32[4,16,28,28]", *["f32[16]"] * 3)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        computed(case.graph, dict(case.arrays), TorchBackend())
    sizes = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert max(sizes) < 4096


@pytest.mark.parametrize(("shape", "axis"), [("4,16,28,28", 1), ("4,28,28,16", -1)])
def test_scratch_of_batch_norm_is_by_channel_and_sample(shape: str, axis: int) -> None:
    vectors = ["f32[16]"] * 4
    for name, inputs in (("batch_norm", [shape]), ("batch_norm_gradient", [shape, shape])):
        given = (*(f"f32[{text}]" for text in inputs), *vectors[len(inputs) - 1 :])
        kernel = TorchBackend().kernel(case_of(COMMANDS[name], Example(given, {"axis": axis})).graph.nodes[0], {})
        assert kernel is not None
        assert kernel.scratch <= 8 * 16 * 4


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("batch_norm", ["f32[2,3,4]", *["f32[4]"] * 4], {}, r"scale for x f32\[2,3,4\].* f32\[4\] and f32\[3\]"),
        ("batch_norm", ["f32[2,3,4]", "f32[3]", "f64[3]", *["f32[3]"] * 2], {}, r"bias .* f64\[3\] and f32\[3\]"),
        ("batch_norm", ["f32[1,3]", *["f32[3]"] * 4], {}, r"f32\[1,3\] has one value a channel"),
        ("batch_norm", ["f32[2,3]", *["f32[3]"] * 4], {"axis": 2}, "axis 2 is out of range for 2 axes"),
        ("batch_norm_inference", ["i32[2,3]", *["f32[3]"] * 4], {}, r"x is i32\[2,3\], expected one of the types"),
        ("layer_norm", ["f32[2,3]", "f32[2]"], {}, r"scale for x f32\[2,3\].* f32\[2\] and f32\[3\]"),
        ("layer_norm", ["f32[2,3]", "_", "f32[3]"], {}, "a bias needs a scale"),
        ("layer_norm", ["f32[2,3]"], {"axes": 3}, r"axes = 3 .* for x f32\[2,3\]: pass 1 to 2"),
        ("group_norm", ["f32[2,6,4]"], {"groups": 4}, r"f32\[2,6,4\] .* divisible by groups = 4"),
        ("rms_norm", ["f32[2,3]", "f32[4]"], {}, r"f32\[4\] and f32\[3\]"),
        ("layer_norm_gradient", ["f32[2,3]", "f32[2,4]", "_", "f32[2]", "f32[2]"], {}, "dy and x are"),
    ],
)
def test_refusals(name: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(name, shapes, attrs, message)
