"""Normalisation layers. Scales start at 1, biases at 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from sublet.nn.modules.convolution import channels_per_group
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class BatchNorm(Module):
    """Batch normalisation of x[N, C, ...] over all axes but C (Ioffe and Szegedy, 2015).

    In training, the running statistics are states, updated in place; in evaluation, the running statistics normalise.

    epsilon    added to the variance
    momentum   weight of the batch in the running statistics
    """

    epsilon: float = 1e-5
    momentum: float = 0.1
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[N, C, ...] normalised, of the same shape. Raises SpecError for fewer than two axes."""
        graph = self.graph_of(x, "N C ...")
        channels = x.shape[1:2]
        scale = graph.parameter("scale", channels, x.dtype, 1)
        bias = graph.parameter("bias", channels, x.dtype, 0)
        mean = graph.state("mean", channels, x.dtype)
        variance = graph.state("variance", channels, x.dtype, 1)
        given = x, scale, bias, graph.after(mean), graph.after(variance)
        if not graph.training:
            return graph.apply("nn.batch_norm_inference", *given, epsilon=self.epsilon)[0]
        y, new_mean, new_variance, *_ = graph.apply(
            "nn.batch_norm", *given, epsilon=self.epsilon, momentum=self.momentum
        )
        graph.update(mean, new_mean)
        graph.update(variance, new_variance)
        return y


@dataclass(frozen=True, eq=False)
class LayerNorm(Module):
    """Layer normalisation of x[..., D] over the last `axes` axes (Ba et al., 2016).

    axes      number of normalised axes
    epsilon   added to the variance
    bias      add a bias after the scale
    """

    axes: int = 1
    epsilon: float = 1e-5
    bias: bool = True
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[..., D] normalised, of the same shape. Raises SpecError for a scalar."""
        graph = self.graph_of(x, "... D")
        extents = x.shape[x.ndim - self.axes :]
        scale = graph.parameter("scale", extents, x.dtype, 1)
        bias = graph.parameter("bias", extents, x.dtype, 0) if self.bias else None
        return graph.apply("nn.layer_norm", x, scale, bias, axes=self.axes, epsilon=self.epsilon)[0]


@dataclass(frozen=True, eq=False)
class GroupNorm(Module):
    """Group normalisation of x[N, C, ...]: the channels of each group share mean and variance (Wu and He, 2018).

    groups    number of groups; C must be divisible by `groups`, else SpecError
    epsilon   added to the variance
    """

    groups: int
    epsilon: float = 1e-5
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[N, C, ...] normalised, of the same shape. Raises SpecError for fewer than two axes."""
        graph = self.graph_of(x, "N C ...")
        channels_per_group(self.groups, x.shape[1], "GroupNorm")
        scale = graph.parameter("scale", x.shape[1:2], x.dtype, 1)
        bias = graph.parameter("bias", x.shape[1:2], x.dtype, 0)
        return graph.apply("nn.group_norm", x, scale, bias, groups=self.groups, epsilon=self.epsilon)[0]


@dataclass(frozen=True, eq=False)
class RMSNorm(Module):
    """Root mean square normalisation of x[..., D] over the last `axes` axes (Zhang and Sennrich, 2019).

    axes      number of normalised axes
    epsilon   added to the mean square
    """

    axes: int = 1
    epsilon: float = 1e-5
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[..., D] normalised, of the same shape. Raises SpecError for a scalar."""
        graph = self.graph_of(x, "... D")
        scale = graph.parameter("scale", x.shape[x.ndim - self.axes :], x.dtype, 1)
        return graph.apply("nn.rms_norm", x, scale, axes=self.axes, epsilon=self.epsilon)[0]


# Dropout.


@dataclass(frozen=True, eq=False)
class Dropout(Module):
    """Dropout: in training, a share `rate` of the elements becomes zero, and the rest is scaled up by 1 / (1 - rate).

    The choice differs by run and by position in the network. `key` is the graph's own by default; in a loop, the
    default key drops the same elements in each iteration (Gal and Ghahramani, 2016), and `key=g.key() + loop.counter`
    different elements.
    """

    rate: float
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return x with dropout in training, and x itself in evaluation."""
        graph = self.graph_of(x, "...")
        if not graph.training:
            return x
        stream = crc32(f"{graph.prefix}{graph.prior_calls or ''}".encode())  # independent of other draws in the graph
        return graph.apply("nn.dropout", x, graph.key() if key is None else key, rate=self.rate, stream=stream)[0]
