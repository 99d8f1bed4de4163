"""Common layers: a few commands with parameters of their own, named by the scope they are written in.

A layer that is given no name is called by what it is, and numbered where there is one already: "dense", "dense_2".
Weights start as PyTorch's layers do unless said otherwise below: uniform in +-1/sqrt(fan in). They are drawn when
the graph is compiled, from a generator seeded by the name of the parameter, so that two runs start alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod, sqrt
from zlib import crc32

import numpy as np

from sublet.errors import SpecError
from sublet.nn.content import Draw
from sublet.nn.graph import Graph
from sublet.nn.lines import at_line
from sublet.nn.tensor import Tensor
from sublet.nn.writer import Eager, graph_of


def uniform(bound: float) -> Draw:
    """Numbers in [-bound, bound)."""
    return lambda random, shape: random.uniform(-bound, bound, shape)


def normal(deviation: float) -> Draw:
    """Numbers around 0."""
    return lambda random, shape: random.normal(0, deviation, shape)


@contextmanager
def _layer(x: Tensor, axes: str, kind: str, name: str | None) -> Iterator[Graph | Eager]:
    """The graph of x, in the scope of a layer. `axes` names those that x must have, "..." for any number."""
    graph = graph_of(x)
    names = axes.split()
    fits = x.ndim >= len(names) - 1 if "..." in names else x.ndim == len(names)
    if not fits:
        raise SpecError(at_line(f"layers.{kind}: {x!r} must have the axes [{', '.join(names)}]"))
    with graph.scope(name or graph.unused(kind)):
        yield graph


def dense(x: Tensor, units: int, *, bias: bool = True, name: str | None = None) -> Tensor:
    """x[..., I] @ weight[units, I].T + bias[units]."""
    with _layer(x, "... I", "dense", name) as graph:
        width = x.shape[-1]
        bound = 1 / sqrt(width)
        w = graph.parameter("weight", (units, width), x.dtype, uniform(bound))
        b = graph.parameter("bias", (units,), x.dtype, uniform(bound)) if bias else None
        return graph.apply("nn.linear", x, w, b)[0]


def _each(given: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return (given,) * axes if isinstance(given, int) else tuple(given)


def conv(
    x: Tensor,
    channels: int,
    kernel: int | tuple[int, ...],
    *,
    strides: int | tuple[int, ...] = 1,
    pads: int | tuple[int, ...] | None = None,
    dilations: int | tuple[int, ...] = 1,
    groups: int = 1,
    bias: bool = True,
    name: str | None = None,
) -> Tensor:
    """A convolution of x[N, C, spatial...], 1 to 3 spatial axes.

    What is one number holds of every axis. `pads` are, as for `nn.conv`, those before each axis and then those after
    each; unless said they are such that an odd kernel at stride 1 keeps the extent.
    """
    with _layer(x, "N C X ...", "conv", name) as graph:
        axes = x.ndim - 2
        sizes, strides, dilations = (_each(given, axes) for given in (kernel, strides, dilations))
        if pads is None:
            pads = tuple(dilation * (size - 1) // 2 for size, dilation in zip(sizes, dilations, strict=False)) * 2
        pads = _each(pads, 2 * axes)
        shape = (channels, x.shape[1] // groups, *sizes)
        bound = 1 / sqrt(prod(shape[1:]))
        w = graph.parameter("weight", shape, x.dtype, uniform(bound))
        b = graph.parameter("bias", (channels,), x.dtype, uniform(bound)) if bias else None
        attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
        return graph.apply("nn.conv", x, w, b, **attrs)[0]


def batch_norm(
    x: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.1, training: bool = True, name: str | None = None
) -> Tensor:
    """Batch normalisation over axis 1. In training the running statistics are state, updated in place."""
    with _layer(x, "N C ...", "batch_norm", name) as graph:
        channels = x.shape[1:2]
        scale = graph.parameter("scale", channels, x.dtype, 1)
        bias = graph.parameter("bias", channels, x.dtype, 0)
        mean = graph.state("mean", channels, x.dtype)
        variance = graph.state("variance", channels, x.dtype, 1)
        if not training:
            return graph.apply("nn.batch_norm_inference", x, scale, bias, mean, variance, epsilon=epsilon)[0]
        y, new_mean, new_variance, *_ = graph.apply(
            "nn.batch_norm", x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum
        )
        graph.update(mean, new_mean)
        graph.update(variance, new_variance)
        return y


def layer_norm(x: Tensor, *, epsilon: float = 1e-5, name: str | None = None) -> Tensor:
    """Layer normalisation over the last axis."""
    with _layer(x, "... D", "layer_norm", name) as graph:
        width = x.shape[-1:]
        scale = graph.parameter("scale", width, x.dtype, 1)
        bias = graph.parameter("bias", width, x.dtype, 0)
        return graph.apply("nn.layer_norm", x, scale, bias, epsilon=epsilon)[0]


def embedding(indices: Tensor, rows: int, width: int, *, dtype: str = "f32", name: str | None = None) -> Tensor:
    """Row i of weight[rows, width] for every index i."""
    with _layer(indices, "...", "embedding", name) as graph:
        w = graph.parameter("weight", (rows, width), dtype, normal(1))
        return graph.apply("nn.embedding", w, indices)[0]


def dropout(
    x: Tensor, rate: float, *, key: Tensor | None = None, training: bool = True, name: str | None = None
) -> Tensor:
    """Zeros for a share of the elements, others in each run and at each place; the rest is scaled up for them.

    `key` is the graph's own unless said. In a loop that drops the same elements in each round (Gal and Ghahramani,
    2016); with `key=g.key() + loop.counter` other ones.
    """
    with _layer(x, "...", "dropout", name) as graph:
        if not training:
            return x
        stream = crc32(graph.prefix.encode())  # one for each name, and so the same whatever else is drawn
        return graph.apply("nn.dropout", x, graph.key() if key is None else key, rate=rate, stream=stream)[0]


def self_attention(
    x: Tensor, heads: int, *, causal: bool = False, bias: bool = True, name: str | None = None
) -> Tensor:
    """Multi-head self-attention of x[B, T, D] (Vaswani et al., 2017)."""
    with _layer(x, "B T D", "self_attention", name) as graph:
        batch, length, width = x.shape
        if heads < 1 or width % heads:
            raise SpecError(at_line(f"layers.self_attention: {x!r} cannot be split into {heads} heads"))
        joint = dense(x, 3 * width, bias=bias, name="qkv").reshape(batch, length, 3, heads, width // heads)
        q, k, v = (joint[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        y, *_ = graph.apply("nn.attention", q, k, v, scale=1 / sqrt(width // heads), causal=causal)
        return dense(y.transpose(0, 2, 1, 3).reshape(batch, length, width), width, bias=bias, name="out")


def lstm(xs: Tensor, units: int, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A loop of LSTM cells over xs[T, B, I] from zero; gives all h[T, B, units], the last h and the last c."""
    with _layer(xs, "T B I", "lstm", name) as graph:
        _, batch, width = xs.shape
        bound = 1 / sqrt(units)
        w = graph.parameter("input_weight", (4 * units, width), xs.dtype, uniform(bound))
        u = graph.parameter("hidden_weight", (4 * units, units), xs.dtype, uniform(bound))
        b = graph.parameter("bias", (4 * units,), xs.dtype, uniform(bound))
        zero = graph.constant(np.zeros((batch, units)), xs.dtype)
        with graph.while_({"h": zero, "c": zero}, over={"x": xs}) as loop:
            gates = graph.apply("nn.linear", loop["x"], w, b)[0] + graph.apply("nn.linear", loop["h"], u)[0]
            h, c, *_ = graph.apply("nn.lstm_cell", gates, loop["c"])
            loop.next(h=h, c=c)
            loop.stack(hs=h)
        return loop["hs"], loop["h"], loop["c"]
