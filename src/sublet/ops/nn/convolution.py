"""Convolutions and their gradients, which are convolutions too.

A convolution is linear in x and in w. The gradients by x and by w are the two other products of the same three
tensors, and the gradients of each product are the remaining two products: the commands are closed under
differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGERS, Command, Required, pick, spec_of
from sublet.ops.nn.rules import FLOATS, only_gradient, operand, require_present, require_same_type, require_shape
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
from sublet.ops.op import Attrs, Emit, Grads, Specs
from sublet.ops.slice_maps import SliceMaps, leading_axis, resize, same_axes, shape_of, slice_map

SHARED_ATTRS: dict[str, Attr | Required] = {"strides": (), "pads": (), "dilations": (), "groups": 1, "layout": "nchw"}


def _groups(attrs: Attrs) -> int:
    groups: int = pick(attrs, "groups")
    if groups < 1:
        raise SpecError(f"groups = {groups} must be at least 1")
    return groups


def conv_shape(x: TensorSpec, w: TensorSpec, attrs: Attrs, roles: tuple[str, str] = ("x", "w")) -> Extents:
    """Return the shape of conv(x, w). Raises SpecError if the shapes do not fit."""
    samples, channels, spatial = image_dims(x, attrs, roles[0])
    groups = _groups(attrs)
    if len(w.shape) != len(x.shape):
        raise SpecError(f"{roles[0]} is {x} and {roles[1]} is {w}: both must have {len(x.shape)} axes")
    if w.shape[1] * groups != channels:
        raise SpecError(
            f"{roles[0]} is {x} with {channels} channels in {groups} groups, {roles[1]} is {w} for {w.shape[1]} "
            f"channels a group: {roles[1]} must be [outputs, channels / groups, *kernel]"
        )
    if w.shape[0] % groups:
        raise SpecError(f"{roles[1]} is {w}: its {w.shape[0]} output channels do not divide into {groups} groups")
    counts = windows_from_attrs(attrs, w.shape[2:]).count_windows(spatial)
    return image_shape(samples, w.shape[0], counts, attrs)


def _check_bias(specs: Specs, channels: int) -> None:
    b = specs[2] if len(specs) > 2 else None
    if b is not None and b.shape != (channels,):
        raise SpecError(f"b is {b}, expected the shape [{channels}]: one number for each output channel")


def _conv_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype = require_same_type(specs, FLOATS)
    x, w = require_present(specs[0], "x"), require_present(specs[1], "w")
    shape = conv_shape(x, w, attrs)
    _check_bias(specs, w.shape[0])
    return (TensorSpec(dtype, shape),)


def _infer_gradient(role: str, first: str) -> Any:
    """Return the inference rule of a gradient: the result is the third tensor of the product, with shape `shape`."""

    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        dtype = require_same_type(specs, FLOATS)
        dy, other = require_present(specs[0], "dy"), require_present(specs[1], first)
        asked = TensorSpec(dtype, require_shape(pick(attrs, "shape")))
        roles = ("shape", first) if role == "x" else (first, "shape")
        shape = conv_shape(asked, other, attrs, roles) if role == "x" else conv_shape(other, asked, attrs, roles)
        if shape != dy.shape:
            raise SpecError(
                f"dy is {dy}, but the convolution with {first} {other} and shape = {list(asked.shape)} is {list(shape)}"
            )
        return (asked,)

    return infer


def _split_groups(x: Any, groups: int) -> Any:
    """Return [N, C, *spatial] as [N, G, C / G, points]."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, prod(x.shape[2:]))


def _grouped_weights(w: Any, groups: int) -> Any:
    """Return the weights as [G, O / G, I / G, *kernel]."""
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _with_bias(y: Any, b: Any) -> Any:
    return y if b is None else y + b.reshape(-1, *(1,) * (y.ndim - 2))


def _conv(x: Any, w: Any, b: Any = None, *, groups: int, layout: str, **attrs: Any) -> Any:
    """Compute a convolution as a matrix product for each position of the kernel."""
    over, x = windows_from_attrs(attrs, w.shape[2:]), to_channels_first(x, layout)
    counts = over.count_windows(x.shape[2:])
    padded, by_place = over.pad_input(x, counts), _grouped_weights(w, groups)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, prod(counts)), x.dtype)
    for place, where in over.taps(counts):
        y += np.matmul(by_place[(..., *place)], _split_groups(padded[:, :, *where], groups))
    return from_channels_first(_with_bias(y.reshape(x.shape[0], w.shape[0], *counts), b), layout)


def _scatter_product(dy: Any, w: Any, groups: int, over: Windows, spatial: Sequence[int]) -> Any:
    """Return dy [N, O, *counts] times w, accumulated at the windows over [N, C, *spatial]."""
    counts, channels = dy.shape[2:], w.shape[1] * groups
    padded = np.zeros((dy.shape[0], channels, *over.padded_extents(spatial, counts)), dy.dtype)
    by_place, rows = np.swapaxes(_grouped_weights(w, groups), 1, 2), _split_groups(dy, groups)
    for place, where in over.taps(counts):
        part = np.matmul(by_place[(..., *place)], rows)
        padded[:, :, *where] += part.reshape(dy.shape[0], channels, *counts)
    return padded[over.input_region(spatial)]


def _conv_input_gradient(dy: Any, w: Any, *, groups: int, layout: str, shape: Extents, **attrs: Any) -> Any:
    spatial = shape[1:-1] if layout == "nhwc" else shape[2:]
    return from_channels_first(
        _scatter_product(to_channels_first(dy, layout), w, groups, windows_from_attrs(attrs, w.shape[2:]), spatial),
        layout,
    )


def _conv_weight_gradient(dy: Any, x: Any, *, groups: int, layout: str, shape: Extents, **attrs: Any) -> Any:
    over, x, dy = windows_from_attrs(attrs, shape[2:]), to_channels_first(x, layout), to_channels_first(dy, layout)
    counts = dy.shape[2:]
    padded, rows = over.pad_input(x, counts), _split_groups(dy, groups)
    dw: Any = np.zeros(shape, x.dtype)
    for place, where in over.taps(counts):
        products = np.matmul(rows, np.swapaxes(_split_groups(padded[:, :, *where], groups), -1, -2))
        dw[(..., *place)] = products.sum(0).reshape(shape[:2])
    return dw


def _shared_attrs(node: Node) -> dict[str, Attr]:
    """Return the attributes shared by a convolution and its gradients."""
    return {key: node.attrs[key] for key in SHARED_ATTRS}


def _bias_gradient(emit: Emit, node: Node, dy: Value) -> list[Value | None]:
    """Return the gradient of the third input, if the node has a third input."""
    if len(node.inputs) < 3:
        return []
    rank = len(spec_of(dy).shape)
    kept = rank - 1 if is_channels_last(node.attrs) else 1
    axes = tuple(axis for axis in range(rank) if axis != kept)
    return [None if node.inputs[2] is None else emit("nn.sum", dy, axes=axes)]


def _conv_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    dy, x, w, attrs = only_gradient(grads), operand(node, 0), operand(node, 1), _shared_attrs(node)
    return [
        emit("nn.conv_input_gradient", dy, w, shape=spec_of(x).shape, **attrs),
        emit("nn.conv_weight_gradient", dy, x, shape=spec_of(w).shape, **attrs),
        *_bias_gradient(emit, node, dy),
    ]


def _input_gradient_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return the gradients of dx = conv_input_gradient(dy, w): the gradient g of dx takes the place of x."""
    g, dy, w, attrs = only_gradient(grads), operand(node, 0), operand(node, 1), _shared_attrs(node)
    return [
        emit("nn.conv", g, w, **attrs),
        emit("nn.conv_weight_gradient", dy, g, shape=spec_of(w).shape, **attrs),
        *_bias_gradient(emit, node, g),
    ]


def _weight_gradient_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return the gradients of dw = conv_weight_gradient(dy, x): the gradient g of dw takes the place of w."""
    g, dy, x, attrs = only_gradient(grads), operand(node, 0), operand(node, 1), _shared_attrs(node)
    return [
        emit("nn.conv", x, g, **attrs),
        emit("nn.conv_input_gradient", dy, g, shape=spec_of(x).shape, **attrs),
    ]


def _transposed_extents(over: Windows, counts: Sequence[int], extra: Sequence[int]) -> Extents:
    """Return the extents covered by `counts` windows, without padding, plus `extra`."""
    sides = zip(counts, over.strides, over.spans, over.begins, over.ends, extra, strict=True)
    return tuple((n - 1) * s + span - begin - end + e for n, s, span, begin, end, e in sides)


def _conv_transpose_shape(x: TensorSpec, w: TensorSpec, attrs: Attrs) -> Extents:
    """Return the shape with x as its convolution with w: the output shape of a transposed convolution."""
    samples, channels, counts = image_dims(x, attrs, "x")
    groups = _groups(attrs)
    if len(w.shape) != len(x.shape) or w.shape[0] != channels or channels % groups:
        raise SpecError(
            f"x is {x} with {channels} channels in {groups} groups, w is {w}: w must be "
            "[channels, outputs / groups, *kernel]"
        )
    over = windows_from_attrs(attrs, w.shape[2:])
    extra = tuple(pick(attrs, "output_pads")) or (0,) * len(counts)
    if len(extra) != len(counts) or any(not 0 <= e < s for e, s in zip(extra, over.strides, strict=False)):
        raise SpecError(
            f"output_pads = {list(extra)} must be {len(counts)} integers, each at least 0 and less than the stride"
        )
    spatial = _transposed_extents(over, counts, extra)
    if any(extent < 1 for extent in spatial):
        raise SpecError(f"x is {x} and w is {w}: with pads {[*over.begins, *over.ends]} the output is empty")
    return image_shape(samples, w.shape[1] * groups, spatial, attrs)


def _conv_transpose_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype = require_same_type(specs, FLOATS)
    x, w = require_present(specs[0], "x"), require_present(specs[1], "w")
    y = TensorSpec(dtype, _conv_transpose_shape(x, w, attrs))
    if conv_shape(y, w, attrs, ("the output", "w")) != x.shape:
        raise SpecError(f"x is {x} and w is {w}: the output {y} is smaller than the kernel")
    _check_bias(specs, image_dims(y, attrs, "the output")[1])
    return (y,)


def _conv_transpose(x: Any, w: Any, b: Any = None, **attrs: Any) -> Any:
    groups, layout = attrs["groups"], attrs["layout"]
    over, rows = windows_from_attrs(attrs, w.shape[2:]), to_channels_first(x, layout)
    extra = attrs["output_pads"] or (0,) * len(over.kernel)
    y = _scatter_product(rows, w, groups, over, _transposed_extents(over, rows.shape[2:], extra))
    return from_channels_first(_with_bias(y, b), layout)


def _conv_slices(node: Node) -> SliceMaps:
    over = windows_from_attrs(node.attrs, shape_of(node.inputs[1])[2:])
    return convolution_slices(node, over, "groups", channels_last=is_channels_last(node.attrs))


def convolution_slices(node: Node, over: Windows | None, groups: str, *, channels_last: bool = False) -> SliceMaps:
    """Return the slice maps of (x, w, bias?) -> y: along samples, positions, and output channels with their filters.

    `over` is None for windows that allow no slices of positions, and `groups` the attribute with the number of groups.
    """
    x, filters = shape_of(node.inputs[0]), [None if value is None else 0 for value in node.inputs[1:]]
    channels, count = len(x) - 1 if channels_last else 1, node.attrs.get(groups, 1)
    maps = same_axes(node, (0,), whole=range(1, len(node.inputs)))
    maps += window_axes(node, over, 1 if channels_last else 2)
    if count == 1:
        return maps + slice_map(node, [None, *filters], [channels])
    if count != x[channels] or count != shape_of(node.inputs[1])[0]:
        return maps
    attrs = lambda given, begin, end: {**given, groups: end - begin}  # noqa: E731
    return maps + slice_map(node, [channels, *filters], [channels], attrs=attrs)


COMMANDS: tuple[Command, ...] = (
    Command(
        "conv",
        "Convolution over 1 to 3 spatial axes: x [N, C, *spatial], or [N, *spatial, C] in the layout nhwc, with "
        "w [O, C / groups, *kernel] and b [O]. `pads` are all begins, then all ends.",
        _conv_infer,
        _conv,
        _conv_rule,
        dict(SHARED_ATTRS),
        inputs=(2, 3),
        slices=_conv_slices,
    ),
    Command(
        "conv_input_gradient",
        "The gradient of nn.conv by x, which has the shape `shape`: (dy, w) -> dx.",
        _infer_gradient("x", "w"),
        _conv_input_gradient,
        _input_gradient_rule,
        {**SHARED_ATTRS, "shape": REQUIRED_INTEGERS},
        inputs=(2, 2),
        slices=leading_axis(1, attrs=resize("shape")),
    ),
    Command(
        "conv_weight_gradient",
        "The gradient of nn.conv by w, which has the shape `shape`: (dy, x) -> dw.",
        _infer_gradient("w", "x"),
        _conv_weight_gradient,
        _weight_gradient_rule,
        {**SHARED_ATTRS, "shape": REQUIRED_INTEGERS},
        inputs=(2, 2),
        slices=leading_axis(sums=(0,)),
    ),
    Command(
        "conv_transpose",
        "Transposed convolution with w [C, O / groups, *kernel]: x [N, C, *spatial] -> [N, O, *spatial]. "
        "`output_pads` are added at the ends.",
        _conv_transpose_infer,
        _conv_transpose,
        _input_gradient_rule,
        {**SHARED_ATTRS, "output_pads": ()},
        inputs=(2, 3),
        slices=leading_axis(1, 2),
    ),
)
