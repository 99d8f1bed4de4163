"""Losses against PyTorch's own functions and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import agrees, refused
from tests.nn.examples import Case, Example, case_of
from tests.nn.test_registry import computed, differentiated

torch = pytest.importorskip("torch")
F = torch.nn.functional

BACKENDS = [TorchBackend(), ReferenceBackend()]
LOGITS, HALF = "f64[40,27] -9:9", "f64[40,27] 0.01:0.99"


def nll(p: Any, labels: Any) -> Any:
    """PyTorch's, which ignores only one label."""
    return F.nll_loss(torch.log(p).flatten(0, -2), ignored(labels), reduction="none").view(labels.shape)


def cross_entropy(x: Any, labels: Any) -> Any:
    loss = F.cross_entropy(x.flatten(0, -2), ignored(labels), reduction="none").view(labels.shape)
    return loss, torch.softmax(x, -1)


def ignored(labels: Any) -> Any:
    return torch.where(labels < 0, -100, labels.long()).flatten()


FUNCTIONS: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("categorical_cross_entropy", ("f64[50,17] 0.001:1", "i64[50] 0:17"), {}, nll),
    ("categorical_cross_entropy", ("f64[6,8,17] 0.001:1", "i32[6,8] -3:17"), {}, nll),
    ("softmax_cross_entropy", ("f64[50,17] -9:9", "i64[50] 0:17"), {}, cross_entropy),
    ("softmax_cross_entropy", ("f64[6,8,17] -90:90", "i32[6,8] -3:17"), {}, cross_entropy),
    (
        "sigmoid_binary_cross_entropy",
        (LOGITS, HALF),
        {},
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    ),
    ("binary_cross_entropy", (HALF, HALF), {}, lambda p, t: F.binary_cross_entropy(p, t, reduction="none")),
    ("mse", (LOGITS, LOGITS), {}, lambda x, t: F.mse_loss(x, t, reduction="none")),
    ("smooth_l1", (LOGITS, LOGITS), {}, lambda x, t: F.smooth_l1_loss(x, t, reduction="none")),
    (
        "smooth_l1",
        (LOGITS, LOGITS),
        {"beta": 3.5},
        lambda x, t: F.smooth_l1_loss(x, t, reduction="none", beta=3.5),
    ),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "function"), FUNCTIONS, ids=[f"{row[0]}-{i}" for i, row in enumerate(FUNCTIONS)]
)
def test_is_pytorchs(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Callable[..., Any]) -> None:
    agrees(name, inputs, attrs, function, absolute=1e-14)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_scores_far_apart_have_a_finite_loss(backend: Any) -> None:
    """The probability of the label underflows, its logarithm does not."""
    case = case_of(COMMANDS["softmax_cross_entropy"], Example(("f32[3,2]", "i64[3] 0:2")))
    x = np.array([[0, 1000], [1000, 0], [5e4, -5e4]], np.float32)
    places = computed(case.graph, {"x0": x, "x1": np.array([0, 0, 1])}, backend)
    loss, probabilities = (places[output.name] for output in case.graph.outputs)
    np.testing.assert_array_equal(loss, [1000, 0, 1e5])
    np.testing.assert_array_equal(probabilities, [[0, 1], [1, 0], [1, 0]])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_confident_logits_keep_their_digits(backend: Any) -> None:
    """softplus(x) - t x would give 0 where t is 1, PyTorch gives 0 where it is 0."""
    case = case_of(COMMANDS["sigmoid_binary_cross_entropy"], Example(("f64[2]", "f64[2]")))
    places = computed(case.graph, {"x0": np.array([45.0, -45.0]), "x1": np.array([1.0, 0.0])}, backend)
    np.testing.assert_allclose(places[case.graph.outputs[0].name], np.exp([-45.0, -45.0]), rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", ["categorical_cross_entropy", "softmax_cross_entropy"])
def test_a_label_that_is_no_class_is_an_error(name: str, backend: Any) -> None:
    case = _labelled(name, [0, 5])
    with pytest.raises((IndexError, RuntimeError), match=r"5 is (out of range for 3 classes|out of bounds)"):
        computed(case.graph, case.arrays, backend)


def _labelled(name: str, labels: list[int]) -> Case:
    case = case_of(COMMANDS[name], Example((f"f64[{len(labels)},3] 0.1:1", f"i64[{len(labels)}] 0:3")))
    return Case(case.graph, {**case.arrays, "x1": np.array(labels)})


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", ["categorical_cross_entropy", "softmax_cross_entropy"])
def test_rows_without_a_label_have_no_loss_and_no_gradient(name: str, backend: Any) -> None:
    case = _labelled(name, [-1, 2, -100])
    graph, arrays, _, (grad,) = differentiated(case)
    if name == "softmax_cross_entropy":
        arrays[f"seed.{case.graph.outputs[1].name}"][...] = 0  # only the loss counts
    places = computed(graph, arrays, backend)
    assert (places[case.graph.outputs[0].name] != 0).tolist() == [False, True, False]
    assert places[grad.name].any(axis=1).tolist() == [False, True, False]


def test_the_gradient_of_softmax_cross_entropy_needs_no_scores() -> None:
    """So that the probabilities may be written over them."""
    case = case_of(COMMANDS["softmax_cross_entropy"], Example(("f64[4,3]", "i64[4] 0:3")))
    (forward,), (x, _) = case.graph.nodes, case.graph.inputs
    graph, *_ = differentiated(case)
    assert not any(x in node.uses for node in graph.nodes if node.name != forward.name)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("softmax_cross_entropy", ["f32[8,10]", "i64[10]"], {}, r"the labels are i64\[10\], expected i64\[8\]"),
        ("softmax_cross_entropy", ["f32[8,10]", "f32[8]"], {}, "the labels, is .* expected one of the types i32, i64"),
        (
            "softmax_cross_entropy",
            ["f32[8,10]", "f32[8,10]"],
            {},
            "i64: pass integer class numbers, not one-hot vectors",
        ),
        ("softmax_cross_entropy", ["f32[8,10]", "i64[8,10]"], {}, "a row: pass integer class numbers, not one-hot"),
        ("softmax_cross_entropy", ["f32[8,0]", "i64[8]"], {}, "its last axis must be the classes"),
        ("categorical_cross_entropy", ["f32[]", "i64[]"], {}, "its last axis must be the classes"),
        (
            "softmax_cross_entropy_gradient",
            ["f32[]", "f32[8,10]", "i64[8]"],
            {},
            r"the gradient and the loss are .*, but must be equal",
        ),
        ("mse", ["f32[8]", "f32[8,1]"], {}, r"x and t are f32\[8\] and f32\[8,1\], but must be equal"),
        ("binary_cross_entropy", ["f32[8]", "bool[8]"], {}, "t is .*, expected one of the types"),
        ("smooth_l1", ["f32[8]", "f32[8]"], {"beta": 0.0}, "beta = 0.0 must be greater than 0"),
    ],
)
def test_refuses(op: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(op, shapes, attrs, message)
