"""Steps over micro-batches: the loss and gradients of the whole batch, slices in place, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.base.errors import GradientError, SpecError
from sublet.base.tensor import DType
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor

BATCH = 8
FEEDS = {
    "x": np.random.default_rng(0).normal(size=(BATCH, 2, 8, 8)).astype("float32"),
    "labels": np.random.default_rng(1).integers(0, 4, BATCH),
}


def network(kind: str) -> tuple[sublet.Graph, Tensor]:
    """A loss, with logits as another output."""
    g = sublet.Graph(kind)
    x, labels = g.input("x", (BATCH, 2, 8, 8)), g.input("labels", (BATCH,), "i64")
    y = nn.max_pool(nn.relu(layers.conv(x, 4, 3)), kernel=(2, 2), strides=(2, 2))
    if kind == "normalised":
        y = layers.batch_norm(y)
    if kind == "centred":
        y = y - y.mean(0)
    if kind == "sequences":  # queries of the samples, and a table that is one for all
        rows = y.reshape(BATCH, 4, 16).transpose(0, 2, 1) + g.parameter("places", (16, 4), initial=layers.normal(0.2))
        q = layers.dense(layers.layer_norm(rows), 4).reshape(BATCH, 1, 16, 4)
        y = nn.attention(q, q, q, None, scale=0.5)[0].reshape(BATCH * 16, 4).reshape(BATCH, 64)
        noise = nn.random_normal(g.key(), shape=(BATCH, 64)) * g.parameter("spread", (1, 64), initial=0.1)
        y = y + noise
    if kind == "dropped":
        y = layers.dropout(y, 0.5)
    flat = y.reshape(BATCH, -1) if kind != "sequences" else y
    logits = layers.dense(flat, 4)
    losses = nn.softmax_cross_entropy(logits, labels)[0]
    loss = losses.mean()
    if kind == "regularised":
        loss = loss + 0.01 * nn.square(g.parameters[0]).sum() + nn.square(logits).sum() / (BATCH * 4) * 0.1
    if kind == "root":
        loss = nn.sqrt(loss)
    g.output("logits", logits)
    g.output("right", (nn.argmax(logits, axis=1) == labels).astype("i64").sum())
    return g, loss


def step(kind: str, parts: int, **more: Any) -> Model:
    g, loss = network(kind)
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1, momentum=0.9), micro_batches=parts, **more)


def run(model: Model) -> dict[str, Any]:
    """All that two steps leave."""
    train = sublet.compile(model, options=Options(in_place_from=0), backend="reference")
    for _ in range(2):
        found = train(**FEEDS)
    return {name: np.array(found[name]) for name in found} | {name: train.state(name) for name in train.updated}


@pytest.mark.parametrize("kind", ["regularised", "sequences"])
def test_a_step_is_that_of_the_whole_batch(kind: str) -> None:
    whole, parts = run(step(kind, 1)), run(step(kind, 4))
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_micro_batches_need_less_and_copy_no_inputs() -> None:
    plain, parts = (sublet.plan_memory(step("plain", k), Options(io="bound", in_place_from=0)) for k in (1, 8))
    assert parts.arena_bytes < plain.arena_bytes * 0.6
    fetched = sum(move.nbytes for move in parts.moves if move.edge.kind == "fetch")
    assert fetched == 8, "a label: less than an aligned slice"


def test_dropout_draws_other_elements_in_each_part() -> None:
    graph = step("dropped", 4).graph
    (drop,) = [node for node in graph.walk() if node.op == "nn.dropout"]
    (loop,) = [node for node in graph.nodes if node.subgraphs]
    inside = {value for sub in loop.subgraphs for value in sub.values()}
    assert drop.inputs[1] in inside, "the key is computed in each round"
    assert drop.inputs[1].spec.dtype is DType.I64  # type: ignore[union-attr]


def test_statistics_of_smaller_batches_are_asked_for() -> None:
    with pytest.raises(GradientError, match=r"batch_norm.*smaller_statistics"):
        step("normalised", 2)
    found = run(step("normalised", 2, smaller_statistics=True))
    assert any(name.endswith("variance") and not np.allclose(array, 1) for name, array in found.items())


@pytest.mark.parametrize(
    ("kind", "parts", "told"),
    [
        ("plain", 3, "divide the batch of 8"),
        ("plain", 0, "integer >= 1"),
        ("plain", (1, 2), "budget"),
        ("centred", 2, "whole batch"),
        ("root", 2, "linear combination of means"),
    ],
)
def test_what_is_not_the_same_is_refused(kind: str, parts: Any, told: str) -> None:
    with pytest.raises((SpecError, GradientError), match=told):
        step(kind, parts)


def test_a_budget_chooses_among_micro_batches() -> None:
    chosen = step("plain", (1, 8), budget=10_000)  # type: ignore[arg-type]
    assert sublet.plan_memory(chosen).arena_bytes <= 10_000
