"""Convolutions, pooling and flattening over x[N, C, spatial...]. A single number holds for all spatial axes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from sublet.base.errors import SpecError
from sublet.nn.modules.module import Module, uniform_by_fan_in
from sublet.nn.source_location import Draw, at_line
from sublet.nn.tensor import Tensor

Extents = int | tuple[int, ...]
"""One number for all axes, or one number an axis."""


def per_axis(given: Extents, axes: int) -> tuple[int, ...]:
    """Return a number for each axis."""
    return (given,) * axes if isinstance(given, int) else tuple(given)


def pads_per_side(given: Extents, axes: int) -> tuple[int, ...]:
    """Return the padding before each axis, then after each axis; given as a number, a number an axis, or in full."""
    pads = per_axis(given, 2 * axes)
    return pads * 2 if len(pads) == axes else pads


def channels_per_group(groups: int, channels: int, what: str) -> int:
    """Return the channels in a group. Raises SpecError if `groups` does not divide the channels."""
    if groups < 1 or channels % groups:
        raise SpecError(at_line(f"{what}: {channels} channels cannot be split into {groups} groups"))
    return channels // groups


@dataclass(frozen=True, eq=False)
class Conv(Module):
    """A convolution of x[N, C, spatial...] with weight[channels, C / groups, kernel...], for 1 to 3 spatial axes.

    channels    output channels
    kernel, strides, dilations   one number, or one for each spatial axis
    pads        one number, one an axis, or the padding before each axis followed by the padding after each axis; by
                default, an odd kernel at stride 1 keeps the extents
    groups      number of groups; C and `channels` must be divisible by `groups`, else SpecError
    bias        add a bias to each channel
    initial     function drawing the initial weight; uniform in +-1/sqrt(fan in) by default
    name        name of the scope
    """

    channels: int
    kernel: Extents
    strides: Extents = 1
    pads: Extents | None = None
    dilations: Extents = 1
    groups: int = 1
    bias: bool = True
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x, of shape [N, channels, spatial...]. Raises SpecError for other axes."""
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        kernel, dilations = per_axis(self.kernel, axes), per_axis(self.dilations, axes)
        same = tuple(step * (size - 1) // 2 for size, step in zip(kernel, dilations, strict=False)) * 2
        shape = (self.channels, channels_per_group(self.groups, x.shape[1], "Conv"), *kernel)
        draw = uniform_by_fan_in(shape[1:])
        w = graph.parameter("weight", shape, x.dtype, self.initial or draw)
        b = graph.parameter("bias", (self.channels,), x.dtype, draw) if self.bias else None
        attrs: dict[str, Any] = {
            "strides": per_axis(self.strides, axes),
            "pads": same if self.pads is None else pads_per_side(self.pads, axes),
            "dilations": dilations,
            "groups": self.groups,
        }
        return graph.apply("nn.conv", x, w, b, **attrs)[0]


@dataclass(frozen=True, eq=False)
class ConvTranspose(Module):
    """A transposed convolution of x[N, C, spatial...] with weight[C, channels / groups, kernel...].

    An output extent is (extent - 1) * stride + dilation * (kernel - 1) + 1 + output_pads, minus the padding. Fields are
    as for `Conv`; the default padding is 0.
    """

    channels: int
    kernel: Extents
    strides: Extents = 1
    pads: Extents = 0
    output_pads: Extents = 0
    dilations: Extents = 1
    groups: int = 1
    bias: bool = True
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed convolution, of shape [N, channels, spatial...]. Raises SpecError for other axes."""
        graph, axes = self.graph_of(x, "N C X ..."), x.ndim - 2
        kernel = per_axis(self.kernel, axes)
        shape = (x.shape[1], channels_per_group(self.groups, self.channels, "ConvTranspose"), *kernel)
        draw = uniform_by_fan_in((prod(shape[1:]),))
        w = graph.parameter("weight", shape, x.dtype, self.initial or draw)
        b = graph.parameter("bias", (self.channels,), x.dtype, draw) if self.bias else None
        attrs: dict[str, Any] = {
            "strides": per_axis(self.strides, axes),
            "pads": pads_per_side(self.pads, axes),
            "dilations": per_axis(self.dilations, axes),
            "groups": self.groups,
            "output_pads": per_axis(self.output_pads, axes),
        }
        return graph.apply("nn.conv_transpose", x, w, b, **attrs)[0]


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
