"""Activations and softmax against PyTorch's own functions and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed, differentiated

torch = pytest.importorskip("torch")
F = torch.nn.functional

FUNCTIONS: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
    ("relu", {}, F.relu),
    ("leaky_relu", {}, F.leaky_relu),
    ("leaky_relu", {"slope": -0.5}, lambda x: F.leaky_relu(x, -0.5)),
    ("elu", {"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    ("sigmoid", {}, torch.sigmoid),
    ("tanh", {}, torch.tanh),
    ("softplus", {}, lambda x: F.softplus(x, threshold=1000)),
    ("swish", {}, F.silu),
    ("gelu", {}, F.gelu),
    ("gelu", {"approximate": 1}, lambda x: F.gelu(x, approximate="tanh")),
    ("hard_swish", {}, F.hardswish),
    ("erf", {}, torch.erf),
    ("softmax", {}, lambda x: torch.softmax(x, -1)),
    ("softmax", {"axis": 1}, lambda x: torch.softmax(x, 1)),
    ("softmax", {"axis": 0}, lambda x: torch.softmax(x, 0)),
    ("log_softmax", {}, lambda x: torch.log_softmax(x, -1)),
    ("log_softmax", {"axis": 1}, lambda x: torch.log_softmax(x, 1)),
]
NAMES = [f"{name}-{attrs}" for name, attrs, _ in FUNCTIONS]
BACKENDS = [TorchBackend(), ReferenceBackend()]


@pytest.mark.parametrize(("name", "attrs", "function"), FUNCTIONS, ids=NAMES)
def test_is_pytorchs(name: str, attrs: dict[str, Any], function: Callable[..., Any]) -> None:
    agrees(name, ("f64[16,33,20] -6:6",), attrs, function, absolute=1e-13)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("name", "attrs", "function"), FUNCTIONS, ids=NAMES)
def test_halves_are_computed_too(name: str, attrs: dict[str, Any], function: Callable[..., Any], dtype: str) -> None:
    """With values beyond where exp overflows 16 bits, as numbers of the type close to those of f64."""
    case = case_of(COMMANDS[name], Example((f"{dtype}[8,9,4] -30:30",), attrs))
    graph, arrays, _, (grad,) = differentiated(case)
    places = computed(graph, arrays, TorchBackend())
    (output,) = case.graph.outputs
    x = torch.from_numpy(arrays["x0"].astype(np.float64)).requires_grad_()
    y = function(x)
    y.backward(torch.from_numpy(arrays[f"seed.{output.name}"].astype(np.float64)))
    near = {"rtol": 5e-2, "atol": 5e-2}
    np.testing.assert_allclose(places[output.name].astype(np.float64), y.detach().numpy(), **near)
    np.testing.assert_allclose(places[grad.name].astype(np.float64), x.grad.numpy(), **near)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_gradient", "log_softmax_gradient"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_survives_in_place_in_blocks_of_every_size(name: str, axis: int) -> None:
    """ATen works on chunks of columns where the axis is not the last."""
    record = COMMANDS[name]
    case = case_of(record, Example(("f32[37,65,70]",) * record.inputs[0], {"axis": axis}))
    (node,) = case.graph.nodes
    (output,) = node.defs
    separate = computed(case.graph, {key: array.copy() for key, array in case.arrays.items()}, TorchBackend())
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    for share in record.inplace(node):
        inputs = [array.copy() for array in case.arrays.values()]
        kernel.bind(inputs, [inputs[share.input]], None)()
        np.testing.assert_array_equal(inputs[share.input], separate[output.name])


def test_activations_keep_their_result_only() -> None:
    """The gradients of these need no input, so that it may be overwritten."""
    for name in ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "softplus", "softmax", "log_softmax"):
        case = case_of(COMMANDS[name], Example(("f64[3,4]",)))
        (forward,), (x,) = case.graph.nodes, case.graph.inputs
        graph, *_ = differentiated(case)
        assert not any(x in node.uses for node in graph.nodes if node.name != forward.name), name


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("relu", ["i64[3]"], {}, "expected one of the types f16, bf16, f32, f64"),
        ("relu_gradient", ["f32[3]", "f32[4]"], {}, r"f32\[3\] and f32\[4\], but must be equal"),
        ("elu", ["f32[3]"], {"alpha": -1.0}, "alpha = -1.0 must not be negative"),
        ("gelu", ["f32[3]"], {"approximate": 2}, "approximate = 2 must be 0"),
        ("softmax", ["f32[3,4]"], {"axis": 2}, "axis 2 is out of range for 2 axes"),
        ("log_softmax", ["f32[]"], {}, "axis -1 is out of range for 0 axes"),
        ("softmax_gradient", ["f32[3,4]", "f64[3,4]"], {}, "must be equal"),
    ],
)
def test_refuses(op: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(op, shapes, attrs, message)
