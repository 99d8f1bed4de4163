"""Shape rules of operators on images and signals, and of losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from sublet.base.tensor import format_dims
from sublet.integrations.onnx.reader.rules.shape_rule import (
    Extents,
    NodeShapes,
    element_count_of,
    may_be_equal,
    require_equal,
    require_that,
    require_vector,
)

# Output shapes of windowed operators (pools, transposed convolutions) as computed by ONNX Runtime's kernels.
#
# ONNX's shape inference gives different extents for pools before version 22 of the operator set, if the extents are
# rounded up or padded automatically with dilations, and for automatically padded transposed convolutions.

Padding = tuple[int, int]
"""The padding elements in front of an axis and behind."""


def pool_extents(node: NodeShapes) -> Extents | None:
    """Return the shape of a pool's output, None if the window does not fit the operand's rank."""
    data, window = node.shape(0), node.integers_attribute("kernel_shape")
    if data is None or window is None or len(data) != len(window) + 2:
        return None
    count = len(window)
    strides, dilations = (
        node.integers_attribute("strides") or (1,) * count,
        node.integers_attribute("dilations") or (1,) * count,
    )
    pads = node.integers_attribute("pads") or (0,) * (2 * count)
    if (len(strides), len(dilations), len(pads)) != (count, count, 2 * count) or min(strides) < 1:
        return None
    up, mode = node.integer_attribute("ceil_mode") == 1, node.text_attribute("auto_pad", "NOTSET")
    extents: list[int | None] = []
    for i, extent in enumerate(data[2:]):
        if extent is None:
            extents.append(None)
            continue
        padding = _pool_padding(mode, extent, strides[i], window[i], (pads[i], pads[i + count]))
        extents.append(_window_count(extent, strides[i], dilations[i] * (window[i] - 1) + 1, padding, up))
    return (*data[:2], *extents)


def _pool_padding(mode: str, extent: int, stride: int, taps: int, explicit: Padding) -> Padding:
    """Return the padding of one axis of a pool. Automatic padding ignores dilations."""
    if mode == "VALID":
        return 0, 0
    if not mode.startswith("SAME"):
        return explicit
    needed = (-(-extent // stride) - 1) * stride + taps - extent
    front = (needed + 1) // 2 if mode == "SAME_LOWER" else needed // 2
    return front, needed - front


def _window_count(extent: int, stride: int, reach: int, padding: Padding, up: bool) -> int:
    """Return the number of windows on one axis. The last window begins in the operand or in the front padding."""
    room = extent + sum(padding) - reach
    if not up:
        return (room // stride if room >= 0 else -(-room // stride)) + 1
    steps = -(-room // stride) + 1
    return steps - 1 if (steps - 1) * stride >= extent + padding[0] else steps


def transposed_extents(node: NodeShapes) -> Extents | None:
    """Return the shape of an automatically padded transposed convolution, None for explicit padding."""
    data, kernel = node.shape(0), node.shape(1)
    automatic = (
        node.text_attribute("auto_pad", "NOTSET").startswith("SAME") and node.integers_attribute("output_shape") is None
    )
    if not automatic or data is None or kernel is None or len(data) != len(kernel) or len(data) < 3:
        return None
    count = len(data) - 2
    strides, dilations = (
        node.integers_attribute("strides") or (1,) * count,
        node.integers_attribute("dilations") or (1,) * count,
    )
    more = node.integers_attribute("output_padding") or (0,) * count
    if {len(strides), len(dilations), len(more)} != {count}:
        return None
    extents: list[int | None] = []
    for i, (extent, taps) in enumerate(zip(data[2:], kernel[2:], strict=True)):
        if extent is None or taps is None:
            extents.append(None)
        else:
            whole = (extent - 1) * strides[i] + more[i] + dilations[i] * (taps - 1) + 1
            extents.append(min(whole, extent * strides[i]))
    channels = None if kernel[1] is None else kernel[1] * node.integer_attribute("group", 1)
    return (data[0], channels, *extents)


CORRECTED_SHAPES: Mapping[str, Callable[[NodeShapes], Extents | None]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool_extents),
    "ConvTranspose": transposed_extents,
}
"""Operator of ONNX's default domain -> the function returning the shape of every output, or None."""


CLASSICAL = "ai.onnx.ml"


def _rows_with(columns: int, node: NodeShapes) -> Extents | None:
    """Return [rows of the first input, `columns`]; a vector is one row."""
    data = node.shape(0)
    return (data[0] if len(data) > 1 else 1, columns) if data and columns else None


def _classifier_extents(node: NodeShapes) -> list[Extents | None]:
    """Return the shapes of labels and scores."""
    scores = _rows_with(len(node.integers_attribute("classlabels_int64s") or ()), node)
    return [scores and scores[:1], scores]


def _picked_extents(node: NodeShapes) -> list[Extents | None]:
    """Return the shape of the elements picked from a vector; ONNX infers the shape for any other tensor."""
    data, indices = node.shape(0), node.shape(1)
    return [_rows_with(element_count_of(indices) or 0, node) if data and len(data) == 1 and indices else None]


CLASSICAL_SHAPES: Mapping[str, Callable[[NodeShapes], list[Extents | None]]] = {
    **dict.fromkeys(("Imputer", "Normalizer", "Scaler"), lambda node: [node.shape(0)]),
    "ArrayFeatureExtractor": _picked_extents,
    "FeatureVectorizer": lambda node: [_rows_with(sum(node.integers_attribute("inputdimensions") or ()), node)],
    "LinearRegressor": lambda node: [_rows_with(node.integer_attribute("targets", 1), node)],
    "SVMRegressor": lambda node: [_rows_with(1, node)],
    "TreeEnsembleRegressor": lambda node: [_rows_with(node.integer_attribute("n_targets"), node)],
    "TreeEnsembleClassifier": _classifier_extents,
}
"""Operator of the domain ai.onnx.ml without shapes in the onnx package -> the function returning its output shapes."""


def is_corrected(op_type: str, domain: str) -> bool:
    """True if Sublet corrects or adds to the shapes inferred by ONNX for the operator."""
    table = {"": CORRECTED_SHAPES, "ai.onnx": CORRECTED_SHAPES, CLASSICAL: CLASSICAL_SHAPES}.get(domain, {})
    return op_type in table


def corrected_shapes(op_type: str, node: NodeShapes, inferred: Sequence[Extents | None]) -> list[Extents | None]:
    """Return the shapes of the outputs: ONNX Runtime's if known to Sublet, else the `inferred` shapes."""
    if op_type in CLASSICAL_SHAPES:
        shapes = CLASSICAL_SHAPES[op_type](node)
        return [guess if shape is None else shape for shape, guess in zip(shapes, inferred, strict=False)]
    shape = CORRECTED_SHAPES[op_type](node)
    return list(inferred) if shape is None else [shape] * len(inferred)


def require_affine_grid(node: NodeShapes) -> None:
    """Require a matrix of [2, 3] or [3, 4] for each image of the given size."""
    theta, size = node.shape(0), node.constant_inputs.get(1)
    if theta is None:
        return
    require_that(len(theta) == 3, f"the matrices are {format_dims(theta)}")
    if size is not None:
        spatial = len(size) - 2
        require_that(spatial in (2, 3), f"the size {list(size)} is not the size of an image")
        require_equal(theta[0], size[0], f"the matrices {format_dims(theta)} and the size {list(size)} differ in batch")
        require_equal(theta[1], spatial, f"the matrices {format_dims(theta)} do not fit the size {list(size)}")
        require_equal(theta[2], spatial + 1, f"the matrices {format_dims(theta)} do not fit the size {list(size)}")


def require_columns_to_image(node: NodeShapes) -> None:
    """Require whole blocks, in the number given by the image."""
    data, image, block = node.shape(0), node.constant_inputs.get(1), node.constant_inputs.get(2)
    if data is None or block is None or image is None:
        return
    require_that(len(data) == 3, f"the columns are {format_dims(data)}, not of three dimensions")
    whole = data[1] is None or (data[1] > 0 and data[1] % max(prod(block), 1) == 0)
    require_that(whole, f"axis 1 of {format_dims(data)} cannot be split into blocks of {list(block)}")
    count = len(image)
    strides, dilations = (
        node.integers_attribute("strides") or (1,) * count,
        node.integers_attribute("dilations") or (1,) * count,
    )
    pads = node.integers_attribute("pads") or (0,) * (2 * count)
    blocks = prod(
        (image[i] + pads[i] + pads[i + count] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(min(count, len(block)))
    )
    require_equal(data[2], blocks, f"{format_dims(data)} does not hold the blocks of the image {list(image)}")


def require_resize(node: NodeShapes) -> None:
    """Require a scale or size for each axis, and two numbers of the region for each axis."""
    scales, sizes = (2, 3) if node.version >= 11 else (1, 2)
    for position, what in ((scales, "the scales"), (sizes, "the sizes")):
        _require_number_per_axis(node, position, what)
    data, region = node.shape(0), node.shape(1)
    cropped = node.text_attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    axes = node.integers_attribute("axes")
    if cropped and data is not None and region is not None and node.version >= 11:
        count = element_count_of(region)
        fits = count is None or count in (2 * len(axes or data), 2 * len(data))
        require_that(fits, f"the region, {count} numbers, does not have two for each axis of {format_dims(data)}")


def _require_number_per_axis(node: NodeShapes, position: int, what: str) -> None:
    """Require an empty input or a number for each resized axis; ONNX Runtime accepts any shape."""
    data, numbers = node.shape(0), node.shape(position)
    found = None if numbers is None else element_count_of(numbers)
    if data is not None and found:
        count = len(node.integers_attribute("axes") or data)
        require_equal(found, count, f"{what}, {format_dims(numbers)}, are not one for each axis of {format_dims(data)}")


def require_upsample(node: NodeShapes) -> None:
    """Require a scale for each axis."""
    _require_number_per_axis(node, 1, "the scales")


def require_deformed_conv(node: NodeShapes) -> None:
    """Require two offsets for each place of the kernel and of the output."""
    data, kernel, offset, mask = node.shape(0), node.shape(1), node.shape(2), node.shape(4)
    if data is None or kernel is None:
        return
    require_that(len(data) == len(kernel), f"{format_dims(data)} and the kernel {format_dims(kernel)} differ in rank")
    per_group = None if kernel[1] is None else kernel[1] * node.integer_attribute("group", 1)
    require_equal(data[1], per_group, f"{format_dims(data)} and the kernel {format_dims(kernel)} differ in channels")
    require_vector(node.shape(3), kernel[0], "the bias")
    places = None if None in kernel[2:] else prod(extent for extent in kernel[2:] if extent is not None)
    result = node.outputs[0]
    for shape, each, what in ((offset, len(kernel) - 2, "the offsets"), (mask, 1, "the mask")):
        if shape is None:
            continue
        require_that(len(shape) == len(data), f"{what} {format_dims(shape)} differ in rank from {format_dims(data)}")
        channels = None if places is None else node.integer_attribute("offset_group", 1) * each * places
        require_equal(shape[0], data[0], f"{what} {format_dims(shape)} and {format_dims(data)} differ in batch")
        require_equal(
            shape[1],
            channels,
            f"{what} {format_dims(shape)} are not one for each place of the kernel {format_dims(kernel)}",
        )
        if result is not None and len(result) == len(shape):
            fits = may_be_equal(shape[2:], result[2:])
            require_that(
                fits, f"{what} {format_dims(shape)} are not one for each place of the output {format_dims(result)}"
            )


def require_unpool(node: NodeShapes) -> None:
    """Require an index for each element."""
    data, places = node.shape(0), node.shape(1)
    if data is not None and places is not None:
        require_that(
            may_be_equal(data, places),
            f"the places {format_dims(places)} are not one for each element of {format_dims(data)}",
        )


def require_spatial_axes(node: NodeShapes) -> None:
    """Require spatial axes behind batch and channels."""
    data = node.shape(0)
    require_that(data is None or len(data) > 2, f"{format_dims(data)} has no spatial axes")


def require_fourier(node: NodeShapes) -> None:
    """Require real or complex numbers on the last axis."""
    data = node.shape(0)
    if data is not None:
        require_that(len(data) > 1, f"{format_dims(data)} has no axis of real and imaginary parts")
        require_that(
            data[-1] in (1, 2, None), f"the last axis of {format_dims(data)} holds neither real nor complex numbers"
        )


def require_class_loss(node: NodeShapes) -> None:
    """Require scores of [batch, classes, ...], labels of [batch, ...], and a weight per class."""
    scores, labels = node.shape(0), node.shape(1)
    if scores is None or labels is None:
        return
    require_that(len(scores) > 1, f"the scores {format_dims(scores)} have no classes")
    expected = (scores[0], *scores[2:])
    require_that(
        may_be_equal(labels, expected),
        f"the labels are {format_dims(labels)}; expected {format_dims(expected)}",
    )
    require_vector(node.shape(2), scores[1], "the weights")
