"""Sliding windows over spatial axes, shared by convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node
from sublet.ops.nn.command import pick
from sublet.ops.op import Attrs
from sublet.ops.slice_maps import SliceAttrs, SliceMaps, Window, shape_of, slice_map

LAYOUTS = ("nchw", "nhwc")
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """The geometry of sliding windows; every tuple has a number for each spatial axis.

    begins, ends   elements of padding before the first and after the last element
    ceil           1 if a last window may extend beyond the padding, as with PyTorch's `ceil_mode`
    """

    kernel: Extents
    strides: Extents
    begins: Extents
    ends: Extents
    dilations: Extents
    ceil: int = 0

    @property
    def spans(self) -> Extents:
        """The extents of a window, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_symmetric(self) -> bool:
        """True if padding before and after is equal along every axis."""
        return self.begins == self.ends

    def count_windows(self, extents: Sequence[int]) -> Extents:
        """Return the number of windows along each axis. Raises SpecError if no window fits."""
        counts = []
        for axis, (extent, span) in enumerate(zip(extents, self.spans, strict=True)):
            begin, stride = self.begins[axis], self.strides[axis]
            room = extent + begin + self.ends[axis] - span
            if room < 0:
                raise SpecError(
                    f"the window is {span} wide along spatial axis {axis}, but there are only {room + span} elements, "
                    f"{extent} and padding"
                )
            count = (-(-room // stride) if self.ceil else room // stride) + 1
            if self.ceil and (count - 1) * stride >= extent + begin:
                count -= 1  # a last window starting in the padding at the end
            counts.append(count)
        return tuple(counts)

    def taps(self, counts: Sequence[int]) -> Iterator[tuple[Extents, tuple[slice, ...]]]:
        """Yield each position in the window, with the slices of the padded input at the position for all windows."""
        for place in product(*map(range, self.kernel)):
            steps = zip(place, self.strides, self.dilations, counts, strict=True)
            yield place, tuple(slice(k * d, k * d + (n - 1) * s + 1, s) for k, s, d, n in steps)

    def pad_input(self, x: Any, counts: Sequence[int], value: float = 0) -> Any:
        """Return an input [N, C, *spatial] with padding, as far as windows reach."""
        reach = self.padded_extents(x.shape[2:], counts)
        padded = np.full((*x.shape[:2], *reach), value, x.dtype)
        padded[self.input_region(x.shape[2:])] = x
        return padded

    def padded_extents(self, extents: Sequence[int], counts: Sequence[int]) -> Extents:
        """Return the spatial extents of the padded input."""
        sides = zip(extents, counts, self.strides, self.spans, self.begins, self.ends, strict=True)
        return tuple(max(x + b + e, (n - 1) * s + span) for x, n, s, span, b, e in sides)

    def input_region(self, extents: Sequence[int]) -> tuple[slice, ...]:
        """Return the slices of the input [N, C, *spatial] in the padded input."""
        spatial = (slice(b, b + x) for b, x in zip(self.begins, extents, strict=True))
        return (slice(None), slice(None), *spatial)


def windows_from_attrs(attrs: Attrs, kernel: Sequence[int]) -> Windows:
    """Return the windows described by attributes. Raises SpecError for an attribute of wrong length or range."""
    axes = len(kernel)
    if any(extent < 1 for extent in kernel):
        raise SpecError(f"the kernel {list(kernel)} must be at least 1 along each axis")
    strides, dilations = (_per_axis(attrs, key, axes, 1, 1) for key in ("strides", "dilations"))
    pads = _per_axis(attrs, "pads", 2 * axes, 0, 0)
    ceil = int(pick(attrs, "ceil")) if "ceil" in attrs else 0
    return Windows(tuple(kernel), strides, pads[:axes], pads[axes:], dilations, ceil)


def _per_axis(attrs: Attrs, key: str, length: int, default: int, smallest: int) -> Extents:
    given = tuple(pick(attrs, key)) if key in attrs else ()
    numbers = given or (default,) * length
    if len(numbers) != length or any(number < smallest for number in numbers):
        raise SpecError(f"{key} = {list(numbers)} must be {length} integers, each at least {smallest}")
    return numbers


def window_axes(node: Node, over: Windows | None, first: int) -> SliceMaps:
    """Return the slice maps along the spatial axes, from axis `first` on: input 0 under the windows, all others whole.

    None without windows, and with `ceil`: a last window may extend beyond the padding.
    """
    rank = len(over.kernel) if over is not None else 0
    x, y = (shape_of(value)[first : first + rank] for value in (node.inputs[0], node.outputs[0]))
    maps: SliceMaps = ()
    if over is None or over.ceil or over.count_windows(x) != y:
        return maps
    for i, axis in enumerate(range(first, first + rank)):
        window = Window(over.strides[i], over.begins[i], over.spans[i], x[i])
        inputs = [axis, *[None] * (len(node.inputs) - 1)]
        maps += slice_map(node, inputs, [axis], attrs=_pad_at_borders(window, i, rank), window=window)
    return maps


def _pad_at_borders(window: Window, axis: int, rank: int) -> SliceAttrs:
    """Return the change of the attributes for a slice: the slice has padding only at the borders of the whole."""

    def changed(attrs: Attrs, begin: int, end: int) -> dict[str, Attr]:
        given: Any = attrs.get("pads") if attrs.get("auto_pad") != "VALID" else ()
        pads = [*(given or (0,) * (2 * rank))]
        pads[axis], pads[axis + rank] = window.padding(begin, end)
        return {**{key: value for key, value in attrs.items() if key != "auto_pad"}, "pads": tuple(pads)}

    return changed


def is_channels_last(attrs: Attrs) -> bool:
    """True if channels are the last axis. Raises SpecError for an unknown layout."""
    layout = pick(attrs, "layout")
    if layout not in LAYOUTS:
        raise SpecError(f"layout = {layout!r} must be one of {', '.join(LAYOUTS)}")
    return bool(layout == "nhwc")


def image_dims(spec: TensorSpec, attrs: Attrs, role: str) -> tuple[int, int, Extents]:
    """Return samples, channels and spatial extents. Raises SpecError unless the tensor has 1 to 3 spatial axes."""
    last, shape = is_channels_last(attrs), spec.shape
    if not 3 <= len(shape) <= 5:
        axes = "[N, *spatial, C]" if last else "[N, C, *spatial]"
        raise SpecError(
            f"{role} is {spec}: in the layout {pick(attrs, 'layout')} it must be {axes}, 1 to 3 spatial axes"
        )
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def image_shape(samples: int, channels: int, spatial: Sequence[int], attrs: Attrs) -> Extents:
    """Return the shape in the layout of the attributes."""
    return (samples, *spatial, channels) if is_channels_last(attrs) else (samples, channels, *spatial)


def to_channels_first(x: Any, layout: str) -> Any:
    """Return the array viewed as [N, C, *spatial]."""
    return np.moveaxis(x, -1, 1) if layout == "nhwc" else x


def from_channels_first(x: Any, layout: str) -> Any:
    """Return an array [N, C, *spatial] viewed in `layout`."""
    return np.moveaxis(x, 1, -1) if layout == "nhwc" else x
