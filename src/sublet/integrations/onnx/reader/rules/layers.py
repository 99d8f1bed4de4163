"""Shape rules of layers: normalisation, recurrence, quantisation and slopes."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.integrations.onnx.reader.rules.shape_rule import (
    Extents,
    NodeShapes,
    ShapeRule,
    element_count_of,
    may_be_equal,
    require_broadcastable,
    require_broadcastable_to,
    require_equal,
    require_that,
    require_vector,
)


def require_elementwise(node: NodeShapes) -> None:
    """Require operands broadcasting together."""
    require_broadcastable(node.inputs)


def require_batch_normalization(node: NodeShapes) -> None:
    """Require a scale, bias, mean and variance per channel."""
    data = node.shape(0)
    if data is not None:
        channels = data[1] if len(data) > 1 else 1
        for position, what in ((1, "the scale"), (2, "the bias"), (3, "the mean"), (4, "the variance")):
            require_vector(node.shape(position), channels, what)


def require_instance_normalization(node: NodeShapes) -> None:
    """Require a scale and a bias per channel."""
    data = node.shape(0)
    if data is not None:
        require_that(len(data) > 2, f"{format_dims(data)} has no spatial axes")
        require_vector(node.shape(1), data[1], "the scale")
        require_vector(node.shape(2), data[1], "the bias")


def require_group_normalization(node: NodeShapes) -> None:
    """Require groups dividing the channels, and a matching length of scale and bias."""
    data, groups = node.shape(0), node.integer_attribute("num_groups", 1)
    require_that(data is None or len(data) > 1, f"{format_dims(data or ())} has no channels")
    if data is not None and len(data) > 1 and data[1] is not None:
        require_that(data[1] % max(groups, 1) == 0, f"{data[1]} channels cannot be split into {groups} groups")
        length = data[1] if node.version >= 21 else groups
        require_vector(node.shape(1), length, "the scale")
        require_vector(node.shape(2), length, "the bias")


def require_layer_normalization(node: NodeShapes) -> None:
    """Require a scale and a bias broadcasting to the operand."""
    data = node.shape(0)
    if data is not None:
        node.axis_attribute(-1, len(data))
        require_broadcastable_to(node.shape(1), data, "the scale")
        require_broadcastable_to(node.shape(2), data, "the bias")


def require_mean_variance_normalization(node: NodeShapes) -> None:
    """Require an operand with an axis, no scalar."""
    require_that(node.shape(0) != (), "a scalar has no axis")


def require_prelu(node: NodeShapes) -> None:
    """Require a slope broadcasting to the operand, for PRelu."""
    require_broadcastable_to(node.shape(1), node.shape(0), "the slope")


def recurrent_rule(gates: int, states: int) -> ShapeRule:
    """Return the rule of a recurrent layer with `gates` gates and `states` carried states."""

    def rule(node: NodeShapes) -> None:
        data, weights, recurrence = node.shape(0), node.shape(1), node.shape(2)
        directions = 2 if node.text_attribute("direction") == "bidirectional" else 1
        for shape, what in ((data, "the sequence"), (weights, "W"), (recurrence, "R")):
            require_that(shape is None or len(shape) == 3, f"{what} is {format_dims(shape)}, not of three dimensions")
        hidden = node.attributes.get("hidden_size")
        hidden = hidden if isinstance(hidden, int) else (None if recurrence is None else recurrence[2])
        rows = None if hidden is None else gates * hidden
        _require_shape(weights, (directions, rows, None if data is None else data[2]), "W")
        _require_shape(recurrence, (directions, rows, hidden), "R")
        _require_shape(node.shape(3), (directions, None if rows is None else 2 * rows), "the bias")
        batch = None if data is None else data[0 if node.integer_attribute("layout") else 1]
        _require_shape(node.shape(4), (batch,), "the lengths")
        state = (batch, directions, hidden) if node.integer_attribute("layout") else (directions, batch, hidden)
        for position in range(5, 5 + states):
            _require_shape(node.shape(position), state, "an initial state")
        if states == 2:
            _require_shape(node.shape(7), (directions, None if hidden is None else 3 * hidden), "the peepholes")

    return rule


def _require_shape(shape: Extents | None, expected: Extents, what: str) -> None:
    """Raise ShapeConflict unless the shape, if known, may equal `expected`."""
    if shape is not None:
        require_that(may_be_equal(shape, expected), f"{what} is {format_dims(shape)}; expected {format_dims(expected)}")


def require_quantization(node: NodeShapes) -> None:
    """Require a single scale for the tensor, or a scale for each place on an axis or for each block."""
    data, scale, zero = node.shape(0), node.shape(1), node.shape(2)
    if scale is not None and zero is not None and element_count_of(scale) != 1:
        require_that(
            may_be_equal(scale, zero), f"the scale {format_dims(scale)} and the zero point {format_dims(zero)} differ"
        )
    if (
        data is not None
        and scale is not None
        and len(scale) == 1
        and scale[0] != 1
        and not node.integer_attribute("block_size")
    ):
        require_equal(
            data[node.axis_attribute(1, len(data))],
            scale[0],
            f"the scales are not one for each place of {format_dims(data)}",
        )


# Shape rules of products and convolutions: contracted extents, groups, windows, and bias lengths.


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
