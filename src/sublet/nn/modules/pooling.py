"""Pooling over x[N, C, spatial...], and flattening."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.nn.modules.convolution import Extents, pads_per_side, per_axis
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class MaxPool(Module):
    """The maximum of each window of x[N, C, spatial...].

    kernel    extents of a window: one number, or one for each spatial axis
    strides   distance between windows; the kernel by default, for adjacent windows
    pads      padding: one number, one an axis, or the padding before each axis followed by the padding after each axis
    ceil      round the number of windows up instead of down
    name      name of the scope
    """

    kernel: Extents
    strides: Extents | None = None
    pads: Extents = 0
    ceil: bool = False
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima, of shape [N, C, spatial...]. Raises SpecError for fewer than three axes."""
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        steps = per_axis(self.kernel if self.strides is None else self.strides, axes)
        windows = {"kernel": per_axis(self.kernel, axes), "strides": steps, "pads": pads_per_side(self.pads, axes)}
        return graph.apply("nn.max_pool", x, **windows, ceil=self.ceil)[0]


@dataclass(frozen=True, eq=False)
class AvgPool(Module):
    """The mean of each window of x[N, C, spatial...]; fields as for `MaxPool`.

    count_include_pad   count padding as zeros in the mean
    """

    kernel: Extents
    strides: Extents | None = None
    pads: Extents = 0
    ceil: bool = False
    count_include_pad: bool = False
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the means, of shape [N, C, spatial...]. Raises SpecError for fewer than three axes."""
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        steps = per_axis(self.kernel if self.strides is None else self.strides, axes)
        windows = {"kernel": per_axis(self.kernel, axes), "strides": steps, "pads": pads_per_side(self.pads, axes)}
        return graph.apply("nn.avg_pool", x, **windows, ceil=self.ceil, count_include_pad=self.count_include_pad)[0]


@dataclass(frozen=True, eq=False)
class GlobalAvgPool(Module):
    """The mean of each channel: x[N, C, spatial...] -> [N, C]."""

    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the means, of shape [N, C]. Raises SpecError for fewer than three axes."""
        self.graph_of(x, "N C X ...")
        return x.mean(*range(2, x.ndim))


@dataclass(frozen=True, eq=False)
class Flatten(Module):
    """All axes but the first as one axis: x[N, ...] -> [N, size of the rest]."""

    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x[N, ...] as a matrix of N rows. Raises SpecError for a scalar."""
        self.graph_of(x, "N ...")
        return x.reshape(x.shape[0], -1)
