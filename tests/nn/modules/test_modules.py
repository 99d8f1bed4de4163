"""Modules: names, shared parameters, both graphs, and the switch between training and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import SpecError
from sublet.nn import modules
from sublet.nn.modules import BatchNorm, Conv, Dense, Dropout, Parallel, Sequential

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
ROW, IMAGE = RANDOM.normal(size=(4, 6)).astype(np.float32), RANDOM.normal(size=(2, 4, 8, 8)).astype(np.float32)
SEQUENCE, WORDS = RANDOM.normal(size=(5, 3, 4)).astype(np.float32), RANDOM.integers(0, 9, (2, 5))

# A module, what it is called on, and the shape that comes out.
EXAMPLES: list[tuple[str, Callable[[], Any], Array, tuple[int, ...]]] = [
    ("dense", lambda: Dense(3), ROW, (4, 3)),
    ("embedding", lambda: modules.Embedding(9, 4), WORDS, (2, 5, 4)),
    ("conv", lambda: Conv(6, 3, strides=2, groups=2), IMAGE, (2, 6, 4, 4)),
    ("conv padded an axis", lambda: Conv(6, (3, 1), pads=(1, 0), bias=False), IMAGE, (2, 6, 8, 8)),
    ("conv transpose", lambda: modules.ConvTranspose(6, 2, strides=2, groups=2), IMAGE, (2, 6, 16, 16)),
    ("batch norm", lambda: BatchNorm(), IMAGE, IMAGE.shape),
    ("layer norm", lambda: modules.LayerNorm(axes=2, bias=False), SEQUENCE, SEQUENCE.shape),
    ("group norm", lambda: modules.GroupNorm(2), IMAGE, IMAGE.shape),
    ("rms norm", lambda: modules.RMSNorm(), SEQUENCE, SEQUENCE.shape),
    ("dropout", lambda: Dropout(0.5), ROW, ROW.shape),
    ("max pool", lambda: modules.MaxPool(3, strides=2, pads=1), IMAGE, (2, 4, 4, 4)),
    ("avg pool", lambda: modules.AvgPool(2), IMAGE, (2, 4, 4, 4)),
    ("global pool", lambda: modules.GlobalAvgPool(), IMAGE, (2, 4)),
    ("flatten", lambda: modules.Flatten(), IMAGE, (2, 256)),
    ("self attention", lambda: modules.SelfAttention(2, causal=True), SEQUENCE, SEQUENCE.shape),
    ("transformer", lambda: modules.TransformerBlock(2, dropout=0.1), SEQUENCE, SEQUENCE.shape),
    ("post-norm", lambda: modules.TransformerBlock(2, hidden=7, norm_first=False), SEQUENCE, SEQUENCE.shape),
    ("rnn", lambda: _outputs(modules.RNN(7, bidirectional=True)), SEQUENCE, (5, 3, 14)),
    ("lstm", lambda: _outputs(modules.LSTM(7, layers=2, dropout=0.1)), SEQUENCE, (5, 3, 7)),
    ("lstm fused", lambda: _outputs(modules.LSTM(7, bidirectional=True, fused=True)), SEQUENCE, (5, 3, 14)),
    ("gru", lambda: _outputs(modules.GRU(7, hidden_bias=False)), SEQUENCE, (5, 3, 7)),
    ("rnn cell", lambda: modules.RNNCell(7, activation=nn.relu), ROW, (4, 7)),
    ("gru cell", lambda: modules.GRUCell(7), ROW, (4, 7)),
    ("lstm cell", lambda: Sequential(modules.LSTMCell(7), lambda state: state[0]), ROW, (4, 7)),
    ("inception", lambda: modules.Inception(2, (3, 4), (1, 2), 3), IMAGE, (2, 11, 8, 8)),
    ("residual block", lambda: modules.ResidualBlock(4), IMAGE, IMAGE.shape),
    ("bottleneck", lambda: modules.ResidualBlock(4, strides=2, bottleneck=True), IMAGE, (2, 16, 4, 4)),
    ("sum", lambda: Parallel(Dense(3), Dense(3), join="sum"), ROW, (4, 3)),
    ("product", lambda: Parallel(Dense(3), Dense(3), join="product"), ROW, (4, 3)),
    ("joined by a function", lambda: Parallel(Dense(3), Dense(3), join=nn.maximum), ROW, (4, 3)),
]


def _outputs(stack: Any) -> Any:
    return Sequential(stack, lambda made: made[0])


@pytest.mark.parametrize(("make", "x", "shape"), [one[1:] for one in EXAMPLES], ids=[one[0] for one in EXAMPLES])
def test_both_graphs_compute_the_same_and_a_second_call_shares(make: Any, x: Array, shape: tuple[int, ...]) -> None:
    """In training: the second call reads running statistics that the first has changed."""
    module = make()
    g, d = sublet.Graph(), sublet.DynamicGraph()
    given = g.input("x", x.shape, x.dtype.name)
    first, count = module(given), len(g.parameters)
    assert first.shape == shape
    g.output("first", first)
    g.output("second", module(given))
    executable = sublet.compile(g)
    static = executable(x=x)
    eager = [module(d.tensor(x)).numpy() for _ in range(2)]
    assert len(g.parameters) == count
    assert [one.name for one in g.parameters] == [one.name for one in d.parameters]
    if "dropout" in repr(module).lower() and "0.0" not in repr(module):
        return  # a dynamic graph has another key for each call
    np.testing.assert_allclose(static["first"], eager[0], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(static["second"], eager[1], rtol=2e-4, atol=2e-5)
    for name in executable.updated:
        np.testing.assert_allclose(executable.state(name), d.weights[name].numpy(), rtol=1e-5, atol=1e-6)


class Tower(modules.Module):
    """A module as a user writes one."""

    def __init__(self, width: int) -> None:
        self.stem = Dense(width)
        self.blocks = [Sequential(Dense(width), nn.relu) for _ in range(2)]
        self.heads = {"small": Dense(2, name="two"), "large": Dense(5)}

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return modules.layers.dense(x, 3), *(head(x) for head in self.heads.values())


NAMES = ["stem", "blocks/0/0", "blocks/1/0", "dense", "two", "heads/large"]


@pytest.mark.parametrize("new", [sublet.Graph, sublet.DynamicGraph])
def test_names_are_those_of_attributes(new: Any) -> None:
    g = new()
    x = g.constant(ROW)
    tower = Tower(6)
    for _ in range(2):  # also of a layer that is made in each call
        tower(x)
    assert [one.name for one in g.parameters if "weight" in one.name] == [f"tower/{name}/weight" for name in NAMES]
    nameless = Tower(6)
    nameless.name = ""
    nameless(x)
    assert [one.name for one in g.parameters if one.name.startswith("stem")] == ["stem/weight", "stem/bias"]


def test_a_module_belongs_to_many_graphs_and_to_many_modules() -> None:
    shared = Dense(6)
    around = Sequential(a=shared, b=Sequential(shared, nn.relu), c=Dense(6))
    for _ in range(2):
        g = sublet.Graph()
        around(g.input("x", (4, 6)))
        assert [one.name for one in g.parameters] == [
            f"sequential/{name}/{what}" for name in "ac" for what in ("weight", "bias")
        ]


def test_equal_modules_are_two() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Twice(modules.Module):
        units: int

        def forward(self, x: Any) -> Any:
            return modules.layers.dense(x, self.units)

    g = sublet.Graph()
    x = g.input("x", (4, 6))
    assert Twice(6) == Twice(6)
    Twice(6)(Twice(6)(x))
    assert len(g.parameters) == 4


def test_what_is_shared_is_trained_once() -> None:
    """The gradient is the sum over both calls; so is the update."""
    g = sublet.Graph()
    x, layer = g.input("x", (4, 6)), Dense(6, bias=False)
    loss = nn.square(layer(layer(x))).mean()
    step = sublet.compile(sublet.train_step(loss, g.parameters, sublet.SGD(0.1)))
    w = np.float64(step.state("dense/weight"))
    y = ROW @ w.T
    out = y @ w.T
    by_out = 2 * out / out.size
    step(x=ROW)
    expected = w - 0.1 * (by_out.T @ y + (by_out @ w).T @ ROW)
    np.testing.assert_allclose(step.state("dense/weight"), expected, rtol=1e-5, atol=1e-6)


def test_a_module_in_a_loop_shares_with_one_outside() -> None:
    g = sublet.Graph()
    x, layer = g.input("x", (4, 6)), Dense(6)
    with g.while_({"x": x}, rounds=2) as loop:
        loop.next(x=layer(loop["x"]))
    g.output("y", layer(loop["x"]))
    g.output("unrolled", layer(layer(layer(x))))
    found = sublet.compile(g)(x=ROW)
    assert len(g.parameters) == 2
    np.testing.assert_allclose(found["y"], found["unrolled"], rtol=1e-5)


def test_dropout_called_twice_drops_others() -> None:
    g = sublet.Graph()
    x, drop = g.constant(np.ones(200, np.float32)), Dropout(0.5)
    g.output("a", drop(x))
    g.output("b", drop(x))
    found = sublet.compile(g)()
    assert (found["a"] != found["b"]).any()


@pytest.mark.parametrize("new", [sublet.Graph, sublet.DynamicGraph])
def test_one_switch(new: Any) -> None:
    net = Sequential(Conv(3, 3), BatchNorm(), Dropout(0.5))
    for g in (new(training=False), new()):
        with g.evaluation():
            assert not g.training
            y = net(g.constant(IMAGE))
        if isinstance(g, sublet.Graph):
            g.output("y", y)
            executable = sublet.compile(g)
            assert not executable.updated
            assert (executable()["y"] != 0).mean() > 0.99
        else:
            assert (y.numpy() != 0).mean() > 0.99


def test_a_call_that_fails_is_taken_back() -> None:
    g = sublet.Graph()
    x, net = g.input("x", (3, 6)), Sequential(Dense(6), BatchNorm(), Dense(4), lambda x: x @ x)
    for _ in range(2):
        with pytest.raises(SpecError, match=r"nn\.matmul"):
            net(x)
    assert not g.parameters
    ready = Sequential(BatchNorm(), Dense(6))
    y = ready(x)
    with pytest.raises(SpecError, match=r"nn\.matmul"):
        Sequential(ready, lambda x: x @ x)(x)
    g.output("y", y)
    executable = sublet.compile(g)
    assert executable(x=ROW[:3])["y"].shape == (3, 6)
    mean = 0.1 * ROW[:3].mean(0)  # the update of the call that stays
    np.testing.assert_allclose(executable.state("sequential/0/mean"), mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("new", [sublet.Graph, sublet.DynamicGraph])
def test_a_module_keeps_the_extents_of_its_first_call(new: Any) -> None:
    g, layer = new(), Dense(3)
    layer(g.constant(ROW))
    with pytest.raises(SpecError, match=r"dense/weight.* declared (as )?f32\[3,6\], .* f32\[3,4\]"):
        layer(g.constant(ROW[:, :4]))


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: Dense(3)(x.sum()), r"Dense: .* must have the axes \[..., I\]"),
    (lambda x: Conv(3, 3)(x), r"must have the axes \[N, C, X, ...\]"),
    (lambda x: Conv(3, 3, groups=3)(x.reshape(1, 2, 3, 4)), "2 channels cannot be split into 3 groups"),
    (lambda x: Conv(3, (3, 3, 3))(x.reshape(1, 2, 3, 4)), "conv"),
    (lambda x: Sequential(3)(x), "step 0 is 3: give modules and functions"),
    (lambda x: Parallel(nn.relu, join="max"), "not one of concat, sum, product or a function"),
    (lambda x: modules.LSTM(3, layers=2)(x.reshape(2, 3, 4), [x]), "1 initial states for 2 layers in 1 directions"),
    (lambda x: modules.Module()(x), "Module computes nothing: write its `forward`"),
    (lambda x: Dense(3)(), "NoneType is not a Tensor"),
    (lambda x: Dense(3)(ROW), "ndarray is not a Tensor"),
    (lambda x: modules.CrossAttention(2)(x.reshape(2, 3, 4), x), r"must have the axes \[B, S, E\]"),
    (lambda x: modules.LayerNorm(axes=3)(x), "axes = 3 is out of range"),
]


@pytest.mark.parametrize(("use", "message"), WRONG)
def test_mistakes_are_told_by_their_line(use: Callable[[Any], Any], message: str) -> None:
    g = sublet.Graph()
    with pytest.raises(SpecError, match=message) as caught:
        use(g.input("x", (6, 4)))
    assert str(caught.value).startswith(__file__)


@pytest.mark.parametrize("shape", [(300, 200), (40, 30, 5, 5)])
@pytest.mark.parametrize("name", ["kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal"])
def test_initial_distributions_are_pytorchs(name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    theirs, relu = torch.empty(shape), {"nonlinearity": "relu"} if name.startswith("kaiming") else {}
    getattr(torch.nn.init, f"{name}_")(theirs, **relu)
    ours = getattr(modules, name)()(np.random.default_rng(0), shape)
    assert ours.std() == pytest.approx(float(theirs.std()), rel=0.02)
    if name.endswith("uniform"):
        assert np.abs(ours).max() == pytest.approx(float(theirs.abs().max()), rel=0.01)
    doubled = getattr(modules, name)(gain=2.0)(np.random.default_rng(0), shape)
    single = getattr(modules, name)(gain=1.0)(np.random.default_rng(0), shape)
    np.testing.assert_allclose(doubled, 2 * single)
    g = sublet.Graph()
    modules.Conv(4, 3, initial=getattr(modules, name)())(g.input("x", (1, 2, 5, 5)))
    sublet.layers.dense(g.input("y", (1, 2)), 3, initial=getattr(sublet.layers, name)())
    sublet.compile(g)
    with pytest.raises(SpecError, match="has no fan in"):
        getattr(modules, name)()(np.random.default_rng(0), (3,))
