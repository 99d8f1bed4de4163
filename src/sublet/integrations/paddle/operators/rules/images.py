"""Shape rules of convolution, pooling, resampling and padding."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import SpecError
from sublet.base.tensor import format_dims
from sublet.integrations.paddle.operators.rules.call import Extent, PaddleCall, Result, Rule, common_extent


def _spatial(
    call: PaddleCall, slot: str, attribute: str = "data_format"
) -> tuple[Extent, Extent, tuple[Extent, ...], bool]:
    """Return batch, channels and spatial extents of a tensor, and True if the channels come last."""
    dims = call.dims(slot)
    if len(dims) < 3:
        raise SpecError(f"needs an image, not {format_dims(dims)}")
    last = call.text(attribute, "NCHW") in ("NHWC", "NDHWC", "NLC")
    return (dims[0], dims[-1], dims[1:-1], True) if last else (dims[0], dims[1], dims[2:], False)


def _image_dims(batch: Extent, channels: Extent, spatial: Sequence[Extent], last: bool) -> tuple[Extent, ...]:
    """Return the extents of an image in the given layout."""
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


def _per_axis(call: PaddleCall, name: str, rank: int, default: int) -> list[int]:
    """Return an attribute for each spatial axis; a single number applies to all axes."""
    numbers = call.integers(name) or (default,)
    return list(numbers if len(numbers) == rank else numbers[:1] * rank)


def _padding(call: PaddleCall, rank: int) -> list[tuple[int, int]]:
    """Return the explicit (front, back) padding of each spatial axis."""
    numbers = call.integers("paddings") or (0,)
    if len(numbers) == 2 * rank:
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    each = numbers if len(numbers) == rank else numbers[:1] * rank
    return [(number, number) for number in each]


def _count_windows(extent: Extent, window: int, stride: int, padding: tuple[int, int], call: PaddleCall) -> Extent:
    """Return the number of windows along an axis. Raises SpecError if a window is larger than the padded axis."""
    if extent is None:
        return None
    if stride < 1:
        raise SpecError(f"has the stride {stride}")
    algorithm = call.text("padding_algorithm", "EXPLICIT")
    if algorithm == "SAME":
        return -(-extent // stride)
    around = 0 if algorithm == "VALID" else sum(padding)
    space = extent + around - window + (stride - 1 if call.integer("ceil_mode", 0) else 0)
    if space < 0:
        raise SpecError(f"has windows of {window}, larger than {extent + around}")
    return space // stride + 1


def _filter_dims(call: PaddleCall, rank: int) -> tuple[tuple[Extent, ...], Extent]:
    """Return the extents of the filters, and the channels of their second axis over all groups."""
    filters = call.dims("Filter")
    if len(filters) != rank + 2:
        raise SpecError(f"has filters {format_dims(filters)} for an image of {rank} axes")
    inner = filters[1]
    return filters, None if inner is None else inner * max(call.integer("groups", 1), 1)


def _steps(call: PaddleCall, rank: int) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return strides, dilations and padding for each spatial axis."""
    return _per_axis(call, "strides", rank, 1), _per_axis(call, "dilations", rank, 1), _padding(call, rank)


def convolution(call: PaddleCall) -> Result:
    """Return the extents of a convolution."""
    batch, channels, spatial, last = _spatial(call, "Input")
    rank = len(spatial)
    filters, inner = _filter_dims(call, rank)
    common_extent(channels, inner, "channels of the image and of the filters differ")
    strides, dilations, padding = _steps(call, rank)
    out = [
        None if size is None else _count_windows(extent, dilation * (size - 1) + 1, stride, around, call)
        for extent, size, stride, dilation, around in zip(
            spatial, filters[2:], strides, dilations, padding, strict=True
        )
    ]
    return {"Output": [_image_dims(batch, filters[0], out, last)]}


def transposed_convolution(call: PaddleCall) -> Result:
    """Return the extents of a transposed convolution."""
    batch, channels, spatial, last = _spatial(call, "Input")
    rank = len(spatial)
    filters, inner = _filter_dims(call, rank)
    common_extent(channels, filters[0], "channels of the image and of the filters differ")
    output_size = call.integers("output_size")
    extra = _per_axis(call, "output_padding", rank, 0)
    strides, dilations, padding = _steps(call, rank)
    algorithm = call.text("padding_algorithm", "EXPLICIT")
    out: list[Extent] = []
    for axis, (extent, size) in enumerate(zip(spatial, filters[2:], strict=True)):
        if len(output_size) == rank:
            out.append(output_size[axis])
        elif extent is None or size is None:
            out.append(None)
        elif algorithm == "SAME":
            out.append(extent * strides[axis])
        else:
            around = 0 if algorithm == "VALID" else sum(padding[axis])
            out.append((extent - 1) * strides[axis] - around + dilations[axis] * (size - 1) + 1 + extra[axis])
    return {"Output": [_image_dims(batch, inner, out, last)]}


def pooling(call: PaddleCall) -> Result:
    """Return the extents of a pooling."""
    batch, channels, spatial, last = _spatial(call, "X")
    rank = len(spatial)
    sizes = _per_axis(call, "ksize", rank, 1)
    if call.integer("adaptive", 0):
        out: list[Extent] = list(sizes)
    elif call.integer("global_pooling", 0):
        out = [1] * rank
    else:
        strides, padding = _per_axis(call, "strides", rank, 1), _padding(call, rank)
        every = zip(spatial, sizes, strides, padding, strict=True)
        out = [_count_windows(extent, size, stride, around, call) for extent, size, stride, around in every]
    pooled = _image_dims(batch, channels, out, last)
    return {"Out": [pooled], "Mask": [pooled]}


def resampling(call: PaddleCall) -> Result:
    """Return the extents of a resampled image; the size comes from tensors, from attributes, or from a scale."""
    batch, channels, spatial, last = _spatial(call, "X", "data_layout")
    rank = len(spatial)
    target: Sequence[Extent] | None = (
        call.first_elements("SizeTensor") if call.has_input("SizeTensor") else call.values("OutSize")
    )
    unknown = (call.has_input("SizeTensor") or call.has_input("OutSize")) and target is None
    scales = call.reals("scale")
    if target is None and not unknown:
        sizes = [call.integer(name, -1) for name in ("out_d", "out_h", "out_w")[3 - rank :]] if rank <= 3 else []
        target = sizes if sizes and min(sizes) > 0 else None
    if target is None and not unknown and not call.has_input("Scale") and scales and min(scales) > 0:
        each = scales if len(scales) == rank else scales[:1] * rank
        target = [None if extent is None else int(extent * scale) for extent, scale in zip(spatial, each, strict=True)]
    out = target if target is not None and len(target) == rank else [None] * rank
    return {"Out": [_image_dims(batch, channels, out, last)]}


def pixel_shuffle(call: PaddleCall) -> Result:
    """Return the extents of `pixel_shuffle`."""
    batch, channels, (height, width), last = _spatial(call, "X")
    factor = call.integer("upscale_factor", 1)
    larger = [None if extent is None else extent * factor for extent in (height, width)]
    return {"Out": [_image_dims(batch, None if channels is None else channels // factor**2, larger, last)]}


def pad(call: PaddleCall) -> Result:
    """Return the padded extents. `pad3d` lists the last axis first, `pad` the first axis first."""
    dims = list(call.dims())
    numbers = call.integers("paddings")
    if call.type == "pad3d":
        if call.has_input("Paddings"):
            return {}
        last = call.text("data_format", "NCDHW") == "NDHWC"
        axes = [axis - last for axis in range(len(dims) - 1, 1, -1)]
    elif call.type == "pad2d":
        axes, numbers = [2, 3], numbers
    else:
        axes = list(range(len(dims)))
    for axis, pair in zip(axes, zip(numbers[::2], numbers[1::2], strict=True), strict=False):
        extent = dims[axis]
        dims[axis] = None if extent is None else extent + sum(pair)
    return {"Out": [tuple(dims)]}


INTERPOLATIONS = ("bilinear", "nearest", "bicubic", "linear", "trilinear")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "conv3d", "conv2d_fusion", "fused_conv2d"), convolution),
    **dict.fromkeys(("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose"), transposed_convolution),
    **dict.fromkeys(("pool2d", "pool3d", "max_pool2d_with_index"), pooling),
    **{f"{kind}_interp{version}": resampling for kind in INTERPOLATIONS for version in ("", "_v2")},
    **dict.fromkeys(("pad", "pad2d", "pad3d"), pad),
    "pixel_shuffle": pixel_shuffle,
}
