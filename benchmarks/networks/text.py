"""Transformers and recurrent networks."""

from __future__ import annotations

from math import sqrt

import numpy as np

from sublet import layers, nn
from sublet.nn.graph import graph_of
from sublet.nn.tensor import Tensor


def gpt2(tokens: Tensor, *, width: int = 768, heads: int = 12, depth: int = 12, vocabulary: int = 50257) -> Tensor:
    """GPT-2 (Radford et al., 2019) without dropout: logits[B, T, vocabulary], by the embedding's own weights."""
    graph, (_, length) = graph_of(tokens), tokens.shape
    table = graph.parameter("token_table", (vocabulary, width), initial=layers.normal(0.02))
    places = graph.parameter("position_table", (length, width), initial=layers.normal(0.02))
    x = nn.embedding(table, tokens) + places
    for i in range(depth):
        with graph.scope(f"block{i}"):
            x = x + layers.self_attention(layers.layer_norm(x, name="norm1"), heads, causal=True)
            y = layers.dense(layers.layer_norm(x, name="norm2"), 4 * width, name="up")
            x = x + layers.dense(nn.gelu(y, approximate=1), width, name="down")
    return nn.linear(layers.layer_norm(x, name="norm"), table)


def _attended(x: Tensor, memory: Tensor, heads: int, name: str, *, causal: bool = False) -> Tensor:
    """Multi-head attention of x[B, T, D] to memory[B, S, D]."""
    graph, (batch, length, width) = graph_of(x), x.shape

    def headed(tensor: Tensor, name: str) -> Tensor:
        projected = layers.dense(tensor, width, bias=False, name=name)
        return projected.reshape(batch, tensor.shape[1], heads, width // heads).transpose(0, 2, 1, 3)

    with graph.scope(name):
        q, k, v = headed(x, "q"), headed(memory, "k"), headed(memory, "v")
        y, *_ = nn.attention(q, k, v, scale=1 / sqrt(width // heads), causal=causal)
        return layers.dense(y.transpose(0, 2, 1, 3).reshape(batch, length, width), width, bias=False, name="out")


def transformer(source: Tensor, target: Tensor, *, vocabulary: int = 8192, width: int = 512, depth: int = 6) -> Tensor:
    """The Transformer (Vaswani et al., 2017), 8 heads, without dropout: logits by the embedding's own weights."""
    graph, heads = graph_of(source), 8
    table = graph.parameter("embedding", (vocabulary, width), initial=layers.normal(width**-0.5))

    def fed(x: Tensor) -> Tensor:
        return layers.dense(nn.relu(layers.dense(x, 4 * width, name="up")), width, name="down")

    x = nn.embedding(table, source)
    for i in range(depth):
        with graph.scope(f"encoder{i}"):
            x = layers.layer_norm(x + _attended(x, x, heads, "self"), name="norm1")
            x = layers.layer_norm(x + fed(x), name="norm2")
    y = nn.embedding(table, target)
    for i in range(depth):
        with graph.scope(f"decoder{i}"):
            y = layers.layer_norm(y + _attended(y, y, heads, "self", causal=True), name="norm1")
            y = layers.layer_norm(y + _attended(y, x, heads, "cross"), name="norm2")
            y = layers.layer_norm(y + fed(y), name="norm3")
    return nn.linear(y, table)


def lstm_unrolled(xs: Tensor, units: int = 512) -> Tensor:
    """An LSTM over xs[T, B, I], its steps written one after another: the last h."""
    graph, (steps, batch, width) = graph_of(xs), xs.shape
    bound = 1 / sqrt(units)
    w = graph.parameter("input_weight", (4 * units, width), xs.dtype, layers.uniform(bound))
    u = graph.parameter("hidden_weight", (4 * units, units), xs.dtype, layers.uniform(bound))
    b = graph.parameter("bias", (4 * units,), xs.dtype, layers.uniform(bound))
    h = c = graph.constant(np.zeros((batch, units)), xs.dtype)
    for t in range(steps):
        h, c, *_ = nn.lstm_cell(nn.linear(xs[t], w, b) + nn.linear(h, u), c)
    return h


def lstm_language(tokens: Tensor, *, vocabulary: int = 10_000, width: int = 256, units: int = 512) -> Tensor:
    """A language model (Zaremba et al., 2014) of one LSTM, a loop over tokens[T, B]: logits[T, B, vocabulary]."""
    graph, (_, batch) = graph_of(tokens), tokens.shape
    bound = 1 / sqrt(units)
    w = graph.parameter("input_weight", (4 * units, width), initial=layers.uniform(bound))
    u = graph.parameter("hidden_weight", (4 * units, units), initial=layers.uniform(bound))
    b = graph.parameter("bias", (4 * units,), initial=layers.uniform(bound))
    zero = graph.constant(np.zeros((batch, units)), "f32")
    xs = nn.linear(layers.embedding(tokens, vocabulary, width, name="words"), w, b)
    with graph.while_({"h": zero, "c": zero}, over={"x": xs}) as loop:
        h, c, *_ = nn.lstm_cell(loop["x"] + nn.linear(loop["h"], u), loop["c"])
        loop.next(h=h, c=c)
        loop.stack(hs=h)
    return layers.dense(loop["hs"], vocabulary, name="next")
