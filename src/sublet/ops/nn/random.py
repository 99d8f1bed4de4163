"""Random numbers and dropout as functions of a key: runs are repeatable, and a mask can be recomputed.

The numbers come from Philox, a generator encrypting a counter [Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"], in the order of the elements. Each place in a program has a separate `stream`; the key changes from
run to run, and from iteration to iteration of a loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Node
from sublet.ops.nn.command import (
    REQUIRED_INTEGERS,
    REQUIRED_NUMBER,
    Command,
    Compute,
    Required,
    pick,
    same_bytes,
)
from sublet.ops.nn.rules import (
    FLOATS,
    INDICES,
    elementwise_gradient,
    parse_dtype,
    require_shape,
    require_type,
    term_by_op,
)
from sublet.ops.op import Attrs, Infer, Share, Specs, overwrite_any
from sublet.ops.slice_maps import leading_axis, no_slices


def generator(key: Any, stream: int) -> np.random.Generator:
    """Return the generator for a key and a stream, at the start of the sequence."""
    words = np.array([int(key) % 2**64, stream % 2**64], np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def draw_type(dtype: DType) -> Any:
    """Return the NumPy type used for drawing numbers of `dtype`."""
    return np.float64 if dtype is DType.F64 else np.float32


def dropout_scale(rate: float) -> float:
    """Return the factor of the elements kept by dropout, 1 / (1 - rate)."""
    return 1 / (1 - rate)


def _require_scalar_key(spec: TensorSpec | None) -> None:
    if require_type(spec, INDICES, "the key").shape:
        raise SpecError(f"the key is {spec}, expected a scalar")


def _draw_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _require_scalar_key(specs[0])
    return (TensorSpec(parse_dtype(pick(attrs, "dtype"), FLOATS), require_shape(pick(attrs, "shape"))),)


def _uniform_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    if not pick(attrs, "low") <= pick(attrs, "high"):
        raise SpecError(f"low = {pick(attrs, 'low')} is above high = {pick(attrs, 'high')}")
    return _draw_infer(specs, attrs)


def _normal_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    if not pick(attrs, "std") >= 0:
        raise SpecError(f"std = {pick(attrs, 'std')} is below 0")
    return _draw_infer(specs, attrs)


def _uniform(key: Any, shape: tuple[int, ...], dtype: str, low: float, high: float, stream: int) -> Any:
    kind = draw_type(parse_dtype(dtype))
    return generator(key, stream).random(shape, kind) * kind(high - low) + kind(low)


def _normal(key: Any, shape: tuple[int, ...], dtype: str, mean: float, std: float, stream: int) -> Any:
    kind = draw_type(parse_dtype(dtype))
    return generator(key, stream).standard_normal(shape, kind) * kind(std) + kind(mean)


def _dropout_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], FLOATS)
    _require_scalar_key(specs[1])
    if not 0 <= pick(attrs, "rate") < 1:
        raise SpecError(
            f"rate = {pick(attrs, 'rate')} must be at least 0 and below 1: the share of elements that become 0"
        )
    return (x,)


def _dropout(x: Any, key: Any, rate: float, stream: int) -> Any:
    kept = generator(key, stream).random(x.shape, np.float32) >= np.float32(rate)
    return np.where(kept, x * x.dtype.type(dropout_scale(rate)), x.dtype.type(0))


def _dropout_views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if node.attrs["rate"] == 0 else ()


def _dropout_command(name: str, text: str, gradient: str) -> Command:
    """Return a dropout command; the gradient drops the same elements, with a recomputed mask."""
    return Command(
        name,
        text,
        _dropout_infer,
        _dropout,
        elementwise_gradient(term_by_op(gradient, 1), None),
        {"rate": REQUIRED_NUMBER, "stream": 0},
        inputs=(2, 2),
        views=_dropout_views,
        inplace=overwrite_any(0),
        slices=leading_axis(1, exact=False) if name == "dropout" else no_slices,
    )


def _random_command(
    name: str, text: str, infer: Infer, compute: Compute, numbers: dict[str, Attr | Required]
) -> Command:
    attrs = {"shape": REQUIRED_INTEGERS, "dtype": "f32", **numbers, "stream": 0}
    return Command(name, text, infer, compute, attrs=attrs)


COMMANDS = (
    _random_command(
        "random_uniform",
        "Numbers drawn uniformly from [low, high): a function of the key and the stream.",
        _uniform_infer,
        _uniform,
        {"low": 0.0, "high": 1.0},
    ),
    _random_command(
        "random_normal",
        "Numbers drawn from a normal distribution: a function of the key and the stream.",
        _normal_infer,
        _normal,
        {"mean": 0.0, "std": 1.0},
    ),
    _dropout_command(
        "dropout",
        "x with a share `rate` of its elements, drawn by key and stream, set to 0, the rest scaled (Srivastava 2014).",
        "nn.dropout_gradient",
    ),
    _dropout_command(
        "dropout_gradient",
        "The gradient of nn.dropout: dy at the elements not set to 0. The mask is recomputed.",
        "nn.dropout",
    ),
)
