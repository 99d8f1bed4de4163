"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import Command, overwrite_unless_repeated, pick, spec_of
from sublet.ops.nn.rules import (
    FLOATS,
    broadcast_shape,
    only_gradient,
    operand,
    require_present,
    require_same_type,
    reshape_to,
    sum_to_shape,
)
from sublet.ops.op import Attrs, Emit, Grads, Specs
from sublet.ops.slice_maps import SliceMaps, rows_of_first, same_axes, shape_of, slice_map

FACTOR_NAMES = ("a", "b")


def _factor_shape(spec: TensorSpec, transposed: int, name: str) -> tuple[int, int]:
    """Return rows and columns of a factor after transposition."""
    if len(spec.shape) < 2:
        raise SpecError(f"{name} is {spec}: a factor must have at least two axes. Use nn.reshape.")
    rows, columns = spec.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _product_shape(a: TensorSpec, b: TensorSpec, attrs: Attrs) -> tuple[int, int]:
    """Return rows and columns of the product over the last two axes."""
    (rows, inner), (other, columns) = (
        _factor_shape(spec, pick(attrs, f"transpose_{name}"), name)
        for spec, name in zip((a, b), FACTOR_NAMES, strict=True)
    )
    if inner != other:
        flags = [f" (transpose_{name}=1)" if pick(attrs, f"transpose_{name}") else "" for name in FACTOR_NAMES]
        raise SpecError(
            f"a is {a}{flags[0]} and b is {b}{flags[1]}: a has {inner} columns and b {other} rows, expected equal"
        )
    return rows, columns


def _matmul_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype = require_same_type(specs, FLOATS)
    a, b = (require_present(spec, name) for spec, name in zip(specs, FACTOR_NAMES, strict=True))
    ends = _product_shape(a, b, attrs)
    try:
        batch = broadcast_shape([TensorSpec(dtype, spec.shape[:-2]) for spec in (a, b)])
    except SpecError:
        raise SpecError(f"a is {a} and b is {b}: their axes before the last two cannot be broadcast together") from None
    return (TensorSpec(dtype, (*batch, *ends)),)


def _matrix(x: Any, transposed: int) -> Any:
    return np.swapaxes(x, -1, -2) if transposed else x


def _matmul(a: Any, b: Any, transpose_a: int, transpose_b: int) -> Any:
    return np.matmul(_matrix(a, transpose_a), _matrix(b, transpose_b))


def flatten_to_rows(emit: Emit, x: Value) -> Value:
    """Return a view with all axes but the last merged: a matrix over the same bytes."""
    shape = spec_of(x).shape
    return reshape_to(emit, x, (prod(shape[:-1]), shape[-1]))


def _matmul_gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return dA = dY B^T and dB = A^T dY, transposed for a transposed factor.

    The gradient of a matrix multiplied by a whole batch is one product over all rows of the batch.
    """
    dy, a, b = only_gradient(grads), operand(node, 0), operand(node, 1)
    da = _gradient_of_a(emit, node, dy, b)
    if len(spec_of(b).shape) == 2 and not node.attrs["transpose_a"]:
        a, dy = flatten_to_rows(emit, a), flatten_to_rows(emit, dy)
    db = _gradient_of_b(emit, node, dy, a)
    return [sum_to_shape(emit, da, operand(node, 0)), sum_to_shape(emit, db, operand(node, 1))]


def _gradient_of_a(emit: Emit, node: Node, dy: Value, b: Value, **more: float) -> Value:
    ta, tb = pick(node.attrs, "transpose_a"), pick(node.attrs, "transpose_b")
    if ta:
        return emit(node.op, b, dy, transpose_a=tb, transpose_b=1, **more)
    return emit(node.op, dy, b, transpose_b=1 - tb, **more)


def _gradient_of_b(emit: Emit, node: Node, dy: Value, a: Value, **more: float) -> Value:
    ta, tb = pick(node.attrs, "transpose_a"), pick(node.attrs, "transpose_b")
    if tb:
        return emit(node.op, dy, a, transpose_a=1, transpose_b=ta, **more)
    return emit(node.op, a, dy, transpose_a=1 - ta, **more)


def _gemm_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype = require_same_type(specs, FLOATS)
    a, b = (require_present(spec, name) for spec, name in zip(specs, FACTOR_NAMES, strict=False))
    for spec, name in ((a, "a"), (b, "b")):
        if len(spec.shape) != 2:
            raise SpecError(f"{name} is {spec}: nn.gemm needs two axes. Use nn.matmul for more.")
    y = TensorSpec(dtype, _product_shape(a, b, attrs))
    c = specs[2] if len(specs) > 2 else None
    if c is not None and (len(c.shape) > 2 or broadcast_shape([y, c]) != y.shape):
        raise SpecError(f"c is {c}, which cannot be broadcast to the product, {y}")
    return (y,)


def _gemm(a: Any, b: Any, c: Any = None, *, alpha: float, beta: float, transpose_a: int, transpose_b: int) -> Any:
    product = a.dtype.type(alpha) * _matmul(a, b, transpose_a, transpose_b)
    return product if c is None else product + a.dtype.type(beta) * c


def _gemm_gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    dy, a, b = only_gradient(grads), operand(node, 0), operand(node, 1)
    alpha = pick(node.attrs, "alpha")
    da, db = _gradient_of_a(emit, node, dy, b, alpha=alpha), _gradient_of_b(emit, node, dy, a, alpha=alpha)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return [da, db, None][: len(node.inputs)]
    dc, beta = sum_to_shape(emit, dy, operand(node, 2)), pick(node.attrs, "beta")
    return [da, db, dc if beta == 1 else emit("nn.mul", dc, emit.constant(beta, dc))]


def _linear_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dtype = require_same_type(specs, FLOATS)
    x, w = require_present(specs[0], "x"), require_present(specs[1], "w")
    if len(w.shape) != 2:
        raise SpecError(f"w is {w}, expected two axes: [outputs, inputs]")
    if not x.shape or x.shape[-1] != w.shape[1]:
        raise SpecError(f"x is {x} and w is {w}: the last axis of x must be {w.shape[1]}, as w is [outputs, inputs]")
    b = specs[2] if len(specs) > 2 else None
    if b is not None and b.shape != w.shape[:1]:
        raise SpecError(f"b is {b}, but w is {w}: b must have the shape [{w.shape[0]}]")
    return (TensorSpec(dtype, (*x.shape[:-1], w.shape[0])),)


def _linear(x: Any, w: Any, b: Any = None) -> Any:
    y = np.matmul(x, w.T)
    return y if b is None else y + b


def _linear_gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return the gradients, each as one matrix product, for any number of axes of x."""
    x, w = operand(node, 0), operand(node, 1)
    dy, shape = flatten_to_rows(emit, only_gradient(grads)), spec_of(x).shape
    gradients = [
        reshape_to(emit, emit("nn.matmul", dy, w), shape),
        emit("nn.matmul", dy, flatten_to_rows(emit, x), transpose_a=1),
    ]
    if len(node.inputs) < 3:
        return gradients
    b = node.inputs[2]
    return [*gradients, None if b is None else sum_to_shape(emit, dy, b)]


def _matmul_slices(node: Node) -> SliceMaps:
    """Return the maps along rows of a, or a batch axis of both; for matrices also along summed rows and rows of a^T."""
    ranks, transposed = [len(shape_of(value)) for value in node.inputs], pick(node.attrs, "transpose_a")
    if ranks[0] == ranks[1] > 2:
        return same_axes(node, (0,))
    if ranks[1] != 2:
        return ()
    if not transposed:
        return rows_of_first(node)
    if ranks[0] > 2:
        return same_axes(node, (0,), whole=(1,))
    return _summed_rows(node) + slice_map(node, [1, None], [0])


def _summed_rows(node: Node) -> SliceMaps:
    """Return the map along the summed rows of a product, if both factors have the rows first."""
    rows_first = pick(node.attrs, "transpose_a") and not pick(node.attrs, "transpose_b")
    return same_axes(node, (0,), whole=(2,), sums=(0,), addend=2) if rows_first else ()


_FLAGS = {"transpose_a": False, "transpose_b": False}

COMMANDS: tuple[Command, ...] = (
    Command(
        "matmul",
        "The product of matrices a [..., n, k] and b [..., k, m], the axes before broadcast together.",
        _matmul_infer,
        _matmul,
        _matmul_gradient,
        {**_FLAGS},
        inputs=(2, 2),
        slices=_matmul_slices,
    ),
    Command(
        "gemm",
        "alpha a b + beta c, for matrices and a c that can be broadcast to their product.",
        _gemm_infer,
        _gemm,
        _gemm_gradient,
        {"alpha": 1.0, "beta": 1.0, **_FLAGS},
        inputs=(2, 3),
        inplace=overwrite_unless_repeated((0, 2)),
        slices=_summed_rows,
    ),
    Command(
        "linear",
        "x w^T + b: x [..., inputs], w [outputs, inputs], b [outputs].",
        _linear_infer,
        _linear,
        _linear_gradient,
        inputs=(2, 3),
        slices=rows_of_first,
    ),
)
