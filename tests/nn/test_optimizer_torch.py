"""Optimisers, several steps long, against torch.optim, and LAMB against the formulas of its paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.integrations.torch.kernels import optimizer as kernels
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.emitter import Emitter
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import refused

torch = pytest.importorskip("torch")

Array = NDArray[Any]
BACKENDS = [TorchBackend(), ReferenceBackend()]
STEPS = 6
RATE = float(np.float32(0.02))
TOLERANCE = {"f64": 1e-12, "f32": 2e-6}


def _node(op: str, dtype: str, shape: tuple[int, ...], states: int, attrs: dict[str, Any]) -> Node:
    spec = TensorSpec(DType.parse(dtype), shape)
    values = [Value("w", spec), Value("grad", spec), Value("lr", TensorSpec(DType.F32, ()))]
    values += [Value(f"state{i}", spec) for i in range(states)]
    if op in ("adam", "adamw", "lamb"):
        values.append(Value("step", TensorSpec(DType.I64, ())))
    emit = Emitter.from_graph(Graph("one", tuple(values), (), ()))
    emit.all_outputs(f"nn.{op}", *values, **attrs)
    return emit.nodes[-1]


def trained(
    op: str, dtype: str, w: Array, grads: list[Array], states: int, attrs: dict[str, Any], backend: Any, inplace: bool
) -> list[Array]:
    """The weights after each step. In place, every result lies over its input, as the planner would have it."""
    node = _node(op, dtype, w.shape, states, attrs)
    kernel = backend.kernel(node, {})
    kept = [w.copy(), *(np.zeros_like(w) for _ in range(states))]
    results = kept if inplace else [np.full_like(w, 7) for _ in kept]
    grad, step = np.empty_like(w), np.array(0)
    rate = np.array(RATE, np.float32)
    last = [step] if len(node.inputs) > 3 + states else []
    scratch = np.full(kernel.scratch, 7, np.uint8) if kernel.scratch else None
    call = kernel.bind([kept[0], grad, rate, *kept[1:], *last], results, scratch)
    found = []
    for given in grads:
        grad[...] = given
        step += 1
        call()
        assert np.array_equal(grad, given)
        for target, source in zip(kept, results, strict=True):
            target[...] = source
        found.append(kept[0].copy())
    return found


def _weights(dtype: str, shape: tuple[int, ...]) -> tuple[Array, list[Array]]:
    random = np.random.default_rng(0)
    kind = NUMPY[DType.parse(dtype)]
    return random.normal(size=shape).astype(kind), [random.normal(size=shape).astype(kind) for _ in range(STEPS)]


CASES: list[tuple[str, int, dict[str, Any], str, dict[str, Any]]] = [
    ("sgd", 0, {}, "SGD", {}),
    ("sgd", 0, {"decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    ("sgd", 1, {"momentum": 0.9}, "SGD", {"momentum": 0.9}),
    (
        "sgd",
        1,
        {"momentum": 0.9, "nesterov": 1, "decay": 0.1},
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    ("adam", 2, {}, "Adam", {}),
    (
        "adam",
        2,
        {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3, "decay": 0.1},
        "Adam",
        {"betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    ),
    ("adamw", 2, {}, "AdamW", {}),
    ("adamw", 2, {"decay": 0.3}, "AdamW", {"weight_decay": 0.3}),
    ("rmsprop", 1, {}, "RMSprop", {}),
    (
        "rmsprop",
        2,
        {"alpha": 0.8, "momentum": 0.9, "epsilon": 1e-3, "decay": 0.1},
        "RMSprop",
        {"alpha": 0.8, "momentum": 0.9, "eps": 1e-3, "weight_decay": 0.1},
    ),
]


@pytest.mark.parametrize("inplace", [True, False], ids=["inplace", "apart"])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize(("op", "states", "attrs", "theirs", "options"), CASES)
def test_steps_are_those_of_torch_optim(
    op: str,
    states: int,
    attrs: dict[str, Any],
    theirs: str,
    options: dict[str, Any],
    dtype: str,
    backend: Any,
    inplace: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "BLOCK", 100)  # the last of several blocks is a smaller one
    w, grads = _weights(dtype, (17, 21))
    found = trained(op, dtype, w, grads, states, attrs, backend, inplace)
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = getattr(torch.optim, theirs)([parameter], lr=RATE, **options)
    for grad, actual in zip(grads, found, strict=True):
        parameter.grad = torch.from_numpy(grad)
        optimizer.step()
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(actual, parameter.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_dampening_acts_from_the_first_step(backend: Any) -> None:
    """PyTorch's first momentum is the whole gradient: it is given the dampened one as its first."""
    w, grads = _weights("f64", (5, 7))
    attrs = {"momentum": 0.9, "dampening": 0.4}
    found = trained("sgd", "f64", w, grads, 1, attrs, backend, inplace=True)
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = torch.optim.SGD([parameter], lr=RATE, **attrs)
    for i, (grad, actual) in enumerate(zip(grads, found, strict=True)):
        parameter.grad = torch.from_numpy(grad * (0.6 if i == 0 else 1))
        optimizer.step()
        np.testing.assert_allclose(actual, parameter.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [1 << 17, 100])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_lamb_is_that_of_the_paper(
    backend: Any, dtype: str, decay: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """You et al., 2020, algorithm 2."""
    monkeypatch.setattr(kernels, "BLOCK", block)
    w, grads = _weights(dtype, (17, 21))
    found = trained("lamb", dtype, w, grads, 2, {"decay": decay}, backend, inplace=True)
    x, m, v = w.astype(np.float64), np.zeros(w.shape), np.zeros(w.shape)
    for t, (grad, actual) in enumerate(zip(grads, found, strict=True), 1):
        g = grad.astype(np.float64)
        m = 0.9 * m + (1 - 0.9) * g
        v = 0.999 * v + (1 - 0.999) * g * g
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        update = r + decay * x
        x = x - RATE * np.sqrt((x**2).sum()) / np.sqrt((update**2).sum()) * update
        np.testing.assert_allclose(actual, x, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_lamb_moves_weights_that_are_zero(backend: Any) -> None:
    """Without a norm to go by, its trust ratio is 1."""
    grads = [np.full((4,), 2.0)]
    (found,) = trained("lamb", "f64", np.zeros(4), grads, 2, {}, backend, inplace=True)
    np.testing.assert_allclose(found, -RATE, rtol=1e-5)
    (still,) = trained("lamb", "f64", np.ones(4), [np.zeros(4)], 2, {}, backend, inplace=True)
    np.testing.assert_array_equal(still, 1)


def test_scratch_does_not_grow_with_the_weights() -> None:
    """Of a network's largest matrix, a thousandth."""
    for op, states, attrs in (("rmsprop", 2, {"momentum": 0.9, "decay": 0.1}), ("lamb", 2, {"decay": 0.1})):
        kernel = TorchBackend().kernel(_node(op, "f32", (30_000, 4_096), states, attrs), {})
        assert kernel is not None
        assert kernel.scratch <= 2 * 4 * kernels.BLOCK
    for op, states, attrs in (("sgd", 1, {"momentum": 0.9}), ("adam", 2, {}), ("adamw", 2, {})):
        kernel = TorchBackend().kernel(_node(op, "f32", (30_000, 4_096), states, attrs), {})
        assert kernel is not None
        assert kernel.scratch == 0


W = "f32[3]"


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("sgd", [W, "f32[4]", "f32[]"], {}, r"grad and w are f32\[4\] and f32\[3\], but must be equal"),
        ("sgd", [W, W, "f64[]"], {}, r"lr is f64\[\], but must be f32\[\]"),
        ("sgd", [W, W, "f32[]"], {"momentum": 0.9}, "momentum is missing"),
        ("sgd", [W, W, "f32[]", W], {}, "momentum = 0 keeps no state: omit input 3"),
        ("sgd", [W, W, "f32[]"], {"nesterov": 1}, "nesterov = 1 needs a momentum"),
        ("adam", [W, W, "f32[]", W, "f64[3]", "i64[]"], {}, "v and w are .*, but must be equal"),
        ("adam", [W, W, "f32[]", W, W, "i32[]"], {}, r"step is i32\[\], but must be i64\[\]"),
        ("lamb", [W, W, "f32[]", W, W, "_"], {}, r"step is missing, but must be i64\[\]"),
        ("adamw", [W, W, "f32[]", W, W, "i64[]"], {"beta2": 1.0}, "beta2 = 1.0 must be at least 0 and less than 1"),
        ("rmsprop", [W, W, "f32[]", W, W], {}, "momentum = 0 keeps no state: omit input 4"),
        ("rmsprop", ["i64[3]", "i64[3]", "f32[]", W], {}, "w is .*, expected one of the types"),
    ],
)
def test_refuses(op: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(op, shapes, attrs, message)
