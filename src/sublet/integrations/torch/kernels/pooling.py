"""Max and average pooling. The kernels with indices of maxima process a few samples at a time, in scratch memory.

For channels-first images, max pooling without indices is separable: the maxima along an axis, then the maxima
of the maxima along the second axis. Each step compares all windows in a few calls and takes a quarter of the time of
ATen's kernel, because ATen also computes the indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from sublet.base.tensor import DType
from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.pooling import nearest_sources, pool_windows
from sublet.ops.nn.rules import operand, result
from sublet.ops.nn.windows import image_dims, is_channels_last
from sublet.runtime.kernel import Call

SLICE_BYTES = 4 << 20
"""Minimum bytes of the input in a slice of the batch."""

IMAGE_BYTES = 1 << 20
"""Bytes of the images compared along both axes before the next images, small enough to stay in the cache."""

INDEX_BYTES = 8
"""Bytes of the index of a maximum."""


def _supports(node: Node) -> bool:
    """True if ATen supports the padding: equal on both sides, and at most half a window."""
    over = pool_windows(node.attrs)
    return over.is_symmetric and all(2 * pad <= k for pad, k in zip(over.begins, over.kernel, strict=True))


def _supports_max(node: Node) -> bool:
    """True if ATen supports the max pooling.

    A dilated window may step over a narrow input and see only padding; ATen then returns the first padding element.
    """
    *_, spatial = image_dims(spec_of(operand(node, len(node.inputs) - 1)), node.attrs, "x")
    steps = pool_windows(node.attrs).dilations
    return _supports(node) and all(step <= extent for step, extent in zip(steps, spatial, strict=True))


def _supports_average(node: Node) -> bool:
    """True if ATen supports the average pooling: `avg_pool3d` ignores an output's layout and lacks 16-bit floats."""
    cubes, dtype = len(pick(node.attrs, "kernel")) == 3, spec_of(result(node)).dtype
    return _supports(node) and not (cubes and (is_channels_last(node.attrs) or dtype not in (DType.F32, DType.F64)))


def _channels_first(node: Node, x: Tensor) -> Tensor:
    """Return the tensor as [N, C, *spatial] with at least two spatial axes, as required by functions with `out`."""
    seen = x.movedim(-1, 1) if is_channels_last(node.attrs) else x
    return seen.unsqueeze(2) if seen.ndim == 3 else seen


class _PoolArguments:
    """The attributes of a pooling node as ATen arguments."""

    def __init__(self, node: Node) -> None:
        over = pool_windows(node.attrs)
        flat = len(over.kernel) == 1
        self.kernel, self.strides, self.dilations = (
            [1, *numbers] if flat else [*numbers] for numbers in (over.kernel, over.strides, over.dilations)
        )
        self.pads = [0, *over.begins] if flat else [*over.begins]
        self.ceil = bool(over.ceil)
        self.axes = len(self.kernel)

    @property
    def max_arguments(self) -> tuple[object, ...]:
        return self.kernel, self.strides, self.pads, self.dilations, self.ceil

    def average_arguments(self, node: Node) -> tuple[object, ...]:
        return self.kernel, self.strides, self.pads, self.ceil, bool(node.attrs["count_include_pad"]), None


def _samples_per_slice(x: Value) -> int:
    """Return the number of samples in a slice of the batch."""
    spec = spec_of(x)
    return min(spec.shape[0], -(-SLICE_BYTES * spec.shape[0] // max(1, spec.nbytes)))


def _indexed_maxima(
    node: Node, inputs: Operands, y: Tensor, scratch: Tensor, values: bool
) -> list[tuple[slice, Tensor, Call]]:
    """Return for each slice of the batch: the slice, the indices of the maxima, and the call computing the indices.

    The call writes the maxima to `y`, or to scratch memory if `values` is true.
    """
    x, pool = _channels_first(node, inputs[-1]), _PoolArguments(node)
    step = _samples_per_slice(operand(node, len(inputs) - 1))
    pooled = getattr(torch()._C._nn, f"max_pool{pool.axes}d_with_indices")
    slices: list[tuple[slice, Tensor, Call]] = []
    for begin in range(0, len(x), max(1, step)):
        part = slice(begin, min(len(x), begin + step))
        shape = (part.stop - begin, *y.shape[1:])
        indices = _channels_first(node, scratch_tensor(scratch, torch().int64, shape))
        maxima = scratch_tensor(scratch, x.dtype, shape, indices.nbytes) if values else y[part]
        call = partial(pooled, x[part], *pool.max_arguments, out=(_channels_first(node, maxima), indices))
        slices.append((part, indices, call))
    return slices


def _max_pool(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    if _is_separable(node):
        return _maxima_by_axis(node, inputs[0], outputs[0], scratch)
    return [entry[2] for entry in _indexed_maxima(node, inputs, outputs[0], scratch, values=False)]


def _is_separable(node: Node) -> bool:
    return len(pick(node.attrs, "kernel")) < 3 and not is_channels_last(node.attrs)


def _maxima_by_axis(node: Node, x: Tensor, y: Tensor, scratch: Tensor) -> Calls:
    """Compute maxima along the last axis into scratch memory, then maxima of the maxima along the second-last axis.

    Each step processes a few images of one channel, which stay in the cache.
    """
    x, y = (_channels_first(node, t).flatten(0, 1) for t in (x, y))
    pool = _PoolArguments(node)
    rows, columns = zip(pool.kernel, pool.strides, pool.pads, pool.dilations, strict=True)
    step = _images_per_step(operand(node, 0))
    calls: list[Call] = []
    for begin in range(0, len(x), step):
        part, target = x[begin : begin + step], y[begin : begin + step]
        if len(pick(node.attrs, "kernel")) > 1:
            between = scratch_tensor(scratch, x.dtype, (*part.shape[:2], target.shape[2]))
            calls += _maxima_along(2, columns, part, between)
            calls += _maxima_along(1, rows, between, target)
        else:
            calls += _maxima_along(2, columns, part, target)
    return calls


def _images_per_step(x: Value) -> int:
    """Return the number of single-channel images processed at a time."""
    spec = spec_of(x)
    count = prod(spec.shape[:2])
    return max(1, min(count, IMAGE_BYTES * count // max(1, spec.nbytes)))


def _maxima_along(axis: int, window: tuple[int, ...], x: Tensor, y: Tensor) -> list[Call]:
    """Return calls for windowed maxima along an axis.

    Each call compares one element of all windows with the maxima computed by the earlier calls.
    """
    (kernel, stride, pad, dilation), extent, count = window, x.shape[axis], y.shape[axis]
    everywhere: list[Tensor] = []
    somewhere: list[tuple[Tensor, Tensor]] = []
    for at in range(-pad, kernel * dilation - pad, dilation):
        first = -(at // stride) if at < 0 else 0
        last = min(count - 1, (extent - 1 - at) // stride)
        if first > last:
            continue
        begin, end = first * stride + at, last * stride + at + 1
        seen = x[(*(slice(None),) * axis, slice(begin, end, stride))]
        if last - first + 1 == count:
            everywhere.append(seen)
        else:
            somewhere.append((y.narrow(axis, first, last - first + 1), seen))
    t = torch()
    calls: list[Call]
    if len(everywhere) > 1:
        calls = [partial(t.maximum, *everywhere[:2], out=y)]
    elif everywhere:
        calls = [partial(y.copy_, everywhere[0])]
    else:
        calls = [partial(y.fill_, float("-inf"))]
    calls += [partial(t.maximum, y, seen, out=y) for seen in everywhere[2:]]
    return calls + [partial(t.maximum, place, seen, out=place) for place, seen in somewhere]


def _max_pool_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, dx = (_channels_first(node, t) for t in (*inputs, outputs[0]))
    pool = _PoolArguments(node)
    calls: list[Call] = []
    backward = getattr(torch().ops.aten, f"max_pool{pool.axes}d_with_indices_backward").grad_input
    for part, indices, call in _indexed_maxima(node, inputs, inputs[0], scratch, values=True):
        given = (dy[part], x[part], *pool.max_arguments, indices)
        calls += [call, partial(backward, *given, grad_input=dx[part])]
    return calls


def _max_pool_gather(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    ddx, y = _channels_first(node, inputs[0]), _channels_first(node, outputs[0])
    calls: list[Call] = []
    for part, indices, call in _indexed_maxima(node, inputs, outputs[0], scratch, values=True):
        picked = partial(torch().gather, ddx[part].flatten(2), 2, indices.flatten(2), out=y[part].flatten(2))
        calls += [call, picked]
    return calls


def _slice_scratch(x: Value, y: Value, each: int) -> int:
    """Return scratch bytes for a slice: `each` bytes per element of the result."""
    spec = spec_of(y)
    return spec.size // max(1, spec.shape[0]) * _samples_per_slice(x) * each


def _forward_scratch(node: Node) -> int:
    if _is_separable(node):
        x, y = spec_of(operand(node, 0)), spec_of(result(node))
        between = _images_per_step(operand(node, 0)) * prod((x.shape[2], y.shape[-1]))
        return between * x.dtype.bits // 8 if len(y.shape) > 3 else 0
    return _slice_scratch(operand(node, 0), result(node), INDEX_BYTES)


def _gradient_scratch(node: Node) -> int:
    y = operand(node, 0)
    return _slice_scratch(operand(node, 1), y, INDEX_BYTES + spec_of(y).dtype.bits // 8)


def _gather_scratch(node: Node) -> int:
    y = result(node)
    return _slice_scratch(operand(node, 1), y, INDEX_BYTES + spec_of(y).dtype.bits // 8)


def _avg_pool(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    pool = _PoolArguments(node)
    function = getattr(torch()._C._nn, f"avg_pool{pool.axes}d")
    return partial(
        function, _channels_first(node, inputs[0]), *pool.average_arguments(node), out=_channels_first(node, outputs[0])
    )


def _avg_pool_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Call ATen's backward function; ATen reads only the shape of the input argument, so `dx` serves as the input."""
    pool, dx = _PoolArguments(node), _channels_first(node, outputs[0])
    backward = getattr(torch().ops.aten, f"avg_pool{pool.axes}d_backward").grad_input
    return partial(backward, _channels_first(node, inputs[0]), dx, *pool.average_arguments(node), grad_input=dx)


POOLING_KERNELS: Mapping[str, TorchKernel] = {
    "max_pool": TorchKernel(_max_pool, _forward_scratch, _supports_max),
    "max_pool_gradient": TorchKernel(_max_pool_gradient, _gradient_scratch, _supports_max),
    "max_pool_gather": TorchKernel(_max_pool_gather, _gather_scratch, _supports_max),
    "avg_pool": TorchKernel(_avg_pool, supports=_supports_average),
    "avg_pool_gradient": TorchKernel(_avg_pool_gradient, supports=_supports_average),
}


# Upsampling. ATen allocates an index and a weight for each row and column, and no memory per element.

MAX_EXTENT = 1 << 24
"""The largest extent computed by ATen; ATen counts in f32, which has no odd integers beyond 2^24."""


def _as_single_channel(tensor: Tensor) -> Tensor:
    """Return a view of every channel as a separate image; ATen then makes no channels-last copy."""
    return tensor.view(-1, 1, *tensor.shape[2:])


def _upsample(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    functions, x, y = torch()._C._nn, _as_single_channel(inputs[0]), _as_single_channel(outputs[0])
    size = y.shape[2:]
    if node.attrs["mode"] == "nearest":
        return partial(functions.upsample_nearest2d, x, size, None, None, out=y)
    return partial(functions.upsample_bilinear2d, x, size, bool(node.attrs["align_corners"]), None, None, out=y)


def _gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    functions, dy, dx = torch().ops.aten, _as_single_channel(inputs[0]), _as_single_channel(outputs[0])
    sizes = [list(dy.shape[2:]), list(dx.shape)]
    if node.attrs["mode"] == "nearest":
        return partial(functions.upsample_nearest2d_backward.grad_input, dy, *sizes, grad_input=dx)
    align = bool(node.attrs["align_corners"])
    return partial(functions.upsample_bilinear2d_backward.grad_input, dy, *sizes, align, grad_input=dx)


def _rounds_exactly(source: int, extent: int) -> bool:
    """True if floating-point arithmetic, as in ATen, gives the exact source positions of nearest sampling."""
    if extent > MAX_EXTENT:
        return False
    exact, places = nearest_sources(source, extent), np.arange(extent)
    single = np.floor(places.astype(np.float32) * (np.float32(source) / np.float32(extent)))
    return np.array_equal(single, exact) and np.array_equal(np.floor(places * (source / extent)), exact)


def _is_exact(node: Node) -> bool:
    images = [spec_of(operand(node, 0)).shape[2:], spec_of(result(node)).shape[2:]]
    source, target = images if node.op == "nn.upsample" else reversed(images)
    return pick(node.attrs, "mode") != "nearest" or all(map(_rounds_exactly, source, target))


KERNELS: Mapping[str, TorchKernel] = {
    **POOLING_KERNELS,
    "upsample": TorchKernel(_upsample, supports=_is_exact),
    "upsample_gradient": TorchKernel(_gradient, supports=_is_exact),
}
