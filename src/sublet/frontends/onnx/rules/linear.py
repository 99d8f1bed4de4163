"""Shape rules of products and convolutions: contracted extents, groups, windows, and bias lengths."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.frontends.onnx.rules.shape_rule import (
    Extents,
    NodeShapes,
    element_count_of,
    require_broadcastable,
    require_broadcastable_to,
    require_equal,
    require_that,
    require_vector,
)


def require_matmul(node: NodeShapes) -> None:
    """Require [..., n, k] times [..., k, m]; vectors count as a row and a column."""
    require_product(node.shape(0), node.shape(1))


def require_integer_matmul(node: NodeShapes) -> None:
    """Require the operands of a product, for MatMulInteger.

    A zero point is a scalar, or has a number per row of the first operand, or per column of the second operand.
    """
    a, b = node.shape(0), node.shape(1)
    require_product(a, b)
    for position, extent in ((2, a[-2] if a and len(a) > 1 else None), (3, b[-1] if b and len(b) > 1 else None)):
        zero_points = node.shape(position)
        if zero_points is not None and len(zero_points) == 1 and zero_points[0] != 1:
            require_equal(
                zero_points[0], extent, f"the zero points {format_dims(zero_points)} are not one for each row or column"
            )


def require_quantized_matmul(node: NodeShapes) -> None:
    """Require the operands of a product, each followed by a scale and a zero point, for QLinearMatMul."""
    a, b = node.shape(0), node.shape(3)
    require_product(a, b)
    for position in (1, 2, 6, 7):
        parameter = node.shape(position)
        fits = parameter is None or element_count_of(parameter) in (1, None)
        require_that(fits or node.version >= 21, f"a scale or zero point is {format_dims(parameter)}, not one number")


def require_product(a: Extents | None, b: Extents | None) -> None:
    """Require [..., n, k] times [..., k, m]; None is an operand of unknown shape."""
    if a is None or b is None:
        return
    require_that(bool(a) and bool(b), f"{format_dims(a)} times {format_dims(b)}: a scalar is not a matrix")
    require_equal(
        a[-1], b[-2] if len(b) > 1 else b[0], f"{format_dims(a)} times {format_dims(b)} sums over different extents"
    )
    require_broadcastable(
        [a[:-2], b[:-2]], f"{format_dims(a)} times {format_dims(b)}: the leading dimensions do not broadcast"
    )


def require_gemm(node: NodeShapes) -> None:
    """Require two optionally transposed matrices, and an addend broadcasting to the product."""
    a, b = node.shape(0), node.shape(1)
    if a is None or b is None:
        return
    require_that(len(a) == len(b) == 2, f"{format_dims(a)} times {format_dims(b)}: both must be matrices")
    rows, summed = a[::-1] if node.integer_attribute("transA") else a
    other, columns = b[::-1] if node.integer_attribute("transB") else b
    what = f"{format_dims(a)}{' transposed' if node.integer_attribute('transA') else ''} times"
    transposed = " transposed" if node.integer_attribute("transB") else ""
    require_equal(summed, other, f"{what} {format_dims(b)}{transposed} sums over different extents")
    require_broadcastable_to(node.shape(2), (rows, columns), "the addend")


def require_conv(node: NodeShapes) -> None:
    """Require [n, c, ...] with a kernel of [m, c / group, ...] and a bias of [m]."""
    _require_conv_shapes(node, node.shape(0), node.shape(1), node.shape(2))


def require_quantized_conv(node: NodeShapes) -> None:
    """Require the operands of a convolution, each followed by a scale and a zero point, for QLinearConv."""
    _require_conv_shapes(node, node.shape(0), node.shape(3), node.shape(8))


def require_integer_conv(node: NodeShapes) -> None:
    """Require the operands of a convolution without a bias, for ConvInteger."""
    _require_conv_shapes(node, node.shape(0), node.shape(1), None)


def _require_conv_shapes(node: NodeShapes, data: Extents | None, kernel: Extents | None, bias: Extents | None) -> None:
    """Require compatible channels, groups, window and bias of a convolution."""
    if data is None or kernel is None:
        return
    require_that(
        len(data) > 2 and len(data) == len(kernel),
        f"{format_dims(data)} and the kernel {format_dims(kernel)} differ in rank",
    )
    group, channels, count = node.integer_attribute("group", 1), data[1], kernel[0]
    per_group = None if kernel[1] is None else kernel[1] * group
    require_equal(
        channels,
        per_group,
        f"{format_dims(data)} and {group} group(s) of the kernel {format_dims(kernel)} differ in channels",
    )
    require_that(count is None or count % max(group, 1) == 0, f"{count} kernels cannot be split into {group} groups")
    _require_kernel_shape(node, kernel[2:])
    _require_window_fits(node, data[2:], kernel[2:])
    require_vector(bias, count, "the bias")


def require_transposed_conv(node: NodeShapes) -> None:
    """Require [n, c, ...] with a kernel of [c, m / group, ...] and a bias of [m]."""
    data, kernel = node.shape(0), node.shape(1)
    if data is None or kernel is None:
        return
    require_that(
        len(data) > 2 and len(data) == len(kernel),
        f"{format_dims(data)} and the kernel {format_dims(kernel)} differ in rank",
    )
    require_equal(data[1], kernel[0], f"{format_dims(data)} and the kernel {format_dims(kernel)} differ in channels")
    group = node.integer_attribute("group", 1)
    require_that(
        data[1] is None or data[1] % max(group, 1) == 0, f"{data[1]} channels cannot be split into {group} groups"
    )
    _require_kernel_shape(node, kernel[2:])
    require_vector(node.shape(2), None if kernel[1] is None else kernel[1] * group, "the bias")


def _require_kernel_shape(node: NodeShapes, extents: Extents) -> None:
    """Require `kernel_shape`, if present, to equal the spatial extents of the kernel."""
    window = node.integers_attribute("kernel_shape")
    if window is None:
        return
    require_that(
        len(window) == len(extents), f"kernel_shape {list(window)} differs from the kernel, {format_dims(extents)}"
    )
    for declared, extent in zip(window, extents, strict=True):
        require_equal(declared, extent, "kernel_shape and the kernel differ")


def require_pool(node: NodeShapes) -> None:
    """Require window, strides, pads and dilations of matching lengths, and a window within the padded operand."""
    data = node.shape(0)
    if data is None:
        return
    require_that(len(data) > 2, f"{format_dims(data)} has no spatial axes")
    for name, each in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
        numbers = node.integers_attribute(name)
        fits = numbers is None or len(numbers) == each * (len(data) - 2)
        require_that(fits, f"{name} {list(numbers or ())} does not fit {format_dims(data)}")
    window = node.integers_attribute("kernel_shape")
    if window is not None:
        _require_window_fits(node, data[2:], window, rounded=True)


def _require_window_fits(node: NodeShapes, extents: Extents, window: Extents, rounded: bool = False) -> None:
    """Require a window within the padded operand.

    With `rounded`, as in pools, the step count is rounded towards zero, and less than one stride may be missing.
    """
    count = len(extents)
    strides = (node.integers_attribute("strides") if rounded else None) or (1,) * count
    pads, dilations = (
        node.integers_attribute("pads") or (0,) * (2 * count),
        node.integers_attribute("dilations") or (1,) * count,
    )
    if node.text_attribute("auto_pad", "NOTSET").startswith("SAME") or (len(pads), len(dilations)) != (
        2 * count,
        count,
    ):
        return  # for convolutions, ONNX's inference already rejects pads and dilations of a wrong length
    for i, (extent, taps) in enumerate(zip(extents, window, strict=True)):
        if extent is not None and taps is not None:
            reach = dilations[i] * (taps - 1) + 1
            missing = reach - extent - pads[i] - pads[i + count]
            require_that(missing < max(strides[i], 1), f"a window of {reach} is larger than {extent} and its pads")
