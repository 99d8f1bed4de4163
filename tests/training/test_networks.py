"""Gradients of whole networks, planned and in a poisoned arena, beside PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import sublet
from benchmarks import eager
from benchmarks.networks import vision
from sublet import layers, nn
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor

Write = Callable[[sublet.Graph, str], Tensor]
"""(graph, type) -> the loss."""

FLOATS = {"f64": np.float64, "f32": np.float32}


def resnet50(g: sublet.Graph, dtype: str) -> Tensor:
    logits = vision.resnet50(g.input("x", (2, 3, 64, 64), dtype))
    return nn.softmax_cross_entropy(logits, g.input("labels", (2,), "i64"))[0].mean()


def googlenet(g: sublet.Graph, dtype: str) -> Tensor:
    return (vision.googlenet(g.input("x", (2, 3, 64, 64), dtype)) ** 2).mean()


def unet(g: sublet.Graph, dtype: str) -> Tensor:
    logits = vision.unet(g.input("x", (2, 1, 32, 32), dtype), width=8)
    return nn.softmax_cross_entropy(
        logits.transpose(0, 2, 3, 1).reshape(-1, 2), g.input("labels", (2 * 32 * 32,), "i64")
    )[0].mean()


def gpt2_blocks(g: sublet.Graph, dtype: str) -> Tensor:
    x, heads = g.input("x", (2, 24, 64), dtype), 4
    for i in range(3):
        with g.scope(f"block{i}"):
            x = x + layers.self_attention(layers.layer_norm(x, name="norm1"), heads, causal=True)
            y = layers.dense(layers.layer_norm(x, name="norm2"), 256, name="up")
            x = x + layers.dense(nn.gelu(y, approximate=1), 64, name="down")
    return (layers.layer_norm(x, name="norm") * g.input("weight", (2, 24, 64), dtype)).mean()


def lstm_of_64_rounds(g: sublet.Graph, dtype: str) -> Tensor:
    every, last, _ = layers.lstm(g.input("xs", (64, 3, 8), dtype), 16)
    return every.mean() + (last * last).sum()


def branch_inside_a_loop(g: sublet.Graph, dtype: str) -> Tensor:
    xs, w = g.input("xs", (9, 4, 6), dtype), g.parameter("w", (6, 6), dtype, layers.normal(0.5))
    h0 = g.constant(np.full((4, 6), 0.1), dtype)
    with g.while_({"h": h0}, over={"x": xs}) as loop:
        h = nn.tanh(loop["h"] @ w + loop["x"])
        with g.case_of(h.sum() > 0) as case:
            with case.arm():
                case.give(h * 0.5 + loop["x"] @ w)
            with case.arm():
                case.give(nn.exp(h * 0.3) * loop["h"])
        loop.next(h=case[0])
        loop.stack(hs=case[0])
    return (loop["hs"] ** 2).mean() + loop["h"].sum()


NETWORKS = [resnet50, googlenet, unet, gpt2_blocks, lstm_of_64_rounds, branch_inside_a_loop]


def differentiated(write: Write, dtype: str) -> tuple[Graph, Model, list[str]]:
    """The forward graph; a model that gives the loss, and a gradient for each of the named parameters."""
    g = sublet.Graph()
    loss = write(g, dtype)
    forward = replace(g.model().graph, outputs=(loss.value,), updates=())
    g.output("loss", loss)
    names = [parameter.name for parameter in g.parameters]
    for parameter, gradient in zip(g.parameters, sublet.gradients(loss, g.parameters), strict=True):
        g.output(f"d {parameter.name}", gradient)
    return forward, sublet.less_memory(g), names


def inputs_of(model: Model, dtype: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    specs = {value.name: value.spec for value in model.graph.inputs if isinstance(value.spec, TensorSpec)}
    return {
        name: random.integers(0, 2, spec.shape)
        if spec.dtype.text == "i64"
        else random.normal(size=spec.shape).astype(FLOATS[dtype])
        for name, spec in specs.items()
    }


def by_autograd(forward: Graph, model: Model, names: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
    contents = {value.name: model.weights[value.name].array() for value in forward.weights if value.literal is None}
    weights = eager.tensors(contents)
    for name in names:
        weights[name].requires_grad_()
    (loss,) = eager.run(forward, {**weights, **eager.tensors(inputs)}).values()
    loss.backward()
    found = {f"d {name}": weights[name].grad for name in names}
    zeros = {f"d {name}": torch.zeros_like(weights[name]) for name in names}
    grads = {name: (zeros[name] if grad is None else grad).numpy() for name, grad in found.items()}
    return {"loss": loss.detach().numpy(), **grads}


@pytest.mark.parametrize("write", NETWORKS, ids=lambda write: write.__name__)
def test_gradients_are_those_of_autograd(write: Write) -> None:
    """To 1e-9 of the largest element."""
    agree(write, "f64", 1e-9)


@pytest.mark.parametrize("write", [unet, gpt2_blocks, lstm_of_64_rounds], ids=lambda write: write.__name__)
def test_gradients_in_single_precision(write: Write) -> None:
    """To 1e-4. A fresh ResNet-50 is so ill-conditioned that PyTorch's own f32 gradients are 1 % off its f64 ones."""
    agree(write, "f32", 1e-4)


def agree(write: Write, dtype: str, tolerance: float) -> None:
    forward, model, names = differentiated(write, dtype)
    inputs = inputs_of(model, dtype)
    expected = by_autograd(forward, model, names, inputs)
    for name, gradient in planned(model, inputs).items():
        assert apart(gradient, expected[name]) <= tolerance, name


def planned(model: Model, inputs: dict[str, Any]) -> dict[str, Any]:
    """The results of a planned run; one in a poisoned arena must give the same bit by bit."""
    executable = sublet.compile(model, options=sublet.Options(io="bound"))
    results = executable(inputs)
    for name, result in sublet.run_poisoned(executable, inputs).items():
        np.testing.assert_array_equal(result, results[name], err_msg=name)
    return results


def apart(found: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest element."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-6))


def test_hessian_times_a_vector() -> None:
    """Gradients of gradients: of a small network, beside PyTorch's."""
    g = sublet.Graph()
    x, v = g.input("x", (5, 4), "f64"), [g.input("v0", (3, 4), "f64"), g.input("v1", (1, 3), "f64")]
    w = [g.parameter("w0", (3, 4), "f64"), g.parameter("w1", (1, 3), "f64")]
    loss = nn.sigmoid(nn.tanh(x @ w[0].T) @ w[1].T).sum()
    first = sublet.gradients(loss, w)
    seconds = sublet.gradients((first[0] * v[0]).sum() + (first[1] * v[1]).sum(), w)
    g.output("h0", seconds[0])
    g.output("h1", seconds[1])
    random = np.random.default_rng(0)
    given = {name: random.normal(size=shape) for name, shape in (("x", (5, 4)), ("v0", (3, 4)), ("v1", (1, 3)))}
    weights = {"w0": random.normal(size=(3, 4)), "w1": random.normal(size=(1, 3))}
    executable = sublet.compile(g, weights=weights)
    t = eager.tensors(given)

    def function(w0: torch.Tensor, w1: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.tanh(t["x"] @ w0.T) @ w1.T).sum()

    _, expected = torch.autograd.functional.hvp(function, tuple(eager.tensors(weights).values()), (t["v0"], t["v1"]))
    for found in (executable(given), sublet.run_poisoned(executable, given)):
        np.testing.assert_allclose(found["h0"], expected[0].numpy(), rtol=1e-9)
        np.testing.assert_allclose(found["h1"], expected[1].numpy(), rtol=1e-9)
