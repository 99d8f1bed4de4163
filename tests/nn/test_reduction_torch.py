"""Reductions and running sums against PyTorch's; products with zeros; what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import agrees, refused, shown
from tests.nn.examples import Array, Example, case_of
from tests.nn.test_registry import computed, differentiated

torch = pytest.importorskip("torch")
X = ("f64[8,9,10]",)
NORM = torch.linalg.vector_norm

CASES: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("sum", X, {"axes": (0, 2)}, lambda x: x.sum((0, 2))),
    ("mean", X, {"axes": (1,), "keepdims": 1}, lambda x: x.mean(1, True)),
    ("max", X, {"axes": (0, 2)}, lambda x: x.amax((0, 2))),
    ("max", X, {}, lambda x: x.amax()),
    ("min", X, {"axes": (-1,), "keepdims": 1}, lambda x: x.amin(-1, True)),
    ("prod", X, {"axes": (1,)}, lambda x: x.prod(1)),
    ("prod", X, {"axes": (0, 2)}, lambda x: x.prod(0).prod(1)),
    ("prod", X, {"axes": (0, 1), "keepdims": 1}, lambda x: x.prod(0, True).prod(1, True)),
    ("norm", X, {"axes": (1, 2)}, lambda x: NORM(x, 2, (1, 2))),
    ("norm", X, {"axes": (0,), "p": 1.0}, lambda x: NORM(x, 1, 0)),
    ("norm", X, {"axes": (0,), "p": 2.5, "keepdims": 1}, lambda x: NORM(x, 2.5, 0, True)),
    ("norm", X, {"p": inf}, lambda x: NORM(x, inf)),
    ("cumsum", X, {"axis": 1}, lambda x: x.cumsum(1)),
    ("cumsum", X, {"axis": -1, "reverse": 1}, lambda x: x.flip(-1).cumsum(-1).flip(-1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attrs", "function"), CASES, ids=shown)
def test_is_pytorchs(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Any) -> None:
    agrees(name, inputs, attrs, function, fast=False)


def gradient_of(name: str, x: Array, backend: Any, **attrs: Any) -> Array:
    """The derivative of the sum of the results."""
    case = case_of(COMMANDS[name], Example((f"f64[{','.join(map(str, x.shape))}]",), attrs))
    graph, arrays, _, (grad,) = differentiated(case)
    (y,) = case.graph.outputs
    ones = np.ones_like(arrays[f"seed.{y.name}"])
    return computed(graph, {**arrays, "x0": x, f"seed.{y.name}": ones}, backend)[grad.name]


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=lambda backend: backend.name)
def test_the_gradient_of_a_product_with_zeros(backend: Any) -> None:
    x = np.array([[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 3.0, 0.0]])
    found = gradient_of("prod", x, backend, axes=(1,))
    assert found.tolist() == [[12, 8, 6], [0, 8, 0], [0, 0, 0]]


PRODUCTS = [
    ((3,), (), 0, 1), ((5,), (0,), 1, 2), ((4, 1), (1,), 0, 2), ((2, 0), (1,), 0, 0), ((0, 3), (1,), 0, 0),
    ((4, 7), (1,), 0, 9), ((4, 7), (0,), 1, 9), ((2, 3, 3), (0, 2), 0, 6), ((2, 3, 3), (0, -1), 1, 3),
    ((2, 2, 2), (), 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes", "keepdims", "zeros"), PRODUCTS, ids=str)
def test_gradients_of_gradients_of_a_product_with_zeros(
    shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int, zeros: int
) -> None:
    """Three orders, each of a loss that is not linear in the gradient before it."""
    draw = np.random.default_rng(zeros)
    content = draw.uniform(0.5, 2, shape)
    content.flat[draw.permutation(content.size)[:zeros]] = 0
    graph = sublet.Graph("products")
    x, tensor = graph.input("x", shape, "f64"), torch.tensor(content, requires_grad=True)
    (planned,), eager = graph.apply("nn.prod", x, axes=axes, keepdims=keepdims), tensor
    for axis in sorted((axis % len(shape) for axis in axes or range(len(shape))), reverse=True):
        eager = eager.prod(axis, bool(keepdims))
    expected = []
    for order in range(3):
        (planned,) = sublet.gradients((planned * planned + planned).sum(), [x])
        (eager,) = torch.autograd.grad((eager * eager + eager).sum(), [tensor], create_graph=True)
        graph.output(f"d{order}", planned)
        expected.append(eager.detach().numpy())
    found = sublet.compile(graph)(x=content)
    for order in range(3):
        _close(found[f"d{order}"], expected[order])


def _close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(initial=1))


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=lambda backend: backend.name)
def test_equal_extremes_share_the_gradient(backend: Any) -> None:
    x = np.array([[1.0, 5.0, 5.0], [7.0, 1.0, 1.0]])
    assert gradient_of("max", x, backend, axes=(1,)).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    tensor = torch.from_numpy(x).requires_grad_()
    tensor.amin(1).sum().backward()
    assert gradient_of("min", x, backend, axes=(1,)).tolist() == tensor.grad.tolist()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, inf])
def test_the_gradient_of_the_norm_of_nothing_is_zero(p: float) -> None:
    assert gradient_of("norm", np.zeros((2, 3)), TorchBackend(), axes=(1,), p=p).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=lambda backend: backend.name)
def test_the_first_of_equal_extremes_is_the_one(backend: Any) -> None:
    for name in ("argmax", "argmin"):
        case = case_of(COMMANDS[name], Example(("f64[40,30]",), {"axis": 0}))
        x = np.random.default_rng(0).integers(0, 3, (40, 30)).astype(np.float64)
        expected = (x.argmax if name == "argmax" else x.argmin)(0)
        (y,) = case.graph.outputs
        np.testing.assert_array_equal(computed(case.graph, {"x0": x}, backend)[y.name], expected)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_running_sum_from_the_end_allocates_nothing(inplace: bool) -> None:
    (node,) = case_of(COMMANDS["cumsum"], Example(("f32[256,512]",), {"axis": 1, "reverse": 1})).graph.nodes
    x = np.ones((256, 512), np.float32)
    y = x if inplace else np.zeros_like(x)
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    call = kernel.bind([x], [y], None)
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 8
    np.testing.assert_array_equal(y, np.broadcast_to(np.arange(512, 0, -1), x.shape))


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "message"),
    [
        ("max", ("f32[3,0]",), {"axes": (1,)}, r"f32\[3,0\] has no elements"),
        ("argmax", ("f32[0]",), {"axis": 0}, "expected at least one"),
        ("sum", ("f32[3]",), {"axes": (0, 0)}, "name one axis twice"),
        ("prod", ("f32[3]",), {"axes": (1,)}, "axis 1 is out of range"),
        ("norm", ("f32[3]",), {"p": 0.0}, "must be above 0"),
        ("norm", ("i32[3] 0:2",), {}, "expected one of the types f16"),
        ("cumsum", ("f32[3]",), {"axis": 1}, "axis 1 is out of range"),
        ("prod_gradient", ("f32[3]", "f32[3,4]"), {"axes": (0,)}, r"f32\[3\] and f32\[4\]"),
        ("reshape", ("f32[3]",), {"shape": (4,)}, "3 elements"),
        ("broadcast_to", ("f32[3]",), {"shape": (3, 1)}, "cannot be broadcast"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, inputs: Any, attrs: dict[str, Any], message: str) -> None:
    refused(name, inputs, attrs, message)
