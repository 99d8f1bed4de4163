"""Kernels of the `cache` dialect, compared with NumPy over whole arrays."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from sublet.base.boxes import Range
from sublet.base.errors import SubletError
from sublet.base.extents import as_extent
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.cache_ops import APPEND_ROWS, MATMUL, cache_op
from sublet.integrations.onnx.kernels.caches import FEW_ROWS, cache_kernel
from sublet.ir.graph import Node, Value
from sublet.ops import Share
from sublet.ops.op import Append

pytest.importorskip("onnxruntime")

ROOM, ROWS, SIZE = 11, 6, 37
"""The size is no multiple of the elements that a compiled product adds at once."""


def node_of(op: str, arrays: list[Any], **attrs: Any) -> Node:
    """A node over arrays; the last is the output."""
    dtypes = {"float32": DType.F32, "float64": DType.F64, "int64": DType.I64}
    values = [Value(f"v{i}", TensorSpec(dtypes[a.dtype.name], a.shape)) for i, a in enumerate(arrays)]
    return Node("node", op, tuple(values[:-1]), tuple(values[-1:]), attrs)


def run(op: str, arrays: list[Any], **attrs: Any) -> None:
    """Compute the node in the arrays."""
    kernel = cache_kernel(node_of(op, arrays, **attrs))
    assert kernel is not None
    kernel.bind(arrays[:-1], arrays[-1:], None)()


def products(count: int, dtype: str) -> Any:
    """Yield the attributes and the operands of products with `count` rows of the other operand."""
    rng = np.random.default_rng(count)
    for order, position, transposed, repeats in product([(2, 3), (3, 2), (1, 3), (3, 1)], (0, 1), (0, 1), (1, 2, 5)):
        axis = min(order)
        shape = [2, 3, 4, SIZE]
        shape[axis] = ROOM
        buffer = rng.standard_normal(shape).astype(dtype)
        rows = np.take(buffer, range(ROWS), axis)
        buffer[(*(slice(None),) * axis, slice(ROWS, None))] = np.nan
        batch = [each for each in range(4) if each not in order]
        matrices = np.repeat(rows.transpose(*batch, *order), repeats, axis=1)
        inner = matrices.shape[-1 if position == 0 else -2]
        sizes = (inner, count) if position == 0 else (count, inner)
        other = rng.standard_normal((*matrices.shape[:2], *(sizes[::-1] if transposed else sizes))).astype(dtype)
        plain = other.swapaxes(-1, -2) if transposed else other
        wanted = 0.5 * (matrices @ plain if position == 0 else plain @ matrices)
        attrs = {"cache": position, "axis": axis, "order": order, "repeats": repeats, "transposed": transposed}
        yield attrs, ([buffer, other] if position == 0 else [other, buffer]), wanted


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, FEW_ROWS, FEW_ROWS + 1])
def test_a_product_reads_the_first_rows_of_a_buffer(count: int, dtype: str) -> None:
    for attrs, operands, wanted in products(count, dtype):
        out = np.full(wanted.shape, 7, dtype)
        before = [operand.copy() for operand in operands]
        run(MATMUL, [*operands, out], **attrs, alpha=0.5)
        assert np.allclose(out, wanted, rtol=1e-4, atol=1e-4), attrs
        assert all(np.array_equal(*each, equal_nan=True) for each in zip(operands, before, strict=True))


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [0, 3, ROOM - 2])
def test_an_append_in_place_equals_an_append_elsewhere(axis: int, dtype: str, length: int) -> None:
    shape, rng = [2, 3, 4, 5], np.random.default_rng(axis)
    shape[axis] = ROOM
    buffer = rng.standard_normal(shape).astype(dtype)
    shape[axis] = 2
    rows, out = rng.standard_normal(shape).astype(dtype), np.zeros_like(buffer)
    before = (slice(None),) * axis
    wanted = buffer.copy()
    wanted[(*before, slice(length, length + 2))] = rows
    run(APPEND_ROWS, [buffer, rows, np.array([length]), out], axis=axis)
    run(APPEND_ROWS, [buffer, rows, np.array([length]), buffer], axis=axis)
    end = (*before, slice(length + 2))
    assert np.array_equal(out[end], wanted[end])
    assert np.array_equal(buffer, wanted)


@pytest.mark.parametrize("length", [-1, ROOM - 1, ROOM + 5])
def test_an_append_beyond_the_room_writes_nothing(length: int) -> None:
    buffer = np.zeros((2, ROOM, 4), np.float32)
    with pytest.raises(IndexError, match="the rows have no room in the cache"):
        run(APPEND_ROWS, [buffer, np.ones((2, 2, 4), np.float32), np.array([length]), buffer], axis=1)
    assert not buffer.any()


def test_facts_of_an_append() -> None:
    past = as_extent(Range("past", 0, 9).dimension)
    buffer, rows = (Value(name, TensorSpec(DType.F32, (2, n, 4))) for name, n in (("buffer", ROOM), ("rows", 2)))
    length = Value("length", TensorSpec(DType.I64, (1,)), (past,))  # type: ignore[arg-type]
    node = Node("n", APPEND_ROWS, (buffer, rows, length), (Value("out", buffer.spec),), {"axis": 1})
    op = cache_op(APPEND_ROWS)
    assert op.inplace(node) == (Share(0, 0),)
    assert op.appends(node) == Append(1, past, past + 2)  # type: ignore[arg-type]
    assert cache_op(MATMUL).appends(node) is None
    with pytest.raises(SubletError, match="there is no op"):
        cache_op("cache.other")
