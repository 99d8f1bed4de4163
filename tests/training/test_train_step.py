"""Training steps: what they update, what they need, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import GradientError, SpecError
from sublet.nn.tensor import Tensor

X = np.linspace(-1, 1, 24).reshape(6, 4)
T = np.stack([X.sum(1) > 0, X[:, 0] > 0], 1).astype(np.float64)
RATE = 2.0**-6
"""The same number in f32 and f64."""

OPTIMIZERS = [
    sublet.SGD(RATE),
    sublet.SGD(RATE, momentum=0.9, nesterov=True, decay=1e-3),
    sublet.Adam(RATE),
    sublet.AdamW(RATE),
    sublet.RMSProp(RATE),
]


def network(g: sublet.Graph, dtype: str = "f64") -> Tensor:
    """Two dense layers, and the mean of squared differences."""
    random = np.random.default_rng(0)
    x, t = g.input("x", (6, 4), dtype), g.input("t", (6, 2), dtype)
    w0 = g.parameter("w0", (8, 4), dtype, random.normal(size=(8, 4)))
    w1 = g.parameter("w1", (2, 8), dtype, random.normal(size=(2, 8)))
    return nn.mse(nn.linear(nn.tanh(nn.linear(x, w0)), w1), t).mean()


def stepped(optimizer: Any, **options: Any) -> sublet.Executable:
    g = sublet.Graph()
    loss = network(g)
    return sublet.compile(sublet.train_step(loss, g.parameters, optimizer), options=sublet.Options(**options))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_steps_are_those_of_pytorch(optimizer: Any) -> None:
    torch = pytest.importorskip("torch")
    made = {
        sublet.SGD: lambda w: torch.optim.SGD(
            w, RATE, optimizer.momentum, weight_decay=optimizer.decay, nesterov=optimizer.nesterov
        ),
        sublet.Adam: lambda w: torch.optim.Adam(w, RATE),
        sublet.AdamW: lambda w: torch.optim.AdamW(w, RATE),
        sublet.RMSProp: lambda w: torch.optim.RMSprop(w, RATE),
    }
    executable = stepped(optimizer)
    weights = [torch.tensor(executable.state(name), requires_grad=True) for name in ("w0", "w1")]
    theirs, x, t = made[type(optimizer)](weights), torch.tensor(X), torch.tensor(T)
    for _ in range(5):
        theirs.zero_grad()
        loss = ((torch.tanh(x @ weights[0].T) @ weights[1].T - t) ** 2).mean()
        loss.backward()
        theirs.step()
        assert executable(x=X, t=T)["loss"] == pytest.approx(loss.item(), rel=1e-12)
    for name, weight in zip(("w0", "w1"), weights, strict=True):
        np.testing.assert_allclose(executable.state(name), weight.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_weights_and_state_are_updated_in_place(optimizer: Any) -> None:
    executable = stepped(optimizer, io="bound")
    plan = executable.plan
    assert plan.moves == ()
    places = {place.value: place for place in plan.placements}
    homes = {storage.name for storage in plan.storages if storage.kind == "weight"}
    for target, source in executable.graph.updates:
        assert places[target.name].region == places[source.name].region
        assert places[target.name].region.storage in homes


def test_the_step_is_the_same_in_a_poisoned_arena() -> None:
    executable = stepped(sublet.Adam(0.05))
    given = {"x": X, "t": T}
    left: dict[str, Any] = {}
    poisoned = sublet.run_poisoned(executable, given, left=left)
    assert executable(given)["loss"] == poisoned["loss"]
    for name, content in left.items():
        np.testing.assert_array_equal(executable.state(name), content, err_msg=name)


def test_a_gradient_is_consumed_before_the_next_is_complete() -> None:
    """Of 30 equal layers not more than two gradients are alive at a time."""
    g = sublet.Graph()
    x = g.input("x", (4, 64))
    for i in range(30):
        w = g.parameter(f"w{i}", (64, 64), initial=np.eye(64))
        x = nn.tanh(x @ w)
    step = sublet.train_step(x.mean(), g.parameters, sublet.SGD(0.1, momentum=0.9))
    plan = sublet.plan_memory(step.graph, sublet.Options(io="bound"))
    assert plan.arena_bytes <= 30 * 4 * 64 * 4 + 2 * 64 * 64 * 4 + 8 * 1024
    assert plan.gap == 0


def test_the_rate_can_be_an_input() -> None:
    g = sublet.Graph()
    loss = network(g)
    rate = g.input("rate")
    executable = sublet.compile(sublet.train_step(loss, g.parameters, sublet.SGD(rate)))
    before = executable.state("w0")
    executable(x=X, t=T, rate=np.float32(0))
    np.testing.assert_array_equal(executable.state("w0"), before)
    executable(x=X, t=T, rate=np.float32(0.1))
    assert np.abs(executable.state("w0") - before).max() > 0


def test_dropout_draws_other_numbers_each_step() -> None:
    g = sublet.Graph()
    x = g.input("x", (64,))
    w = g.parameter("w", (64,), initial=1)
    kept = layers.dropout(x * w, 0.5)
    g.output("kept", kept)
    executable = sublet.compile(sublet.train_step(kept.mean(), [w], sublet.SGD(0.0)))
    ones = np.ones(64, np.float32)
    first, second = (executable(x=ones)["kept"] for _ in range(2))
    assert set(np.unique(first)) == {0.0, 2.0}
    assert not np.array_equal(first, second)


def test_clipped_steps_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    executable = stepped(sublet.Clipped(sublet.SGD(RATE, momentum=0.9), 0.25))
    weights = [torch.tensor(executable.state(name), requires_grad=True) for name in ("w0", "w1")]
    theirs, x, t = torch.optim.SGD(weights, RATE, 0.9), torch.tensor(X), torch.tensor(T)
    norms = []
    for _ in range(5):
        theirs.zero_grad()
        ((torch.tanh(x @ weights[0].T) @ weights[1].T - t) ** 2).mean().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 0.25).item())
        theirs.step()
        executable(x=X, t=T)
    assert min(norms) > 0.25
    for name, weight in zip(("w0", "w1"), weights, strict=True):
        np.testing.assert_allclose(executable.state(name), weight.detach().numpy(), rtol=1e-6)


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    """Gradients taken in the rounds of a loop, summed, and given to the optimiser."""
    whole = stepped(sublet.Adam(RATE))
    g = sublet.Graph()
    x, t = g.input("x", (3, 2, 4), "f64"), g.input("t", (3, 2, 2), "f64")
    weights = [g.parameter(name, initial=whole.state(name), dtype="f64") for name in ("w0", "w1")]
    zeros = {weight.name: g.constant(np.zeros(weight.shape)) for weight in weights}
    with g.while_(zeros, over={"x": x, "t": t}) as loop:
        loss = nn.mse(nn.linear(nn.tanh(nn.linear(loop["x"], weights[0])), weights[1]), loop["t"]).mean()
        found = zip(weights, sublet.gradients(loss, weights), strict=True)
        loop.next(**{weight.name: loop[weight.name] + gradient for weight, gradient in found})
    sublet.Adam(RATE).write(g, weights, [loop[weight.name] / 3 for weight in weights])
    parts = sublet.compile(sublet.less_memory(g))
    for _ in range(3):
        whole(x=X, t=T)
        parts(x=X.reshape(3, 2, 4), t=T.reshape(3, 2, 2))
    for name in ("w0", "w1"):
        np.testing.assert_allclose(parts.state(name), whole.state(name), rtol=1e-9)


def test_a_step_goes_on_from_the_state_of_another() -> None:
    first, second = stepped(sublet.Adam(0.05)), stepped(sublet.Adam(0.05))
    for _ in range(3):
        first(x=X, t=T)
    for name in first.updated:
        second.set_state(name, first.state(name))
    assert first(x=X, t=T)["loss"] == second(x=X, t=T)["loss"]
    assert first(x=X, t=T)["loss"] == second(x=X, t=T)["loss"]


def test_groups_of_parameters_have_optimisers_of_their_own() -> None:
    """Two steps written on one graph, as for two players; each reads the weights as they were before both."""
    g = sublet.Graph()
    w0, w1 = (g.parameter(name, (4,), initial=1) for name in ("w0", "w1"))
    product = (w0 * w1).sum()
    sublet.train_step(product, [w0], sublet.Adam(0.5), name="first")
    executable = sublet.compile(sublet.train_step(-product, [w1], sublet.Adam(0.25), name="second"))
    assert executable() == {"first": 4, "second": -4}
    np.testing.assert_allclose(executable.state("w0"), [0.5] * 4, rtol=1e-6)
    np.testing.assert_allclose(executable.state("w1"), [1.25] * 4, rtol=1e-6)
    assert executable.state("step/w0.step") == executable.state("step_2/w1.step") == 1


class Failing:
    """An optimiser that fails when it has written."""

    def write(self, graph: sublet.Graph, parameters: Any, gradients: Any) -> None:
        sublet.Adam(0.1).write(graph, parameters, gradients)
        raise SpecError("no more")


def test_a_step_that_fails_leaves_the_graph_as_it_was() -> None:
    g = sublet.Graph()
    xs, w = g.input("xs", (5, 3)), g.parameter("w", (3,), initial=1)
    with g.while_({"h": w}, over={"x": xs}) as loop:
        loop.next(h=loop["h"] * loop["x"])
    loss = loop["h"].sum()
    before = g.model().graph
    with pytest.raises(SpecError, match="no more"):
        sublet.train_step(loss, [w], Failing())
    with pytest.raises(GradientError, match="random"):
        sublet.gradients(loss * nn.random_normal(g.constant(1), shape=()), [nn.random_normal(g.constant(1), shape=())])
    with pytest.raises(SpecError, match="is not a parameter"):
        sublet.train_step((loop["h"] * 2).sum(), [w, loop["h"]], sublet.SGD(0.1))
    after = g.model().graph
    assert after.nodes[: len(before.nodes)] == before.nodes
    assert (after.outputs, after.updates) == ((), ())
    executable = sublet.compile(sublet.train_step(loss, [w], sublet.Adam(0.1)))
    assert executable(xs=np.ones((5, 3), np.float32))["loss"] == 3
    np.testing.assert_allclose(executable.state("w"), [0.9] * 3, rtol=1e-6)


def _integer(g: sublet.Graph, x: Tensor) -> object:
    return sublet.gradients(x.sum(), [g.input("i", (3,), "i64")])


def _of_integer(g: sublet.Graph, x: Tensor) -> object:
    return sublet.gradients(nn.argmax(x, axis=0), [x])


def _random(g: sublet.Graph, x: Tensor) -> object:
    noise = g.apply("nn.random_normal", g.state("key", (), "i64"), shape=(3,), dtype="f32")[0]
    return sublet.gradients((x * noise).sum(), [noise])


def _without_rule(g: sublet.Graph, x: Tensor) -> object:
    new = nn.sgd(x, x, g.constant(0.1, "f32"))
    return sublet.gradients(new.sum(), [x])


def _not_a_scalar(g: sublet.Graph, x: Tensor) -> object:
    return sublet.train_step(x, [g.parameter("w", (3,))], sublet.SGD(0.1))


def _no_parameters(g: sublet.Graph, x: Tensor) -> object:
    return sublet.train_step(x.sum(), [], sublet.SGD(0.1))


def _through_outside(g: sublet.Graph, x: Tensor) -> None:
    doubled = x * 2
    with g.while_({"h": x}, rounds=2) as loop:
        sublet.gradients((loop["h"] * doubled).sum(), [x])


def _all_outside(g: sublet.Graph, x: Tensor) -> None:
    loss = (x * 2).sum()
    with g.while_({"h": x}, rounds=2):
        sublet.gradients(loss, [x])


def _tuple(g: sublet.Graph, x: Tensor) -> object:
    loss = nn.softmax_cross_entropy(x.reshape(1, 3), g.input("labels", (1,), "i64"))
    return sublet.train_step(loss, [x], sublet.SGD(0.1))


def _independent(g: sublet.Graph, x: Tensor) -> object:
    return sublet.train_step(x.sum(), [g.parameter("w", (3,))], sublet.SGD(0.1))


def _twice(g: sublet.Graph, x: Tensor) -> object:
    w = g.parameter("w", (3,))
    sublet.train_step((x * w).sum(), [w], sublet.SGD(0.1))
    return sublet.train_step((x * w).sum(), [w], sublet.SGD(0.1), name="again")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (_through_outside, "through %mul, which is computed outside of this loop"),
        (_all_outside, "through %sum, which is computed outside of this loop"),
        (_tuple, "tuple is not a Tensor: pass one item"),
        (_independent, "depends on none of the parameters"),
        (_twice, "is updated twice"),
        (lambda g, x: sublet.gradients(x.sum(), x), "is one tensor: pass a list of tensors"),
        (lambda g, x: sublet.gradients(x * 2, [x], x.sum()), "the seed .* must have the shape and type of"),
        (lambda g, x: sublet.train_step(x.sum(), [x], sublet.SGD), "is not an optimiser: pass one like"),
        (lambda g, x: sublet.train_step(x.sum(), [x], sublet.SGD("0.1")), "'0.1' is not a number"),
        (_integer, "only floating-point"),
        (_of_integer, "only floating-point"),
        (_random, "random"),
        (_without_rule, r"nn\.sgd has no gradient"),
        (_not_a_scalar, "expected one number"),
        (_no_parameters, "no parameters"),
    ],
)
def test_what_has_no_gradient_is_told_by_the_line(mistake: Any, message: str) -> None:
    g = sublet.Graph()
    x = g.input("x", (3,))
    with pytest.raises((GradientError, SpecError), match=message) as caught:
        mistake(g, x)
    assert re.match(r".*test_train_step\.py:\d+: ", str(caught.value))
