"""Windows that slide over spatial axes: what convolution and pooling have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ops.nn.command import pick
from sublet.ops.op import Attrs

LAYOUTS = ("nchw", "nhwc")
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """How windows lie over the spatial axes; every tuple has one number an axis.

    begins, ends   elements of padding before the first and after the last
    ceil           whether a last window may stick out beyond the padding, as PyTorch's `ceil_mode`
    """

    kernel: Extents
    strides: Extents
    begins: Extents
    ends: Extents
    dilations: Extents
    ceil: int = 0

    @property
    def spans(self) -> Extents:
        """From the first element of a window to behind its last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def symmetric(self) -> bool:
        """Whether there is as much padding before as after."""
        return self.begins == self.ends

    def counts(self, extents: Sequence[int]) -> Extents:
        """How many windows there are along each axis. Raises SpecError where there is none."""
        found = []
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
                count -= 1  # a window that would begin in the padding behind
            found.append(count)
        return tuple(found)

    def taps(self, counts: Sequence[int]) -> Iterator[tuple[Extents, tuple[slice, ...]]]:
        """Each place in the window, and where it lies in the padded input as the window moves."""
        for place in product(*map(range, self.kernel)):
            steps = zip(place, self.strides, self.dilations, counts, strict=True)
            yield place, tuple(slice(k * d, k * d + (n - 1) * s + 1, s) for k, s, d, n in steps)

    def padded(self, x: Any, counts: Sequence[int], value: float = 0) -> Any:
        """An input [N, C, *spatial] with its padding, as far as windows reach."""
        reach = self.reach(x.shape[2:], counts)
        whole = np.full((*x.shape[:2], *reach), value, x.dtype)
        whole[self.inside(x.shape[2:])] = x
        return whole

    def reach(self, extents: Sequence[int], counts: Sequence[int]) -> Extents:
        """Spatial extents of the padded input."""
        sides = zip(extents, counts, self.strides, self.spans, self.begins, self.ends, strict=True)
        return tuple(max(x + b + e, (n - 1) * s + span) for x, n, s, span, b, e in sides)

    def inside(self, extents: Sequence[int]) -> tuple[slice, ...]:
        """Where the input [N, C, *spatial] lies in the padded one."""
        spatial = (slice(b, b + x) for b, x in zip(self.begins, extents, strict=True))
        return (slice(None), slice(None), *spatial)


def windows(attrs: Attrs, kernel: Sequence[int]) -> Windows:
    """The windows that attributes describe. Raises SpecError for one that has the wrong length or range."""
    axes = len(kernel)
    if any(extent < 1 for extent in kernel):
        raise SpecError(f"the kernel {list(kernel)} must be at least 1 along each axis")
    strides, dilations = (_per_axis(attrs, key, axes, 1, 1) for key in ("strides", "dilations"))
    pads = _per_axis(attrs, "pads", 2 * axes, 0, 0)
    ceil = int(pick(attrs, "ceil")) if "ceil" in attrs else 0
    return Windows(tuple(kernel), strides, pads[:axes], pads[axes:], dilations, ceil)


def _per_axis(attrs: Attrs, key: str, length: int, default: int, least: int) -> Extents:
    given = tuple(pick(attrs, key)) if key in attrs else ()
    found = given or (default,) * length
    if len(found) != length or any(number < least for number in found):
        raise SpecError(f"{key} = {list(found)} must be {length} integers, each at least {least}")
    return found


def nhwc(attrs: Attrs) -> bool:
    """Whether channels are the last axis. Raises SpecError for a layout that is neither."""
    layout = pick(attrs, "layout")
    if layout not in LAYOUTS:
        raise SpecError(f"layout = {layout!r} must be one of {', '.join(LAYOUTS)}")
    return bool(layout == "nhwc")


def image(spec: TensorSpec, attrs: Attrs, role: str) -> tuple[int, int, Extents]:
    """Samples, channels and spatial extents. Raises SpecError unless there are 1 to 3 spatial axes."""
    last, shape = nhwc(attrs), spec.shape
    if not 3 <= len(shape) <= 5:
        axes = "[N, *spatial, C]" if last else "[N, C, *spatial]"
        raise SpecError(
            f"{role} is {spec}: in the layout {pick(attrs, 'layout')} it must be {axes}, 1 to 3 spatial axes"
        )
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def shape_of(samples: int, channels: int, spatial: Sequence[int], attrs: Attrs) -> Extents:
    """The shape in the layout of the attributes."""
    return (samples, *spatial, channels) if nhwc(attrs) else (samples, channels, *spatial)


def to_first(x: Any, layout: str) -> Any:
    """The array seen as [N, C, *spatial]."""
    return np.moveaxis(x, -1, 1) if layout == "nhwc" else x


def from_first(x: Any, layout: str) -> Any:
    """An array [N, C, *spatial] seen in a layout."""
    return np.moveaxis(x, 1, -1) if layout == "nhwc" else x
