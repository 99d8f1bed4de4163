"""Recurrent stacks beside PyTorch's, with its weights."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import sublet
from sublet import modules
from sublet.modules import GRU, LSTM, RNN

T, B, I, H = 6, 4, 8, 12  # rows of multiples of 64 bytes
KINDS: dict[str, Any] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def name_in_torch(name: str) -> str:
    layer, what = re.fullmatch(r"net/(l\d+(?:_reverse)?)/(\w+)", name).groups()  # type: ignore[union-attr]
    first = {"input_weight": "weight_ih", "hidden_weight": "weight_hh", "bias": "bias_ih", "hidden_bias": "bias_hh"}
    return f"{first[what]}_{layer}"


@pytest.mark.parametrize("way", ["loop", "fused", "dynamic"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_layers_in_both_directions_are_pytorchs_forward_and_gradients(kind: str, way: str) -> None:
    """Within 1e-5, and in a loop without a byte copied."""
    torch.manual_seed(0)
    theirs: Any = getattr(torch.nn, kind)(I, H, num_layers=2, bidirectional=True)
    x = torch.randn(T, B, I, requires_grad=True)
    towards = torch.randn(T, B, 2 * H)
    ys, last = theirs(x)
    last = last if isinstance(last, tuple) else (last,)
    (sum((one**2).sum() for one in last) + (ys * towards).sum()).backward()
    named = dict(theirs.named_parameters())

    net = KINDS[kind](
        H, layers=2, bidirectional=True, fused=True if way == "fused" and kind != "RNN" else None, name="net"
    )
    g: Any = sublet.DynamicGraph() if way == "dynamic" else sublet.Graph()
    given = g.parameter("x", (T, B, I), initial=x.detach().numpy())
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
    if way == "dynamic":
        ours = {"ys": out.numpy(), **{one.name: grad.numpy() for one, grad in zip(parameters, found, strict=True)}}
        finals = [one.numpy() for state in flat for one in state]
    else:
        finals_of = [one for state in flat for one in state]
        for name, tensor in [("ys", out), *((one.name, grad) for one, grad in zip(parameters, found, strict=True))]:
            g.output(name, tensor)
        for i, one in enumerate(finals_of):
            g.output(f"final{i}", one)
        weights = {one.name: named[name_in_torch(one.name)].detach().numpy() for one in parameters if one.name != "x"}
        forbidden = sublet.Options(forbid_copies=way == "loop" or kind == "RNN")
        executable = sublet.compile(sublet.less_memory(g), weights=weights, options=forbidden)
        ours = executable()
        assert executable.copied_bytes == 0
        finals = [ours[f"final{i}"] for i in range(len(finals_of))]
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(ours["ys"], ys.detach().numpy(), **close)
    stacked = np.stack(finals).reshape(4, len(last), B, H)
    for i, one in enumerate(last):
        np.testing.assert_allclose(stacked[:, i], one.detach().numpy(), **close)
    for parameter in parameters:
        grad = x.grad if parameter.name == "x" else named[name_in_torch(parameter.name)].grad
        assert grad is not None
        np.testing.assert_allclose(ours[parameter.name], grad.numpy(), err_msg=parameter.name, **close)


@pytest.mark.parametrize("cell", ["RNNCell", "LSTMCell", "GRUCell"])
def test_a_cell_is_pytorchs(cell: str) -> None:
    torch.manual_seed(0)
    theirs: Any = getattr(torch.nn, cell)(I, H)
    x, h, c = torch.randn(B, I), torch.randn(B, H), torch.randn(B, H)
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
