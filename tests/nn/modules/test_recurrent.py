"""Recurrent stacks beside PyTorch's, with its weights."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import sublet
from sublet.nn import modules
from sublet.nn.modules import GRU, LSTM, RNN

T, B, WIDTH, H = 6, 4, 16, 16  # rows of multiples of 64 bytes
KINDS: dict[str, Any] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def name_in_torch(name: str) -> str:
    layer, what = re.fullmatch(r"net/(l\d+(?:_reverse)?)/(\w+)", name).groups()  # type: ignore[union-attr]
    first = {"input_weight": "weight_ih", "hidden_weight": "weight_hh", "bias": "bias_ih", "hidden_bias": "bias_hh"}
    return f"{first[what]}_{layer}"


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in KINDS for way in ("loop", "fused", "dynamic") if (kind, way) != ("RNN", "fused")],
)
def test_two_layers_in_both_directions_are_pytorchs_forward_and_gradients(kind: str, way: str) -> None:
    """Within 1e-5, and in a loop without a byte copied."""
    torch.manual_seed(0)
    theirs: Any = getattr(torch.nn, kind)(WIDTH, H, num_layers=2, bidirectional=True)
    x = torch.randn(T, B, WIDTH, requires_grad=True)
    towards = torch.randn(T, B, 2 * H)
    ys, last = theirs(x)
    last = last if isinstance(last, tuple) else (last,)
    towards_zero = sum((one**2).sum() for one in last) + (ys * towards).sum()
    towards_zero.backward()
    named = dict(theirs.named_parameters())

    net = KINDS[kind](H, layers=2, bidirectional=True, fused={"loop": False, "fused": True}.get(way), name="net")
    g: Any = sublet.DynamicGraph() if way == "dynamic" else sublet.Graph()
    given = g.parameter("x", (T, B, WIDTH), initial=x.detach().numpy())
    if way == "dynamic":
        net(given)
        for name in g.weights:
            if name != "x":
                g.weights[name] = named[name_in_torch(name)].detach().numpy()
    out, states = net(given)
    flat = [state if isinstance(state, tuple) else (state,) for state in states]
    loss = (out * g.constant(towards.numpy())).sum() + sum((one * one).sum() for state in flat for one in state)
    parameters = g.parameters
    found = sublet.gradients(loss, parameters)
    assert sum(one.size for one in parameters) == sum(one.numel() for one in theirs.parameters()) + x.numel()
    made = {"ys": out, **{one.name: grad for one, grad in zip(parameters, found, strict=True)}}
    if way == "dynamic":
        ours = {name: one.numpy() for name, one in made.items()}
    else:
        for name, tensor in made.items():
            g.output(name, tensor)
        weights = {one.name: named[name_in_torch(one.name)].detach().numpy() for one in parameters if one.name != "x"}
        executable = sublet.compile(sublet.less_memory(g), weights=weights, options=sublet.Options(forbid_copies=True))
        ours = executable()
        assert executable.copied_bytes == 0
    expected = {"ys": ys, "x": x.grad, **{name: one.grad for name, one in named.items()}}
    for name in ours:
        wanted = expected[name_in_torch(name) if name.startswith("net/") else name]
        np.testing.assert_allclose(ours[name], wanted.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_states_are_pytorchs(kind: str) -> None:
    """Going on from given ones, in use."""
    torch.manual_seed(0)
    theirs: Any = getattr(torch.nn, kind)(WIDTH, H, num_layers=2, bidirectional=True)
    count = 2 if kind == "LSTM" else 1
    x, first = torch.randn(T, B, WIDTH), [torch.randn(4, B, H) for _ in range(count)]
    ys, last = theirs(x, tuple(first) if count > 1 else first[0])
    g = sublet.Graph(training=False)
    given = [tuple(g.constant(one[i].numpy()) for one in first) for i in range(4)]
    net = KINDS[kind](H, layers=2, bidirectional=True, name="net")
    out, states = net(g.constant(x.numpy()), given)
    for i, state in enumerate(states):
        for j, one in enumerate(state if isinstance(state, tuple) else (state,)):
            g.output(f"{j}.{i}", one)
    g.output("ys", out)
    named = dict(theirs.named_parameters())
    weights = {one.name: named[name_in_torch(one.name)].detach().numpy() for one in g.parameters}
    ours = sublet.compile(g, weights=weights)()
    np.testing.assert_allclose(ours["ys"], ys.detach().numpy(), rtol=1e-5, atol=1e-5)
    for j, one in enumerate(last if count > 1 else (last,)):
        for i in range(4):
            np.testing.assert_allclose(ours[f"{j}.{i}"], one[i].detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell", ["RNNCell", "LSTMCell", "GRUCell"])
def test_a_cell_is_pytorchs(cell: str) -> None:
    torch.manual_seed(0)
    theirs: Any = getattr(torch.nn, cell)(WIDTH, H)
    x, h, c = torch.randn(B, WIDTH), torch.randn(B, H), torch.randn(B, H)
    g = sublet.Graph()
    ours: Any = getattr(modules, cell)(H, name="cell")
    tensors = [g.constant(one.numpy()) for one in (x, h, c)]
    state = tuple(tensors[1:]) if cell == "LSTMCell" else tensors[1]
    made = ours(tensors[0], state)
    g.output("h", made[0] if cell == "LSTMCell" else made)
    named = dict(theirs.named_parameters())
    weights = {one.name: named[name_in_torch(f"net/l0/{one.name[5:]}")[:-3]].detach().numpy() for one in g.parameters}
    found = sublet.compile(g, weights=weights)()["h"]
    expected = theirs(x, (h, c))[0] if cell == "LSTMCell" else theirs(x, h)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
