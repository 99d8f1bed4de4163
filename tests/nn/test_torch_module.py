"""A graph as a module of PyTorch's: gradients by finite differences, training, memory that stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sublet import Graph, layers, nn, torch_module
from sublet.base.errors import RunError, SpecError, SubletError

Write = Callable[[Graph], None]


def dense(g: Graph) -> None:
    x, z = g.input("x", (3, 4), "f64"), g.input("z", (3, 5), "f64")
    h = nn.tanh(layers.dense(x, 5))
    g.output("y", layers.dense(h * z, 2))
    g.output("h", h)


def convolved(g: Graph) -> None:
    x = g.input("x", (2, 3, 5, 5), "f64")
    y = nn.softplus(layers.conv(x, 4, 3))
    g.output("y", layers.layer_norm(y.reshape(2, 100)).mean())


def indexed(g: Graph) -> None:
    """Some inputs and outputs have no gradient."""
    i = g.input("i", (3,), "i64")
    x = layers.embedding(i, 6, 4, dtype="f64")
    g.output("y", nn.sigmoid(x))
    g.output("big", x > 0.5)


def looped(g: Graph) -> None:
    xs = g.input("xs", (4, 2, 3), "f64")
    hs, last, _ = layers.lstm(xs, 3)
    g.output("hs", hs)
    g.output("last", last)


def through(g: Graph) -> None:
    """An output that is an input, one that is given twice, and a parameter that nothing depends on."""
    x = g.input("x", (3,), "f64")
    w = g.parameter("w", (3,), "f64", 2.0)
    g.parameter("unused", (2,), "f64", 1.0)
    y = x * w
    g.output("x_again", x)
    g.output("y", y)
    g.output("y_again", y)
    g.output("w_again", w)


NETWORKS: dict[str, Write] = {write.__name__: write for write in (dense, convolved, indexed, looped, through)}


def made(name: str) -> tuple[Any, list[torch.Tensor]]:
    g = Graph(name)
    NETWORKS[name](g)
    module = torch_module(g)
    drawn = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(value.spec.shape, dtype=torch.float64, generator=drawn, requires_grad=True)
        if value.spec.dtype.text == "f64"
        else torch.randint(0, 6, value.spec.shape, generator=drawn)
        for value in g.model().graph.inputs
    ]
    return module, tensors


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_right(name: str) -> None:
    module, tensors = made(name)
    parameters = dict(module.named_parameters())

    def run(*given: torch.Tensor) -> Any:
        named = dict(zip(parameters, given[len(tensors) :], strict=True))
        found = torch.func.functional_call(module, named, given[: len(tensors)])
        several = found if isinstance(found, tuple) else (found,)
        return tuple(one for one in several if one.is_floating_point())

    given = (*tensors, *(parameter.detach().clone().requires_grad_() for parameter in parameters.values()))
    assert torch.autograd.gradcheck(run, given)


def test_it_trains_like_a_module_of_pytorchs() -> None:
    g = Graph()
    g.output("y", layers.dense(nn.relu(layers.dense(g.input("x", (8, 4)), 6)), 3))
    mine = torch_module(g)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    with torch.no_grad():
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            other.copy_(one)
    assert list(mine.state_dict()) == ["dense/weight", "dense/bias", "dense_2/weight", "dense_2/bias"]
    x, target = torch.randn(8, 4), torch.randn(8, 3)
    for module in (mine, theirs):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            loss = ((module(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_tensors_are_read_and_given_where_they_are() -> None:
    g = Graph()
    g.output("y", nn.relu(g.input("x", (4, 6))))
    module = torch_module(g)
    forward = module.passes.forward.executable
    x = torch.randn(4, 6)
    y = module(x)
    assert forward.bytes_of(forward.inputs["in.0"]).ctypes.data == x.data_ptr()
    again = module(x)
    assert y.data_ptr() != again.data_ptr()
    assert torch.equal(y, again)
    assert torch.equal(module(x.T.contiguous().T), y)  # copied first
    assert "x -> y" in repr(module)


def test_what_pytorch_would_not_know_is_refused() -> None:
    g = Graph()
    g.output("y", layers.dropout(g.input("x", (3,)), 0.5))
    with pytest.raises(SpecError, match="updates key"):
        torch_module(g)
    g = Graph()
    g.output("y", g.input("x", (3,)) * g.parameter("w", (3,)))
    with pytest.raises(RunError, match="'w' has no content"):
        torch_module(g)
    g = Graph()
    g.output("y", g.input("x", (3,)) * g.input("z", (3,)))
    module, x = torch_module(g), torch.zeros(3)
    for given, named in (((x,), {}), ((x, x, x), {}), ((x,), {"x": x}), ((x, x), {"z": x})):
        with pytest.raises(RunError, match="takes x, z, each once"):
            module(*given, **named)
    assert module(x, z=x).tolist() == [0, 0, 0]
    for bad in (torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(3, device="meta")):
        with pytest.raises(SubletError):
            module(x, bad)
    twice = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(twice, twice).sum(), twice)
    assert gradient.tolist() == [2, 2, 2]
