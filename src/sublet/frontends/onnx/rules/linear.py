"""Shape rules of products and convolutions: contracted extents, groups, windows, and bias lengths."""

from __future__ import annotations

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import (
    Extents,
    Seen,
    broadcast,
    broadcast_to,
    demand,
    of_length,
    same,
    size_of,
)


def matmul(seen: Seen) -> None:
    """Require [..., n, k] times [..., k, m]; vectors count as a row and a column."""
    product(seen.shape(0), seen.shape(1))


def integer_matmul(seen: Seen) -> None:
    """Require the operands of a product, for MatMulInteger.

    A zero point is a scalar, or has a number per row of the first operand, or per column of the second operand.
    """
    a, b = seen.shape(0), seen.shape(1)
    product(a, b)
    for position, extent in ((2, a[-2] if a and len(a) > 1 else None), (3, b[-1] if b and len(b) > 1 else None)):
        zero_points = seen.shape(position)
        if zero_points is not None and len(zero_points) == 1 and zero_points[0] != 1:
            same(zero_points[0], extent, f"the zero points {shown(zero_points)} are not one for each row or column")


def quantized_matmul(seen: Seen) -> None:
    """Require the operands of a product, each followed by a scale and a zero point, for QLinearMatMul."""
    a, b = seen.shape(0), seen.shape(3)
    product(a, b)
    for position in (1, 2, 6, 7):
        parameter = seen.shape(position)
        fits = parameter is None or size_of(parameter) in (1, None)
        demand(fits or seen.version >= 21, f"a scale or zero point is {shown(parameter)}, not one number")


def product(a: Extents | None, b: Extents | None) -> None:
    """Require [..., n, k] times [..., k, m]; None is an operand of unknown shape."""
    if a is None or b is None:
        return
    demand(bool(a) and bool(b), f"{shown(a)} times {shown(b)}: a scalar is no matrix")
    same(a[-1], b[-2] if len(b) > 1 else b[0], f"{shown(a)} times {shown(b)} sums over different extents")
    broadcast([a[:-2], b[:-2]], f"{shown(a)} times {shown(b)}: the leading dimensions do not broadcast")


def gemm(seen: Seen) -> None:
    """Require two optionally transposed matrices, and an addend broadcasting to the product."""
    a, b = seen.shape(0), seen.shape(1)
    if a is None or b is None:
        return
    demand(len(a) == len(b) == 2, f"{shown(a)} times {shown(b)}: both must be matrices")
    rows, summed = a[::-1] if seen.whole("transA") else a
    other, columns = b[::-1] if seen.whole("transB") else b
    what = f"{shown(a)}{' transposed' if seen.whole('transA') else ''} times"
    same(summed, other, f"{what} {shown(b)}{' transposed' if seen.whole('transB') else ''} sums over different extents")
    broadcast_to(seen.shape(2), (rows, columns), "what is added,")


def conv(seen: Seen) -> None:
    """Require [n, c, ...] with a kernel of [m, c / group, ...] and a bias of [m]."""
    _conv(seen, seen.shape(0), seen.shape(1), seen.shape(2))


def quantized_conv(seen: Seen) -> None:
    """Require the operands of a convolution, each followed by a scale and a zero point, for QLinearConv."""
    _conv(seen, seen.shape(0), seen.shape(3), seen.shape(8))


def integer_conv(seen: Seen) -> None:
    """Require the operands of a convolution without a bias, for ConvInteger."""
    _conv(seen, seen.shape(0), seen.shape(1), None)


def _conv(seen: Seen, data: Extents | None, kernel: Extents | None, bias: Extents | None) -> None:
    """Require compatible channels, groups, window and bias of a convolution."""
    if data is None or kernel is None:
        return
    demand(len(data) > 2 and len(data) == len(kernel), f"{shown(data)} and the kernel {shown(kernel)} differ in rank")
    group, channels, count = seen.whole("group", 1), data[1], kernel[0]
    per_group = None if kernel[1] is None else kernel[1] * group
    same(channels, per_group, f"{shown(data)} and {group} group(s) of the kernel {shown(kernel)} differ in channels")
    demand(count is None or count % max(group, 1) == 0, f"{count} kernels do not make {group} groups")
    _window(seen, kernel[2:])
    _room(seen, data[2:], kernel[2:])
    of_length(bias, count, "the bias")


def transposed_conv(seen: Seen) -> None:
    """Require [n, c, ...] with a kernel of [c, m / group, ...] and a bias of [m]."""
    data, kernel = seen.shape(0), seen.shape(1)
    if data is None or kernel is None:
        return
    demand(len(data) > 2 and len(data) == len(kernel), f"{shown(data)} and the kernel {shown(kernel)} differ in rank")
    same(data[1], kernel[0], f"{shown(data)} and the kernel {shown(kernel)} differ in channels")
    group = seen.whole("group", 1)
    demand(data[1] is None or data[1] % max(group, 1) == 0, f"{data[1]} channels do not make {group} groups")
    _window(seen, kernel[2:])
    of_length(seen.shape(2), None if kernel[1] is None else kernel[1] * group, "the bias")


def _window(seen: Seen, extents: Extents) -> None:
    """Require `kernel_shape`, if present, to equal the spatial extents of the kernel."""
    window = seen.wholes("kernel_shape")
    if window is None:
        return
    demand(len(window) == len(extents), f"kernel_shape {list(window)} is not that of the kernel, {shown(extents)}")
    for declared, extent in zip(window, extents, strict=True):
        same(declared, extent, "kernel_shape and the kernel differ")


def pool(seen: Seen) -> None:
    """Require window, strides, pads and dilations of matching lengths, and a window within the padded operand."""
    data = seen.shape(0)
    if data is None:
        return
    demand(len(data) > 2, f"{shown(data)} has no spatial axes")
    for name, each in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
        numbers = seen.wholes(name)
        fits = numbers is None or len(numbers) == each * (len(data) - 2)
        demand(fits, f"{name} {list(numbers or ())} does not fit {shown(data)}")
    window = seen.wholes("kernel_shape")
    if window is not None:
        _room(seen, data[2:], window, rounded=True)


def _room(seen: Seen, extents: Extents, window: Extents, rounded: bool = False) -> None:
    """Require a window within the padded operand.

    With `rounded`, as in pools, the step count is rounded towards zero, and less than one stride may be missing.
    """
    count = len(extents)
    strides = (seen.wholes("strides") if rounded else None) or (1,) * count
    pads, dilations = seen.wholes("pads") or (0,) * (2 * count), seen.wholes("dilations") or (1,) * count
    if seen.text("auto_pad", "NOTSET").startswith("SAME") or (len(pads), len(dilations)) != (2 * count, count):
        return  # for convolutions, ONNX's inference already rejects pads and dilations of a wrong length
    for i, (extent, taps) in enumerate(zip(extents, window, strict=True)):
        if extent is not None and taps is not None:
            reach = dilations[i] * (taps - 1) + 1
            missing = reach - extent - pads[i] - pads[i + count]
            demand(missing < max(strides[i], 1), f"a window of {reach} is larger than {extent} and its pads")
