"""Common layers: a few commands with parameters of their own, named by the scope they are written in.

Weights start as PyTorch's layers do unless said otherwise below: uniform in +-1/sqrt(fan in). They are drawn when
the graph is compiled, from a generator seeded by the name of the parameter, so that two runs start alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sublet.builder.graph import Graph, graph_of
from sublet.builder.tensor import Tensor
from sublet.runtime.dtypes import NUMPY
from sublet.tensor import TensorSpec

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]


@dataclass(frozen=True)
class Drawn:
    """Initial content drawn when it is asked for."""

    name: str
    spec: TensorSpec
    draw: Draw

    def array(self) -> NDArray[Any]:
        random = np.random.default_rng(crc32(self.name.encode()))
        return np.array(self.draw(random, self.spec.shape), NUMPY[self.spec.dtype], order="C")


def uniform(bound: float) -> Draw:
    """Numbers in [-bound, bound)."""
    return lambda random, shape: random.uniform(-bound, bound, shape)


def normal(deviation: float) -> Draw:
    """Numbers around 0."""
    return lambda random, shape: random.normal(0, deviation, shape)


def same(number: float) -> Draw:
    """One number everywhere."""
    return lambda random, shape: np.full(shape, number)


def weight(graph: Graph, name: str, shape: Sequence[int], like: Tensor, draw: Draw) -> Tensor:
    """A trainable parameter of the type of `like`, drawn when the graph is compiled."""
    made = graph.parameter(name, shape, like.dtype)
    spec = TensorSpec(like.dtype, tuple(shape))
    graph.fill(made, Drawn(made.name, spec, draw))
    return made


def dense(x: Tensor, units: int, *, bias: bool = True, name: str = "dense") -> Tensor:
    """x[..., I] @ weight[units, I].T + bias[units]."""
    graph, width = graph_of(x), x.shape[-1]
    with graph.scope(name):
        bound = 1 / sqrt(width)
        w = weight(graph, "weight", (units, width), x, uniform(bound))
        b = weight(graph, "bias", (units,), x, uniform(bound)) if bias else None
        return graph.apply("nn.linear", x, w, b)[0]


def conv(
    x: Tensor,
    channels: int,
    kernel: int | tuple[int, ...],
    *,
    stride: int | tuple[int, ...] = 1,
    pad: int | tuple[int, ...] | None = None,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    name: str = "conv",
) -> Tensor:
    """A convolution of x[N, C, spatial...]. `pad`, on both sides of each axis, keeps the extent unless said."""
    graph, axes = graph_of(x), x.ndim - 2
    sizes = (kernel,) * axes if isinstance(kernel, int) else kernel
    strides = (stride,) * axes if isinstance(stride, int) else stride
    padded = tuple(dilation * (size - 1) // 2 for size in sizes) if pad is None else pad
    pads = (padded,) * axes if isinstance(padded, int) else padded
    with graph.scope(name):
        shape = (channels, x.shape[1] // groups, *sizes)
        bound = 1 / sqrt(prod(shape[1:]))
        w = weight(graph, "weight", shape, x, uniform(bound))
        b = weight(graph, "bias", (channels,), x, uniform(bound)) if bias else None
        attrs = {"strides": strides, "pads": (*pads, *pads), "dilations": (dilation,) * axes, "groups": groups}
        return graph.apply("nn.conv", x, w, b, **attrs)[0]


def batch_norm(
    x: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.1, training: bool = True, name: str = "norm"
) -> Tensor:
    """Batch normalisation over axis 1. In training the running statistics are state, updated in place."""
    graph, channels = graph_of(x), x.shape[1:2]
    with graph.scope(name):
        scale = weight(graph, "scale", channels, x, same(1))
        bias = weight(graph, "bias", channels, x, same(0))
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


def layer_norm(x: Tensor, *, epsilon: float = 1e-5, name: str = "norm") -> Tensor:
    """Layer normalisation over the last axis."""
    graph, width = graph_of(x), x.shape[-1:]
    with graph.scope(name):
        scale = weight(graph, "scale", width, x, same(1))
        bias = weight(graph, "bias", width, x, same(0))
        return graph.apply("nn.layer_norm", x, scale, bias, epsilon=epsilon)[0]


def embedding(indices: Tensor, rows: int, width: int, *, dtype: str = "f32", name: str = "embedding") -> Tensor:
    """Row i of weight[rows, width] for every index i."""
    graph = graph_of(indices)
    with graph.scope(name):
        w = graph.parameter("weight", (rows, width), dtype)
        graph.fill(w, Drawn(w.name, TensorSpec(w.dtype, w.shape), normal(1)))
        return graph.apply("nn.embedding", w, indices)[0]


def self_attention(
    x: Tensor, heads: int, *, causal: bool = False, bias: bool = True, name: str = "attention"
) -> Tensor:
    """Multi-head self-attention of x[B, T, D] (Vaswani et al., 2017)."""
    graph, (batch, length, width) = graph_of(x), x.shape
    with graph.scope(name):
        joint = dense(x, 3 * width, bias=bias, name="qkv").reshape(batch, length, 3, heads, width // heads)
        q, k, v = (joint[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        y, *_ = graph.apply("nn.attention", q, k, v, scale=1 / sqrt(width // heads), causal=causal)
        return dense(y.transpose(0, 2, 1, 3).reshape(batch, length, width), width, bias=bias, name="out")


def lstm(xs: Tensor, units: int, *, name: str = "lstm") -> tuple[Tensor, Tensor, Tensor]:
    """A loop of LSTM cells over xs[T, B, I] from zero; gives all h[T, B, units], the last h and the last c."""
    graph, (_, batch, width) = graph_of(xs), xs.shape
    with graph.scope(name):
        bound = 1 / sqrt(units)
        w = weight(graph, "input_weight", (4 * units, width), xs, uniform(bound))
        u = weight(graph, "hidden_weight", (4 * units, units), xs, uniform(bound))
        b = weight(graph, "bias", (4 * units,), xs, uniform(bound))
        zero = graph.constant(np.zeros((batch, units)), xs.dtype)
        with graph.while_({"h": zero, "c": zero}, over={"x": xs}) as loop:
            gates = graph.apply("nn.linear", loop["x"], w, b)[0] + graph.apply("nn.linear", loop["h"], u)[0]
            h, c, *_ = graph.apply("nn.lstm_cell", gates, loop["c"])
            loop.next(h=h, c=c)
            loop.stack(hs=h)
        return loop["hs"], loop["h"], loop["c"]
