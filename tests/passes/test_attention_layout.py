"""Attention without transpositions: the same results, in no larger arena, and no transposition copies bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from benchmarks.networks import text
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.base.optional_imports import is_installed
from sublet.ir.graph import Graph, Node
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor
from sublet.ops.op import lookup
from sublet.passes import pass_pipeline
from sublet.passes.attention_layout import MAX_POSITIONS, MIN_SAMPLE_BYTES, with_attention_in_place
from sublet.passes.pass_pipeline import simplify

BACKENDS = ["reference", *(["torch"] if is_installed("torch") else [])]
UNPLANNED = Options(strategy="no_reuse", share=False)
HEADS, WIDTH = 4, 32
LENGTH = MIN_SAMPLE_BYTES // (4 * HEADS * WIDTH)
"""The fewest positions with an attention that takes strides."""


def copying_transposes(graph: Graph) -> list[Node]:
    """Return the transpositions of a graph that are no views."""
    return [node for node in graph.walk() if node.op == "nn.transpose" and not lookup(node.op).views(node)]


def layouts(graph: Graph) -> list[Any]:
    return [node.attrs["layout"] for node in graph.walk() if node.op.startswith("nn.attention")]


def swapped(x: Tensor) -> Tensor:
    return x.transpose(0, 2, 1, 3)


def without_the_pass(monkeypatch: pytest.MonkeyPatch, write: Callable[[], Model]) -> tuple[Model, sublet.Executable]:
    """Return the model and the executable with transpositions."""
    with monkeypatch.context() as patch:
        kept = tuple(each for each in pass_pipeline.FUSING if each.name != "attention-layout")
        identity = pass_pipeline.Pass("attention-layout", lambda graph: graph, "")
        patch.setattr(pass_pipeline, "FUSING", (kept[0], identity, *kept[1:]))
        model = write()
        return model, sublet.compile(model, simplify=True)


def gpt2_step(batch: int) -> Model:
    g = sublet.Graph("gpt2")
    logits = text.gpt2(g.input("tokens", (batch, 128), "i64"), width=128, heads=2, depth=2, vocabulary=64)
    loss = nn.softmax_cross_entropy(logits.reshape(-1, 64), g.input("labels", (batch * 128,), "i64"))[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1, momentum=0.9))


def transformer_step(batch: int) -> Model:
    g = sublet.Graph("transformer")
    source, target = (g.input(name, (batch, 64), "i64") for name in ("source", "target"))
    logits = text.transformer(source, target, vocabulary=32, width=256, depth=1).reshape(batch * 64, -1)
    loss = nn.softmax_cross_entropy(logits, g.input("labels", (batch * 64,), "i64"))[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1))


def vision_transformer(batch: int) -> Model:
    """A ViT on images of 88: patches of 8, a class token, two blocks, classes."""
    g = sublet.Graph("vit")
    x = layers.conv(g.input("images", (batch, 3, 88, 88)), 192, 8, strides=8, pads=0).reshape(batch, 192, 121)
    token = g.parameter("token", (1, 1, 192), initial=layers.normal(0.02))
    x = nn.concat(nn.broadcast_to(token, shape=(batch, 1, 192)), x.transpose(0, 2, 1), axis=1)
    for i in range(2):
        x = x + layers.self_attention(layers.layer_norm(x, name=f"norm{i}"), 3, name=f"attention{i}")
    g.output("classes", layers.dense(x[:, 0], 10))
    return g.model()


NETWORKS: dict[str, tuple[Callable[[int], Model], int]] = {
    "gpt2": (gpt2_step, 0),
    "transformer": (transformer_step, 0),
    "vit": (vision_transformer, 1),  # the patches, one transposition a run
}


@pytest.mark.skipif(not is_installed("torch"), reason="without PyTorch these networks take minutes")
@pytest.mark.parametrize("name", NETWORKS)
def test_transpositions_of_networks_copy_no_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = NETWORKS[name]
    model, plain = without_the_pass(monkeypatch, lambda: write(2))
    changed = sublet.compile(write(2), simplify=True)
    assert len(copying_transposes(plain.graph)) > left + 4
    assert len(copying_transposes(changed.graph)) == left
    assert set(layouts(changed.graph)) == {"bthd"}
    assert changed.arena_bytes <= plain.arena_bytes
    rng = np.random.default_rng(0)
    inputs = {
        value.name: rng.normal(size=value.spec.shape).astype(np.float32)
        if value.spec.dtype.text == "f32"
        else rng.integers(0, 32, value.spec.shape)
        for value in model.graph.inputs
    }
    expected, states = plain(inputs), dict[str, Any]()
    for found in (sublet.run_poisoned(changed, inputs, left=states), changed(inputs)):
        for key, result in expected.items():
            np.testing.assert_allclose(found[key], result, rtol=1e-4, atol=1e-5)
    for key in plain.updated:
        np.testing.assert_allclose(states[key], plain.state(key), rtol=1e-3, atol=1e-4)


def attended(g: sublet.Graph, seed: int) -> Tensor:
    """Return a program of attentions, transpositions, slices, concatenations and reshapes of a batch."""
    rng = random.Random(seed)
    batch, length = rng.choice([2, 3]), rng.choice([LENGTH, LENGTH + 1, LENGTH // 2])
    x = g.input("x", (batch, length, HEADS * WIDTH))
    known = [x]
    for _ in range(rng.randrange(2, 6)):
        kind, a, b = rng.randrange(7), rng.choice(known), rng.choice(known)
        if kind < 4:
            joint = layers.dense(a, 3 * HEADS * WIDTH).reshape(batch, length, 3, HEADS, WIDTH)
            q, k, v = (swapped(joint[:, :, i]) for i in range(3))
            if kind == 1:
                q = nn.tanh(q)  # no transposition before the attention
            if kind == 2:
                known.append(swapped(k).reshape(batch, length, HEADS * WIDTH))
                v = swapped(b.reshape(batch, length, HEADS, WIDTH))
            y, sums = nn.attention(q, k, v, causal=rng.randrange(2))
            if kind == 3:
                known.append(a * nn.tanh(sums).mean())
                y = nn.relu(y) + y.mean()
            made = swapped(y).reshape(batch, length, HEADS * WIDTH)
        elif kind == 4:
            made = nn.concat(b[:, :, WIDTH:], a[:, :, :WIDTH], axis=2)
        elif kind == 5:
            made = a.reshape(batch, length, WIDTH, HEADS).transpose(0, 1, 3, 2).reshape(*a.shape)
        else:
            made = layers.layer_norm(a) + b
        known.append(made)
    return known[-1] + known[-2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_with_transpositions_run_as_unplanned(backend: str) -> None:
    in_place = transposed = 0
    for seed in range(24):
        g = sublet.Graph("attended")
        y = attended(g, seed)
        g.output("y", y)
        model = sublet.train_step((y * y).mean(), g.parameters, sublet.SGD(0.1)) if seed % 2 else g.model()
        shape = model.graph.inputs[0].spec.shape
        inputs = {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}
        apart = sublet.compile(model, backend=backend, options=UNPLANNED, simplify=False)
        exe = sublet.compile(model, backend=backend, simplify=True)
        found = layouts(exe.graph)
        in_place, transposed = in_place + found.count("bthd"), transposed + found.count("bhtd")
        expected, states = apart(inputs), dict[str, Any]()
        for results in (sublet.run_poisoned(exe, inputs, left=states), exe(inputs)):
            for name, result in expected.items():
                np.testing.assert_allclose(results[name], result, rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}")
        for name in apart.updated:
            np.testing.assert_allclose(states[name], apart.state(name), rtol=1e-3, atol=1e-3, err_msg=f"seed {seed}")
    assert in_place > 5
    assert transposed > 5


def one_attention(length: int, *, also: bool = False, mask: bool = False, loose: bool = False) -> Graph:
    """Return an attention between transpositions: with another reader, a mask, or an untransposed value."""
    g = sublet.Graph("one")
    q, k, v = (swapped(g.input(name, (2, length, HEADS, WIDTH))) for name in "qkv")
    given = (q, k, nn.relu(v) if loose else v, *([g.input("mask", (length, length), "bool")] if mask else []))
    y, _ = nn.attention(*given)
    g.output("y", swapped(y))
    if also:
        g.output("mean", y.sum(2))
    return g.model().graph


@pytest.mark.parametrize("mask", [False, True])
def test_an_attention_between_transpositions_takes_strides(mask: bool) -> None:
    changed = simplify(one_attention(LENGTH, mask=mask))
    assert layouts(changed) == ["bthd"]
    assert not copying_transposes(changed)
    assert with_attention_in_place(changed) == changed


@pytest.mark.parametrize(
    ("length", "options"),
    [(LENGTH - 1, {}), (MAX_POSITIONS + 1, {}), (LENGTH, {"also": True}), (LENGTH, {"loose": True})],
    ids=["small", "long", "another reader", "no transposition"],
)
def test_other_attentions_stay(length: int, options: dict[str, bool]) -> None:
    graph = one_attention(length, **options)
    assert with_attention_in_place(graph) == graph


def test_an_attention_with_positions_first_between_transpositions_loses_them() -> None:
    g = sublet.Graph("other")
    q, k, v = (swapped(g.input(name, (2, HEADS, LENGTH, WIDTH))) for name in "qkv")
    g.output("y", swapped(nn.attention(q, k, v, layout="bthd")[0]))
    assert [node.op for node in simplify(g.model().graph).nodes] == ["nn.attention"]
    assert layouts(simplify(g.model().graph)) == ["bhtd"]
