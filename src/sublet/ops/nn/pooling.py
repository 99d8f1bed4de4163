"""Max and average pooling.

The gradient of max pooling is linear in dy, given the positions of the maxima of x. The gradient of the gradient
gathers elements at the maxima. Both recompute the maxima from x: no indices are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGERS, Command, Compute, Required, pick, same_bytes, spec_of
from sublet.ops.nn.rules import (
    FLOATS,
    elementwise_gradient,
    only_gradient,
    operand,
    require_equal,
    require_same_type,
    require_shape,
    require_type,
    result,
    term_by_op,
)
from sublet.ops.nn.windows import (
    Extents,
    Windows,
    from_channels_first,
    image_dims,
    image_shape,
    is_channels_last,
    to_channels_first,
    window_axes,
    windows_from_attrs,
)
from sublet.ops.op import Attrs, Emit, Grads, Share, Specs
from sublet.ops.slice_maps import SliceMaps, leading_axis, resize, same_axes, shape_of

MAX_ATTRS: dict[str, Attr | Required] = {
    "kernel": REQUIRED_INTEGERS,
    "strides": (),
    "pads": (),
    "dilations": (),
    "ceil": False,
    "layout": "nchw",
}
AVERAGE_ATTRS: dict[str, Attr | Required] = {
    "kernel": REQUIRED_INTEGERS,
    "strides": (),
    "pads": (),
    "count_include_pad": False,
    "ceil": False,
    "layout": "nchw",
}


def pool_windows(attrs: Attrs) -> Windows:
    """Return the windows of a pooling; without strides, windows lie side by side. Raises SpecError."""
    kernel = pick(attrs, "kernel")
    return windows_from_attrs({**attrs, "strides": tuple(pick(attrs, "strides")) or kernel}, kernel)


def _pooled_spec(x: TensorSpec, attrs: Attrs, role: str = "x") -> TensorSpec:
    samples, channels, spatial = image_dims(x, attrs, role)
    over = pool_windows(attrs)
    if len(pick(attrs, "kernel")) != len(spatial):
        raise SpecError(f"kernel = {list(pick(attrs, 'kernel'))}, but {role} is {x} with {len(spatial)} spatial axes")
    if any(max(sides) >= span for *sides, span in zip(over.begins, over.ends, over.spans, strict=True)):
        raise SpecError(f"pads = {[*over.begins, *over.ends]} must be less than the window, {list(over.spans)}")
    return TensorSpec(x.dtype, image_shape(samples, channels, over.count_windows(spatial), attrs))


def _pool_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_pooled_spec(require_type(specs[0], FLOATS, "x"), attrs),)


def _max_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    require_same_type(specs, FLOATS)
    dy, x = (require_type(spec, FLOATS, role) for spec, role in zip(specs, ("dy", "x"), strict=True))
    require_equal(dy, _pooled_spec(x, attrs), "dy and the pooled x")
    return (x,)


def _gather_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    ddx, x = (require_type(spec, FLOATS, role) for spec, role in zip(specs, ("ddx", "x"), strict=True))
    require_equal(ddx, x, "ddx and x")
    return (_pooled_spec(x, attrs),)


def _average_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dy = require_type(specs[0], FLOATS, "dy")
    x = TensorSpec(dy.dtype, require_shape(pick(attrs, "shape")))
    require_equal(dy, _pooled_spec(x, attrs, "shape"), "dy and the pooled shape")
    return (x,)


def _window_elements(x: Any, over: Windows, outside: float) -> Any:
    """Return [N, C, *spatial] as [N, C, *counts, places]: the elements of each window, `outside` for padding."""
    counts = over.count_windows(x.shape[2:])
    padded = over.pad_input(x, counts, outside)
    return np.stack([padded[:, :, *where] for _, where in over.taps(counts)], -1)


def _max_pool(x: Any, layout: str, **attrs: Any) -> Any:
    return from_channels_first(
        _window_elements(to_channels_first(x, layout), pool_windows(attrs), -np.inf).max(-1), layout
    )


def _argmax_places(x: Any, over: Windows) -> Any:
    """Return the position of the first maximum in each window."""
    return _window_elements(x, over, -np.inf).argmax(-1)


def _max_pool_gradient(dy: Any, x: Any, layout: str, **attrs: Any) -> Any:
    over, dy, x = pool_windows(attrs), to_channels_first(dy, layout), to_channels_first(x, layout)
    maxima, counts = _argmax_places(x, over), dy.shape[2:]
    padded = np.zeros((*x.shape[:2], *over.padded_extents(x.shape[2:], counts)), dy.dtype)
    for i, (_, where) in enumerate(over.taps(counts)):
        padded[:, :, *where] += np.where(maxima == i, dy, 0)
    return from_channels_first(padded[over.input_region(x.shape[2:])], layout)


def _max_pool_gather(ddx: Any, x: Any, layout: str, **attrs: Any) -> Any:
    over = pool_windows(attrs)
    maxima = _argmax_places(to_channels_first(x, layout), over)
    elements = _window_elements(to_channels_first(ddx, layout), over, 0)
    return from_channels_first(np.take_along_axis(elements, maxima[..., None], -1)[..., 0], layout)


def _divisors(spatial: Sequence[int], over: Windows, count_include_pad: int, dtype: Any) -> Any:
    """Return the number of elements averaged by each window; elements beyond the padding never count."""
    counts = over.count_windows(spatial)
    counted = np.zeros((1, 1, *over.padded_extents(spatial, counts)), dtype)
    if count_include_pad:
        counted[:, :, *(slice(b + x + e) for b, x, e in zip(over.begins, spatial, over.ends, strict=True))] = 1
    else:
        counted[over.input_region(spatial)] = 1
    return np.maximum(sum(counted[:, :, *where] for _, where in over.taps(counts)), 1)


def _avg_pool(x: Any, layout: str, count_include_pad: int, **attrs: Any) -> Any:
    over, x = pool_windows(attrs), to_channels_first(x, layout)
    total = _window_elements(x, over, 0).sum(-1)
    return from_channels_first(total / _divisors(x.shape[2:], over, count_include_pad, x.dtype), layout)


def _avg_pool_gradient(dy: Any, layout: str, count_include_pad: int, shape: Extents, **attrs: Any) -> Any:
    over, dy = pool_windows(attrs), to_channels_first(dy, layout)
    spatial, counts = shape[1:-1] if layout == "nhwc" else shape[2:], dy.shape[2:]
    each = dy / _divisors(spatial, over, count_include_pad, dy.dtype)
    padded = np.zeros((*dy.shape[:2], *over.padded_extents(spatial, counts)), dy.dtype)
    for _, where in over.taps(counts):
        padded[:, :, *where] += each
    return from_channels_first(padded[over.input_region(spatial)], layout)


def _average_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    shape = spec_of(operand(node, 0)).shape
    return [emit("nn.avg_pool_gradient", only_gradient(grads), shape=shape, **node.attrs)]


def _average_gradient_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    attrs = {key: value for key, value in node.attrs.items() if key != "shape"}
    return [emit("nn.avg_pool", only_gradient(grads), **attrs)]


def _pool_slices(node: Node) -> SliceMaps:
    last = is_channels_last(node.attrs)
    maps = same_axes(node, (0, len(shape_of(node.inputs[0])) - 1 if last else 1))
    return maps + window_axes(node, pool_windows(node.attrs), 1 if last else 2)


POOLING_COMMANDS: tuple[Command, ...] = (
    Command(
        "max_pool",
        "The maximum of each window over 1 to 3 spatial axes. Without strides, windows are adjacent.",
        _pool_infer,
        _max_pool,
        elementwise_gradient(term_by_op("nn.max_pool_gradient", 0)),
        MAX_ATTRS,
        slices=_pool_slices,
    ),
    Command(
        "max_pool_gradient",
        "The gradient of nn.max_pool: (dy, x) -> dx. It recomputes the maxima; the first of equal maxima counts.",
        _max_gradient_infer,
        _max_pool_gradient,
        # The positions of the maxima are constant in x almost everywhere: no gradient by x.
        elementwise_gradient(term_by_op("nn.max_pool_gather", 1), None),
        MAX_ATTRS,
        inputs=(2, 2),
        slices=leading_axis(),
    ),
    Command(
        "max_pool_gather",
        "The elements of a tensor like x at the positions of the maxima of x: the gradient of nn.max_pool_gradient.",
        _gather_infer,
        _max_pool_gather,
        elementwise_gradient(term_by_op("nn.max_pool_gradient", 1), None),
        MAX_ATTRS,
        inputs=(2, 2),
        slices=leading_axis(),
    ),
    Command(
        "avg_pool",
        "The mean of each window over 1 to 3 spatial axes, including the padding if count_include_pad is 1.",
        _pool_infer,
        _avg_pool,
        _average_rule,
        AVERAGE_ATTRS,
        slices=_pool_slices,
    ),
    Command(
        "avg_pool_gradient",
        "The gradient of nn.avg_pool, of an x of the shape `shape`: dy -> dx.",
        _average_gradient_infer,
        _avg_pool_gradient,
        _average_gradient_rule,
        {**AVERAGE_ATTRS, "shape": REQUIRED_INTEGERS},
        slices=leading_axis(attrs=resize("shape")),
    ),
)


# Upsampling of images: a sparse matrix along each axis, so the gradient is the transposed matrix.

MODES = ("nearest", "bilinear")


def nearest_sources(source: int, extent: int) -> NDArray[np.int64]:
    """Return for each of `extent` elements the index of the element to copy, among `source` elements."""
    return np.arange(extent) * source // max(1, extent)


def interpolation_matrix(source: int, extent: int, mode: str, align_corners: int) -> NDArray[np.float64]:
    """Return W[extent, source]: element i of the result is the sum over k of W[i, k] x[k].

    Positions are as in PyTorch: the centres of the first and last elements coincide if `align_corners`, else
    the outer edges do.
    """
    matrix = np.zeros((extent, source))
    rows = np.arange(extent)
    if mode == "nearest":
        matrix[rows, nearest_sources(source, extent)] = 1
        return matrix
    if align_corners:
        at = rows * ((source - 1) / (extent - 1) if extent > 1 else 0.0)
    else:
        at = np.maximum((rows + 0.5) * (source / extent) - 0.5, 0)
    below = np.minimum(at.astype(int), source - 1)
    share = np.clip(at - below, 0, 1)
    np.add.at(matrix, (rows, below), 1 - share)
    np.add.at(matrix, (rows, np.minimum(below + 1, source - 1)), share)
    return matrix


def _infer_resized(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, size, mode = require_type(specs[0], FLOATS), pick(attrs, "size"), pick(attrs, "mode")
    if len(x.shape) != 4:
        raise SpecError(f"the input is {x}, expected the axes [N, C, H, W]")
    if len(size) != 2 or min(size) < 1:
        raise SpecError(f"size = {list(size)} must be (height, width), both at least 1")
    if mode not in MODES:
        raise SpecError(f"mode = {mode!r} must be one of {', '.join(MODES)}")
    if 0 in x.shape[2:]:
        raise SpecError(f"the input is {x}: height and width must be at least 1")
    return (TensorSpec(x.dtype, (*x.shape[:2], *size)),)


def _upsample(x: Any, size: tuple[int, int], mode: str, align_corners: int) -> Any:
    down, across = (interpolation_matrix(n, m, mode, align_corners) for n, m in zip(x.shape[2:], size, strict=True))
    return (down @ x @ across.T).astype(x.dtype)


def _upsample_gradient(dy: Any, size: tuple[int, int], mode: str, align_corners: int) -> Any:
    down, across = (interpolation_matrix(n, m, mode, align_corners) for n, m in zip(size, dy.shape[2:], strict=True))
    return (down.T @ dy @ across).astype(dy.dtype)


def _views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if spec_of(operand(node, 0)) == spec_of(result(node)) else ()


def _resampling(name: str, text: str, compute: Compute, other: str) -> Command:
    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        attrs = {name: pick(node.attrs, name) for name in ("mode", "align_corners")}
        return [emit(other, only_gradient(grads), size=spec_of(operand(node, 0)).shape[2:], **attrs)]

    attrs: dict[str, Attr | Required] = {"size": REQUIRED_INTEGERS, "mode": "nearest", "align_corners": False}
    return Command(name, text, _infer_resized, compute, gradient, attrs, views=_views, slices=leading_axis())


COMMANDS = (
    *POOLING_COMMANDS,
    _resampling(
        "upsample",
        "Images [N, C, H, W] of another size, nearest or bilinear; positions as in PyTorch.",
        _upsample,
        "nn.upsample_gradient",
    ),
    _resampling(
        "upsample_gradient",
        "The gradient of nn.upsample, of images of the size `size`: dy -> dx.",
        _upsample_gradient,
        "nn.upsample",
    ),
)
