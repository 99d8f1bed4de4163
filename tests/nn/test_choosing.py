"""Commands that look and choose: top_k, histogram, isnan; and what no gradient goes through."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sublet
from sublet import Graph, compile, nn
from sublet.base.errors import GradientError, SpecError

BACKENDS = ["torch", "reference"]
X = np.array([[3, np.nan, 1, 3, -np.inf], [0, 0, -0.0, np.inf, 0]], np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_is_the_front_of_a_stable_sort(backend: str, largest: bool, k: int) -> None:
    g = Graph()
    values, indices = nn.top_k(g.input("x", X.shape), k=k, largest=largest)
    g.output("values", values)
    g.output("indices", indices)
    found = compile(g, backend=backend)(x=X)
    right = torch.sort(torch.from_numpy(X), dim=-1, descending=largest, stable=True)
    assert np.array_equal(found["indices"], right.indices[:, :k])
    assert np.array_equal(found["values"], right.values[:, :k], equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_isnan_and_histogram_look_at_every_element(backend: str) -> None:
    g = Graph()
    x = g.input("x", X.shape)
    g.output("nan", nn.isnan(x))
    g.output("bins", nn.histogram(x, bins=4, low=-1, high=3))
    found = compile(g, backend=[backend, "reference"])(x=X)
    assert np.array_equal(found["nan"], np.isnan(X))
    assert found["bins"].tolist() == [0, 4, 1, 2]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda x: nn.top_k(x, k=6), "k = 6 must be from 1 to 5"),
        (lambda x: nn.top_k(x, k=0), "k = 0"),
        (lambda x: nn.histogram(x, bins=0, low=0, high=1), "0 bins"),
        (lambda x: nn.histogram(x, bins=2, low=1, high=1), "from 1.0 to 1.0"),
        (lambda x: nn.isnan(x > 0), "isnan"),
    ],
)
def test_what_makes_no_sense_is_told(write: object, words: str) -> None:
    x = Graph().input("x", X.shape)
    with pytest.raises(SpecError, match=words):
        write(x)  # type: ignore[operator]


def test_no_gradient_goes_through_what_stops_it() -> None:
    """x y + stop(x) z, by x: only y; also in a loop, and in a dynamic graph."""
    g = Graph()
    x, y = g.input("x", (3,)), g.input("y", (3,))
    still = nn.stop_gradient(x * 2)
    with g.while_({"s": x}, rounds=3) as loop:
        loop.next(s=loop["s"] * y + nn.stop_gradient(loop["s"]))
    for name, of, wrt in (("a", x * y + still * y, x), ("b", still * still, still), ("c", loop["s"], x)):
        g.output(name, sublet.gradients(of, [wrt])[0])
    xs, ys = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    found = compile(g)(x=xs, y=ys)
    assert found["a"].tolist() == ys.tolist()
    assert found["b"].tolist() == (4 * xs).tolist()
    assert found["c"].tolist() == (ys**3).tolist()
    nothing = sublet.gradients(nn.stop_gradient(x), [x])[0]
    g.output("d", nothing)
    assert compile(g)(x=xs, y=ys)["d"].tolist() == [0, 0, 0]

    d = sublet.DynamicGraph()
    one = d.parameter("w", (3,), initial=xs)
    (gradient,) = sublet.gradients(nn.sum(one * nn.stop_gradient(one)), [one])
    assert gradient.numpy().tolist() == xs.tolist()


def test_indices_have_no_gradient() -> None:
    g = Graph()
    x = g.input("x", (2, 5))
    values, indices = nn.top_k(x, k=2)
    g.output("dx", sublet.gradients(values.sum(), [x])[0])
    assert compile(g)(x=np.arange(10, dtype=np.float32).reshape(2, 5))["dx"].tolist() == [[0, 0, 0, 1, 1]] * 2
    with pytest.raises(GradientError):
        sublet.gradients(indices, [x])
