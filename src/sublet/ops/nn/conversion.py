"""Fill, copy, and conversion of types and of the order of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import (
    REQUIRED_INTEGER,
    REQUIRED_INTEGERS,
    REQUIRED_NUMBER,
    REQUIRED_TEXT,
    Command,
    pick,
    same_bytes,
    spec_of,
)
from sublet.ops.nn.rules import (
    ANY,
    NUMBERS,
    number_as,
    only_gradient,
    operand,
    parse_dtype,
    require_shape,
    require_type,
)
from sublet.ops.op import Attrs, Emit, Grads, Share, Specs, keeps_element_order, overwrite_any
from sublet.ops.slice_maps import elementwise


def spec_from_attrs(attrs: Attrs) -> TensorSpec:
    """Return the spec given by the attributes `shape` and `dtype`."""
    return TensorSpec(parse_dtype(pick(attrs, "dtype")), require_shape(pick(attrs, "shape")))


def _fill_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    result = spec_from_attrs(attrs)
    number_as(pick(attrs, "value"), result.dtype)
    return (result,)


def _fill(shape: tuple[int, ...], dtype: str, value: float) -> Any:
    named = parse_dtype(dtype)
    return np.full(shape, number_as(value, named), NUMPY[named])


def _undefined_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (spec_from_attrs(attrs),)


def _iota_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype, count = parse_dtype(pick(attrs, "dtype"), NUMBERS), pick(attrs, "count")
    if count < 0:
        raise SpecError(f"count = {count} must be at least 0")
    number_as(max(0, count - 1), dtype)
    return (TensorSpec(dtype, (count,)),)


def _cast_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec(parse_dtype(pick(attrs, "dtype")), require_type(specs[0], ANY).shape),)


def _to_same_type(node: Node) -> bool:
    return spec_of(operand(node, 0)).dtype.text == node.attrs["dtype"]


def _cast_views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if _to_same_type(node) else ()


def _cast_inplace(node: Node) -> tuple[Share, ...]:
    """Return the share for types of equal size: conversion works element by element."""
    return () if _to_same_type(node) else overwrite_any(0)(node)


def _cast_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.cast", only_gradient(grads), dtype=spec_of(operand(node, 0)).dtype.text)]


def _copy_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (require_type(specs[0], ANY),)


def _pass_gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [only_gradient(grads)]


def to_nhwc_axes(rank: int) -> tuple[int, ...]:
    """Return the order of axes for converting [N, C, *spatial] to [N, *spatial, C]."""
    return (0, *range(2, rank), 1)


def to_nchw_axes(rank: int) -> tuple[int, ...]:
    """Return the order of axes for converting [N, *spatial, C] to [N, C, *spatial]."""
    return (0, rank - 1, *range(1, rank - 1))


def _layout_command(name: str, text: str, axes: Callable[[int], tuple[int, ...]], before: str, back: str) -> Command:
    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        x = require_type(specs[0], ANY)
        if len(x.shape) < 3:
            raise SpecError(f"the input is {x}, expected the axes {before}")
        return (TensorSpec(x.dtype, tuple(x.shape[axis] for axis in axes(len(x.shape)))),)

    def views(node: Node) -> tuple[Share, ...]:
        shape = spec_of(operand(node, 0)).shape
        return same_bytes(node) if keeps_element_order(shape, axes(len(shape))) else ()

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        return [emit(back, only_gradient(grads))]

    return Command(name, text, infer, lambda x: x.transpose(axes(x.ndim)), gradient, views=views)


STOP_GRADIENT = "nn.stop_gradient"
"""Differentiation treats the output as a constant."""

OFFLOAD, RELOAD = "nn.offload", "nn.reload"
"""Copies of a tensor to a slower memory, and back."""

COMMANDS = (
    Command(
        "fill",
        "A tensor with one number in all elements.",
        _fill_infer,
        _fill,
        attrs={"shape": REQUIRED_INTEGERS, "dtype": REQUIRED_TEXT, "value": REQUIRED_NUMBER},
        inputs=(0, 0),
    ),
    Command(
        "undefined",
        "An uninitialized tensor, for a value that is never read. Nothing is written.",
        _undefined_infer,
        lambda shape, dtype: np.zeros(shape, NUMPY[parse_dtype(dtype)]),
        attrs={"shape": REQUIRED_INTEGERS, "dtype": REQUIRED_TEXT},
        inputs=(0, 0),
    ),
    Command(
        "iota",
        "0, 1, 2, ... count - 1.",
        _iota_infer,
        lambda count, dtype: np.arange(count).astype(NUMPY[parse_dtype(dtype)]),
        attrs={"count": REQUIRED_INTEGER, "dtype": "i64"},
        inputs=(0, 0),
    ),
    Command(
        "cast",
        "Conversion to another type. Fractions are truncated; numbers out of its range are unspecified.",
        _cast_infer,
        lambda x, dtype: x.astype(NUMPY[parse_dtype(dtype)]),
        _cast_back,
        {"dtype": REQUIRED_TEXT},
        views=_cast_views,
        inplace=_cast_inplace,
        slices=elementwise,
    ),
    Command(
        "copy",
        "A copy: the same elements in separate bytes.",
        _copy_infer,
        lambda x: x,
        _pass_gradient,
        slices=elementwise,
    ),
    Command(
        OFFLOAD.removeprefix("nn."),
        "The same elements, in the slow memory if the plan has one; only nn.reload reads them.",
        _copy_infer,
        lambda x: x,
        _pass_gradient,
    ),
    Command(
        RELOAD.removeprefix("nn."),
        "The same elements, copied back from the memory of nn.offload.",
        _copy_infer,
        lambda x: x,
        _pass_gradient,
    ),
    Command(
        STOP_GRADIENT.removeprefix("nn."),
        "The same elements, without a gradient.",
        _copy_infer,
        lambda x: x,
        views=same_bytes,
        slices=elementwise,
    ),
    _layout_command("to_nhwc", "[N, C, *spatial] -> [N, *spatial, C].", to_nhwc_axes, "[N, C, *spatial]", "nn.to_nchw"),
    _layout_command("to_nchw", "[N, *spatial, C] -> [N, C, *spatial].", to_nchw_axes, "[N, *spatial, C]", "nn.to_nhwc"),
)
