"""Pooling over x[N, C, spatial...], and what turns an image into a row."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.nn.modules.convolution import Extents, each, padded
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class MaxPool(Module):
    """The greatest element of each window; windows lie side by side unless `strides` says otherwise."""

    kernel: Extents
    strides: Extents | None = None
    pads: Extents = 0
    ceil: bool = False
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        steps = each(self.kernel if self.strides is None else self.strides, axes)
        windows = {"kernel": each(self.kernel, axes), "strides": steps, "pads": padded(self.pads, axes)}
        return graph.apply("nn.max_pool", x, **windows, ceil=self.ceil)[0]


@dataclass(frozen=True, eq=False)
class AvgPool(Module):
    """The mean of each window; windows lie side by side unless `strides` says otherwise."""

    kernel: Extents
    strides: Extents | None = None
    pads: Extents = 0
    ceil: bool = False
    count_include_pad: bool = False
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        steps = each(self.kernel if self.strides is None else self.strides, axes)
        windows = {"kernel": each(self.kernel, axes), "strides": steps, "pads": padded(self.pads, axes)}
        return graph.apply("nn.avg_pool", x, **windows, ceil=self.ceil, count_include_pad=self.count_include_pad)[0]


@dataclass(frozen=True, eq=False)
class GlobalAvgPool(Module):
    """The mean of each channel: x[N, C, spatial...] -> [N, C]."""

    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        self.graph_of(x, "N C X ...")
        return x.mean(*range(2, x.ndim))


@dataclass(frozen=True, eq=False)
class Flatten(Module):
    """All axes but the first as one: x[N, ...] -> [N, rest]."""

    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        self.graph_of(x, "N ...")
        return x.reshape(x.shape[0], -1)
