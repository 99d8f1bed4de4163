"""The `cache` dialect: attention over caches that grow in place, in buffers with room for the most rows.

    cache.append_rows(buffer, rows, length)   `rows` after the first `length` rows along `axis` of the buffer
    cache.matmul(a, b)                        the matrix product with the first rows of a buffer, without their copy
    cache.reserve(rows)                       a buffer that begins with `rows` along `axis`
    cache.first_rows(buffer)                  the first rows along `axis` of the buffer, without gaps

`growing_caches` writes these in place of ONNX's Concat and of the products that read its result. The number of rows
that a product reads follows from the shapes of the other operand and of the result. Attributes of cache.matmul:

    cache       the position of the buffer: 0 or 1
    axis        the axis of the rows in the buffer
    order       the axes of the buffer that are the rows and columns of each matrix; the others are the batch, in order
    repeats     consecutive matrices of the other operand that meet one matrix of the buffer: heads of one group
    transposed  1 if each matrix of the other operand is transposed first
    alpha       a factor of the result
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.base.errors import SubletError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node
from sublet.ops.op import Append, Op, Share, overwrite_any

APPEND_ROWS, MATMUL = "cache.append_rows", "cache.matmul"
RESERVE, FIRST_ROWS = "cache.reserve", "cache.first_rows"


def _append(node: Node) -> Append | None:
    """Return the rows before and after the node; None where the length is known only in the run."""
    rows, length = node.inputs[1:]
    axis: Any = node.attrs["axis"]
    if rows is None or not isinstance(rows.spec, TensorSpec) or length is None or length.literal is None:
        return None
    before: Any = length.literal[0]
    return Append(axis, before, before + rows.spec.shape[axis])


def _rows_as_view(node: Node) -> tuple[Share, ...]:
    """Return the view of the first rows, if these are the first bytes of the buffer."""
    (buffer,), axis = node.uses, node.attrs["axis"]
    spec: Any = buffer.spec
    return (Share(0, 0),) if all(extent == 1 for extent in spec.shape[:axis]) else ()


OPS: Mapping[str, Op] = {
    APPEND_ROWS: Op(APPEND_ROWS, inplace=overwrite_any(0), appends=_append, inputs=(3, 3), outputs=(1, 1)),
    MATMUL: Op(MATMUL, inputs=(2, 2), outputs=(1, 1)),
    RESERVE: Op(RESERVE, inputs=(1, 1), outputs=(1, 1)),
    FIRST_ROWS: Op(FIRST_ROWS, views=_rows_as_view, inputs=(1, 1), outputs=(1, 1)),
}


def cache_op(name: str) -> Op:
    """Return the record of an op of the dialect. Raises SubletError for an unknown name."""
    if name not in OPS:
        raise SubletError(f"there is no op {name!r}; the dialect has {', '.join(OPS)}")
    return OPS[name]
