"""Shape rules of operators on images and signals, and of losses."""

from __future__ import annotations

from math import prod

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import Seen, alike, demand, of_length, same, size_of


def affine_grid(seen: Seen) -> None:
    """Require a matrix of [2, 3] or [3, 4] for each image of the given size."""
    theta, size = seen.shape(0), seen.numbers.get(1)
    if theta is None:
        return
    demand(len(theta) == 3, f"the matrices are {shown(theta)}")
    if size is not None:
        spatial = len(size) - 2
        demand(spatial in (2, 3), f"the size {list(size)} is of no image")
        same(theta[0], size[0], f"the matrices {shown(theta)} and the size {list(size)} differ in batch")
        same(theta[1], spatial, f"the matrices {shown(theta)} do not fit the size {list(size)}")
        same(theta[2], spatial + 1, f"the matrices {shown(theta)} do not fit the size {list(size)}")


def columns_to_image(seen: Seen) -> None:
    """Require whole blocks, in the number given by the image."""
    data, image, block = seen.shape(0), seen.numbers.get(1), seen.numbers.get(2)
    if data is None or block is None or image is None:
        return
    demand(len(data) == 3, f"the columns are {shown(data)}, not of three dimensions")
    whole = data[1] is None or (data[1] > 0 and data[1] % max(prod(block), 1) == 0)
    demand(whole, f"{data[1]} of {shown(data)} are no blocks of {list(block)}")
    count = len(image)
    strides, dilations = seen.wholes("strides") or (1,) * count, seen.wholes("dilations") or (1,) * count
    pads = seen.wholes("pads") or (0,) * (2 * count)
    blocks = prod(
        (image[i] + pads[i] + pads[i + count] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(min(count, len(block)))
    )
    same(data[2], blocks, f"{shown(data)} does not hold the blocks of the image {list(image)}")


def resize(seen: Seen) -> None:
    """Require a scale or size for each axis, and two numbers of the region for each axis."""
    scales, sizes = (2, 3) if seen.version >= 11 else (1, 2)
    for position, what in ((scales, "the scales"), (sizes, "the sizes")):
        _one_for_each_axis(seen, position, what)
    data, region = seen.shape(0), seen.shape(1)
    cropped = seen.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    axes = seen.wholes("axes")
    if cropped and data is not None and region is not None and seen.version >= 11:
        count = size_of(region)
        fits = count is None or count in (2 * len(axes or data), 2 * len(data))
        demand(fits, f"the region, {count} numbers, does not have two for each axis of {shown(data)}")


def _one_for_each_axis(seen: Seen, position: int, what: str) -> None:
    """Require an empty input or a number for each resized axis; ONNX Runtime accepts any shape."""
    data, numbers = seen.shape(0), seen.shape(position)
    found = None if numbers is None else size_of(numbers)
    if data is not None and found:
        count = len(seen.wholes("axes") or data)
        same(found, count, f"{what}, {shown(numbers)}, are not one for each axis of {shown(data)}")


def upsample(seen: Seen) -> None:
    """Require a scale for each axis."""
    _one_for_each_axis(seen, 1, "the scales")


def deformed_conv(seen: Seen) -> None:
    """Require two offsets for each place of the kernel and of the output."""
    data, kernel, offset, mask = seen.shape(0), seen.shape(1), seen.shape(2), seen.shape(4)
    if data is None or kernel is None:
        return
    demand(len(data) == len(kernel), f"{shown(data)} and the kernel {shown(kernel)} differ in rank")
    per_group = None if kernel[1] is None else kernel[1] * seen.whole("group", 1)
    same(data[1], per_group, f"{shown(data)} and the kernel {shown(kernel)} differ in channels")
    of_length(seen.shape(3), kernel[0], "the bias")
    places = None if None in kernel[2:] else prod(extent for extent in kernel[2:] if extent is not None)
    result = seen.outputs[0]
    for shape, each, what in ((offset, len(kernel) - 2, "the offsets"), (mask, 1, "the mask")):
        if shape is None:
            continue
        demand(len(shape) == len(data), f"{what} {shown(shape)} differ in rank from {shown(data)}")
        channels = None if places is None else seen.whole("offset_group", 1) * each * places
        same(shape[0], data[0], f"{what} {shown(shape)} and {shown(data)} differ in batch")
        same(shape[1], channels, f"{what} {shown(shape)} are not one for each place of the kernel {shown(kernel)}")
        if result is not None and len(result) == len(shape):
            fits = alike(shape[2:], result[2:])
            demand(fits, f"{what} {shown(shape)} are not one for each place of the output {shown(result)}")


def unpool(seen: Seen) -> None:
    """Require an index for each element."""
    data, places = seen.shape(0), seen.shape(1)
    if data is not None and places is not None:
        demand(alike(data, places), f"the places {shown(places)} are not one for each element of {shown(data)}")


def spatial(seen: Seen) -> None:
    """Require spatial axes behind batch and channels."""
    data = seen.shape(0)
    demand(data is None or len(data) > 2, f"{shown(data)} has no spatial axes")


def fourier(seen: Seen) -> None:
    """Require real or complex numbers on the last axis."""
    data = seen.shape(0)
    if data is not None:
        demand(len(data) > 1, f"{shown(data)} has no axis of real and imaginary parts")
        demand(data[-1] in (1, 2, None), f"the last axis of {shown(data)} holds neither real nor complex numbers")


def loss(seen: Seen) -> None:
    """Require scores of [batch, classes, ...], labels of [batch, ...], and a weight per class."""
    scores, labels = seen.shape(0), seen.shape(1)
    if scores is None or labels is None:
        return
    demand(len(scores) > 1, f"the scores {shown(scores)} have no classes")
    wanted = (scores[0], *scores[2:])
    demand(alike(labels, wanted), f"the labels are {shown(labels)}, and would have to be {shown(wanted)}")
    of_length(seen.shape(2), scores[1], "the weights")
