"""Functions composed of commands against PyTorch's functions and derivatives, in the symbolic and the dynamic graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import SpecError

torch = pytest.importorskip("torch")
F = torch.nn.functional

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4, 5))
SQUARE = RANDOM.normal(size=(4, 4, 3))
LOGITS, LABELS = RANDOM.normal(size=(6, 7)), np.array([0, 6, 2, 2, 5, 1])
Array = np.ndarray[Any, Any]


def both(function: Callable[..., Any], *arrays: Array) -> list[tuple[list[Array], list[Array]]]:
    """The results of a function, and the gradients of their weighted sum, in the dynamic and the symbolic graph."""

    def parts(graph: Any, tensors: list[Any]) -> tuple[list[Any], list[Any]]:
        results = function(*tensors)
        results = list(results) if isinstance(results, tuple) else [results]
        real = [one for one in results if one.dtype.text.startswith("f")]
        wrt = [one for one in tensors if one.dtype.text.startswith("f")]
        if not real:
            return results, []
        total = sum((one * weights(one.shape)).sum() for one in real)
        return results, sublet.gradients(total, wrt)

    d = sublet.DynamicGraph()
    eager = parts(d, [d.tensor(array) for array in arrays])
    g = sublet.Graph()
    inputs = [g.input(f"x{i}", array.shape, str(array.dtype)) for i, array in enumerate(arrays)]
    results, grads = parts(g, inputs)
    for i, one in enumerate([*results, *grads]):
        g.output(f"y{i}", one + 0 if one.dtype.text != "bool" else one)
    outputs = list(sublet.compile(g)({f"x{i}": array for i, array in enumerate(arrays)}).values())
    return [
        ([one.numpy() for one in eager[0]], [one.numpy() for one in eager[1]]),
        (outputs[: len(results)], outputs[len(results) :]),
    ]


def weights(shape: tuple[int, ...]) -> Array:
    return np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape)


def agrees(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Array) -> None:
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    for tensor in tensors:
        tensor.requires_grad_(tensor.is_floating_point())
    expected = theirs(*tensors)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    real = [one for one in expected if one.is_floating_point()]
    if real:
        sum((one * torch.from_numpy(weights(tuple(one.shape)))).sum() for one in real).backward()
    for results, grads in both(ours, *arrays):
        for actual, wanted in zip(results, expected, strict=True):
            assert actual.shape == tuple(wanted.shape)
            np.testing.assert_allclose(actual, wanted.detach().numpy(), rtol=1e-9, atol=1e-12)
        for actual, tensor in zip(grads, [one for one in tensors if one.requires_grad], strict=bool(grads)):
            wanted = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
            np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-12)


def assigned(index: Any) -> Callable[..., Any]:
    def assign(x: Any, v: Any) -> Any:
        x = x.clone()
        x[index] = v
        return x

    return assign


def added(index: Any) -> Callable[..., Any]:
    def add(x: Any, v: Any) -> Any:
        x = x.clone()
        x[index] += v
        return x

    return add


FUNCTIONS: dict[str, tuple[Any, Any, tuple[Array, ...]]] = {
    "stack": (lambda a, b: nn.stack([a, b, a]), lambda a, b: torch.stack([a, b, a]), (X, X + 1)),
    "stack inside": (lambda a, b: nn.stack((a, b), -1), lambda a, b: torch.stack((a, b), -1), (X, X + 1)),
    "unsqueeze": (lambda x: nn.unsqueeze(x, -2), lambda x: x.unsqueeze(-2), (X,)),
    "squeeze": (nn.squeeze, torch.squeeze, (X[:1, :, :1],)),
    "squeeze one": (lambda x: nn.squeeze(x, -1), lambda x: x.squeeze(-1), (X[:1, :, :1],)),
    "var": (nn.var, lambda x: x.var(correction=0), (X,)),
    "var of axes": (
        lambda x: nn.var(x, (0, -1), keepdims=True, correction=1),
        lambda x: x.var((0, -1), keepdim=True),
        (X,),
    ),
    "std": (lambda x: nn.std(x, 1), lambda x: x.std(1, correction=0), (X,)),
    "std of equals": (lambda x: nn.std(x * 0 + 1, 1), lambda x: (x * 0 + 1).std(1, correction=0), (X,)),
    "all": (lambda x: nn.all(x > -1, 2), lambda x: (x > -1).all(2), (X,)),
    "all of numbers": (lambda x: nn.all(x), lambda x: x.bool().all(), (np.array([[1, 2], [3, 0]]),)),
    "any": (lambda x: nn.any(x > 1, (0, 2), keepdims=True), lambda x: (x > 1).any(2, True).any(0, True), (X,)),
    "sort": (nn.sort, lambda x: tuple(x.sort(stable=True)), (X,)),
    "sort descending": (
        lambda x: nn.sort(x, 0, descending=True),
        lambda x: tuple(torch.sort(x, dim=0, descending=True, stable=True)),
        (np.round(X),),
    ),
    "update": (lambda x, v: x.at[1:3].set(v), assigned(np.s_[1:3]), (X, X[:2] * 2)),
    "update a block": (lambda x, v: x.at[1:, 2, -4:-1].set(v), assigned(np.s_[1:, 2, -4:-1]), (X, X[0, 0, :3])),
    "update all": (lambda x, v: nn.update(x, ..., v), assigned(np.s_[...]), (X, X[0])),
    "update steps": (lambda x, v: x.at[::2, 1, 1::3].set(v), assigned(np.s_[::2, 1, 1::3]), (X, X[:2, 0, :2])),
    "update steps inside": (lambda x, v: x.at[1:2, ::3].set(v), assigned(np.s_[1:2, ::3]), (X, X[:1, :2])),
    "update nothing": (lambda x, v: x.at[2:2].set(v) + 0 * v, assigned(np.s_[2:2]), (X, X[:1, :1, :1])),
    "update a new axis": (lambda x, v: x.at[0, None].set(v), assigned(np.s_[0, None]), (X, X[:1])),
    "update by a number": (lambda x: x.at[..., 0].set(7), lambda x: assigned(np.s_[..., 0])(x, 7.0), (X,)),
    "update a row": (lambda x, i, v: x.at[i].set(v), lambda x, i, v: assigned(i)(x, v), (X, np.array(2), X[0])),
    "add": (lambda x, v: x.at[:, 1:3].add(v), added(np.s_[:, 1:3]), (X, X[:, :2])),
    "add rows": (
        lambda x, i, v: x.at[i].add(v),
        lambda x, i, v: x.index_add(0, i, v),
        (X, np.array([2, 0, 2]), X),
    ),
    "cross entropy": (nn.cross_entropy, F.cross_entropy, (LOGITS, LABELS)),
    "ignored": (
        lambda x, y: nn.cross_entropy(x, y, ignore_index=2),
        lambda x, y: F.cross_entropy(x, y, ignore_index=2),
        (LOGITS, LABELS),
    ),
    "smoothed": (
        lambda x, y: nn.cross_entropy(x, y, label_smoothing=0.1, reduction="none"),
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"),
        (LOGITS, LABELS),
    ),
    "smoothed and ignored": (
        lambda x, y: nn.cross_entropy(x, y, label_smoothing=0.3, ignore_index=-100, reduction="mean"),
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.3, ignore_index=-100),
        (LOGITS, np.where(LABELS == 2, -100, LABELS)),
    ),
    "sum of losses": (
        lambda x, y: nn.cross_entropy(x, y, reduction="sum"),
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        (LOGITS, LABELS),
    ),
    "huber": (lambda x, t: nn.huber(x, t), lambda x, t: F.huber_loss(x, t, reduction="none"), (X, 2 * X[::-1].copy())),
    "huber delta": (
        lambda x, t: nn.huber(x, t, delta=0.3),
        lambda x, t: F.huber_loss(x, t, reduction="none", delta=0.3),
        (X, X[::-1].copy()),
    ),
    "kl": (
        lambda x, t: nn.kl_divergence(x, nn.softmax(t)),
        lambda x, t: F.kl_div(x, F.softmax(t, -1), reduction="none"),
        (X, X[::-1].copy()),
    ),
    "kl of logs": (
        lambda x, t: nn.kl_divergence(x, t, log_target=True),
        lambda x, t: F.kl_div(x, t, reduction="none", log_target=True),
        (X, X[::-1].copy()),
    ),
}
EQUATIONS: list[tuple[str, tuple[Array, ...]]] = [
    ("ij,jk->ik", (X[0], X[0].T.copy())),
    ("bij,bkj->bik", (X, X + 1)),
    ("bij,bkj", (X, X + 1)),
    ("bhqd,bhkd->bhqk", (X[None], 2 * X[None])),
    ("ij,ij->", (X[0], X[1])),
    ("i,j->ij", (X[0, 0], X[0, 1])),
    ("ij->ji", (X[0],)),
    ("ij->j", (X[0],)),
    ("iij->ji", (SQUARE,)),
    ("ii", (SQUARE[:, :, 0].copy(),)),
    ("iij,j->i", (SQUARE, X[0, 0, :3].copy())),
    ("...ij,jk->...ik", (X, X[0].T.copy())),
    ("...ij,...jk->...ik", (X, X[:1].transpose(0, 2, 1).copy())),
    ("bi,ij,bj->b", (X[:, :, 0].copy(), X[0], X[:, 0].copy())),
    ("a,b,c->cba", (X[0, 0], X[0, 1, :2].copy(), X[0, 2, :3].copy())),
    ("ij,kl->il", (X[0], X[1])),
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pytorchs(name: str) -> None:
    ours, theirs, arrays = FUNCTIONS[name]
    agrees(ours, theirs, *arrays)


@pytest.mark.parametrize(("equation", "arrays"), EQUATIONS, ids=[equation for equation, _ in EQUATIONS])
def test_einsum_is_pytorchs(equation: str, arrays: tuple[Array, ...]) -> None:
    agrees(lambda *xs: nn.einsum(equation, *xs), lambda *xs: torch.einsum(equation, *xs), *arrays)


def test_kl_of_a_target_of_zero_is_zero() -> None:
    d = sublet.DynamicGraph()
    x, t = d.tensor(np.log([0.5, 0.5])), d.tensor(np.array([0.0, 1.0]))
    loss = nn.kl_divergence(x, t)
    np.testing.assert_allclose(loss.numpy(), [0, np.log(2)])
    assert np.isfinite(sublet.gradients(loss.sum(), [t])[0].numpy()).all()


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: nn.stack([1, 2]), "needs a Tensor"),
    (lambda x: nn.squeeze(x, 1), "extent 4 along axis 1"),
    (lambda x: nn.unsqueeze(x, 5), "axis 5 is out of range"),
    (lambda x: nn.var(x, (0, 0)), "name one axis twice"),
    (lambda x: nn.einsum("ij->i", x), "does not fit the axes"),
    (lambda x: nn.einsum("ijk->il", x), "labels of the operands"),
    (lambda x: nn.einsum("ijk,i->i", x), "2 operands, not 1"),
    (lambda x: nn.einsum("iij->j", x), "no diagonal"),
    (lambda x: nn.einsum("ijk,iij->i", x, x), "no diagonal"),
    (lambda x: nn.cross_entropy(x, np.zeros((3, 4), "i8"), label_smoothing=2), "a share from 0 to 1"),
    (lambda x: x.at[5].set(0), "no index 5"),
    (lambda x: x.at[0].set(np.zeros(3)), "broadcast"),
    (lambda x: x.at[np.array([0, 1])].set(0), "selects several rows"),
    (lambda x: x[np.array([True, False, True])], r"an array bool\[3\] is not an index"),
    (
        lambda x: x.at[np.ones((3, 4), bool)].set(0),
        r"an array bool\[3, 4\] is not an index: .* for a mask use nn.where",
    ),
    (
        lambda x: x.at[0, 0, 0, np.ones((3, 4), bool)].set(0),
        r"integers or slices, not \[0, 0, 0, an array bool\[3, 4\]",
    ),
    (lambda x: x.__setitem__(0, 1), "x.at"),
    (lambda x: x.std(), "call nn.std"),
    (lambda x: nn.stak, "did you mean nn.stack"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_mistakes_are_errors_with_the_line(function: Callable[[Any], Any], message: str) -> None:
    for graph in (sublet.Graph(), sublet.DynamicGraph()):
        x = graph.input("x", X.shape, "f64") if isinstance(graph, sublet.Graph) else graph.tensor(X)
        with pytest.raises((SpecError, AttributeError), match=message):
            function(x)


def test_an_index_out_of_range_is_an_error_of_the_run() -> None:
    d = sublet.DynamicGraph()
    with pytest.raises(sublet.SubletError, match=r"out of (range|bounds)"):
        d.tensor(X).at[d.tensor(3)].set(0)
