"""Reads and writes at indices. An index outside the tensor stops the run with an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import (
    REQUIRED_INTEGER,
    REQUIRED_NUMBER,
    Command,
    overwrite_unless_repeated,
    pick,
    spec_of,
)
from sublet.ops.nn.rules import (
    ANY,
    INDICES,
    NUMBERS,
    broadcast_shape,
    normalize_axis,
    number_as,
    only_gradient,
    operand,
    parse_dtype,
    require_equal,
    require_present,
    require_type,
)
from sublet.ops.op import Attrs, Emit, Grads, Share, Specs, block_share, overwrite_any
from sublet.ops.slice_maps import leading_axis


def require_in_range(indices: Any, extent: int) -> Any:
    """Return the indices unchanged. Raises IndexError unless all lie in [0, extent)."""
    if indices.size and not (indices.min() >= 0 and indices.max() < extent):
        raise IndexError(
            f"indices {indices.min()} to {indices.max()} are out of range for an axis of {extent} elements"
        )
    return indices


def _selected_spec(x: TensorSpec, indices: TensorSpec, axis: int) -> TensorSpec:
    return TensorSpec(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _select_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, indices = require_type(specs[0], ANY), require_type(specs[1], INDICES, "indices")
    return (_selected_spec(x, indices, normalize_axis(pick(attrs, "axis"), len(x.shape))),)


def _index_select(x: Any, indices: Any, axis: int) -> Any:
    return np.take(x, require_in_range(indices, x.shape[axis]), axis)


def _select_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    shape = spec_of(operand(node, 0)).shape
    axis = int(pick(node.attrs, "axis")) % len(shape)
    indices = operand(node, 1)
    return [emit("nn.index_select_gradient", only_gradient(grads), indices, axis=axis, extent=shape[axis]), None]


def _summed_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    dy, indices = require_type(specs[0], NUMBERS), require_type(specs[1], INDICES, "indices")
    axis, extent, rank = pick(attrs, "axis"), pick(attrs, "extent"), len(indices.shape)
    if extent < 0:
        raise SpecError(f"extent = {extent} must be at least 0")
    if not 0 <= axis <= len(dy.shape) - rank or dy.shape[axis : axis + rank] != indices.shape:
        raise SpecError(f"{dy} must have the extents of the indices, {indices}, from axis {axis} on")
    return (TensorSpec(dy.dtype, (*dy.shape[:axis], extent, *dy.shape[axis + rank :])),)


def _index_select_gradient(dy: Any, indices: Any, axis: int, extent: int) -> Any:
    """Return zeros, plus every slice of dy at the source index of the slice."""
    before, after = dy.shape[:axis], dy.shape[axis + indices.ndim :]
    y = np.zeros((*before, extent, *after), dy.dtype)
    pieces = dy.reshape(*before, indices.size, *after)
    np.add.at(y, (*(slice(None),) * axis, require_in_range(indices, extent).reshape(-1)), pieces)
    return y


def _summed_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.index_select", only_gradient(grads), operand(node, 1), axis=pick(node.attrs, "axis")), None]


def _embedding_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    w, indices = require_type(specs[0], NUMBERS, "the table"), require_type(specs[1], INDICES, "indices")
    if len(w.shape) != 2:
        raise SpecError(f"the table is {w}, expected two axes: [rows, width]")
    return (_selected_spec(w, indices, 0),)


def _embedding_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    rows = spec_of(operand(node, 0)).shape[0]
    return [emit("nn.embedding_gradient", only_gradient(grads), operand(node, 1), rows=rows), None]


def _embedding_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (table,) = _summed_infer(specs, {"axis": 0, "extent": pick(attrs, "rows")})
    if len(table.shape) != 2:
        raise SpecError(f"{specs[0]} must have one axis more than the indices, {specs[1]}")
    return (table,)


def _embedding_gradient_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.embedding", only_gradient(grads), operand(node, 1)), None]


def _require_same_extents(x: TensorSpec, indices: TensorSpec, axis: int) -> None:
    """Raise SpecError unless both specs have equal extents except along the axis."""
    rank = len(x.shape)
    if len(indices.shape) != rank or any(x.shape[k] != indices.shape[k] for k in range(rank) if k != axis):
        raise SpecError(f"{x} and the indices, {indices}, may only differ along axis {axis}")


def _gather_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, indices = require_type(specs[0], ANY), require_type(specs[1], INDICES, "indices")
    _require_same_extents(x, indices, normalize_axis(pick(attrs, "axis"), len(x.shape)))
    return (TensorSpec(x.dtype, indices.shape),)


def _gather(x: Any, indices: Any, axis: int) -> Any:
    return np.take_along_axis(x, require_in_range(indices, x.shape[axis]), axis)


def _gather_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    x = operand(node, 0)
    zeros = emit.constant(0, x, spec_of(x).shape)
    return [emit("nn.scatter_add", zeros, operand(node, 1), only_gradient(grads), axis=pick(node.attrs, "axis")), None]


def _scatter_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, indices = require_type(specs[0], NUMBERS), require_type(specs[1], INDICES, "indices")
    updates = require_present(specs[2], "updates")
    _require_same_extents(x, indices, normalize_axis(pick(attrs, "axis"), len(x.shape)))
    require_equal(updates, TensorSpec(x.dtype, indices.shape), "updates, and the shape of the indices,")
    return (x,)


def _scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    y = x.copy()
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = require_in_range(indices, x.shape[axis])
    np.add.at(y, tuple(places), updates)
    return y


def _scatter_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    grad = only_gradient(grads)
    return [grad, None, emit("nn.gather", grad, operand(node, 1), axis=pick(node.attrs, "axis"))]


def _one_hot_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    indices, depth = require_type(specs[0], INDICES, "indices"), pick(attrs, "depth")
    if depth < 1:
        raise SpecError(f"depth = {depth} must be a number of classes, at least 1")
    return (TensorSpec(parse_dtype(pick(attrs, "dtype")), (*indices.shape, depth)),)


def _one_hot(indices: Any, depth: int, dtype: str) -> Any:
    kind = NUMPY[parse_dtype(dtype)]
    return (require_in_range(indices, depth)[..., None] == np.arange(depth)).astype(kind)


def _masked_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, mask = require_type(specs[0], ANY), require_type(specs[1], (DType.BOOL,), "the mask")
    if broadcast_shape([x, mask]) != x.shape:
        raise SpecError(f"the mask, {mask}, cannot be broadcast to {x}")
    number_as(pick(attrs, "value"), x.dtype)
    return (x,)


def _masked_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.masked_fill", only_gradient(grads), operand(node, 1), value=0.0), None]


def _row_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    stack, row = require_type(specs[0], ANY, "the stack"), require_type(specs[1], INDICES, "the index")
    if not stack.shape or row.shape:
        raise SpecError(
            f"the stack is {stack} and the index {row}: the stack needs at least one axis, the index must be a scalar"
        )
    return (TensorSpec(stack.dtype, stack.shape[1:]),)


def _row(stack: Any, i: Any) -> Any:
    return stack[int(require_in_range(i, len(stack)))]


def _row_views(node: Node) -> tuple[Share, ...]:
    """Return the share with the row of a constant index."""
    stack, literal = spec_of(operand(node, 0)), operand(node, 1).literal
    if literal is None:
        return ()
    return block_share(0, stack, (1, *stack.shape[1:]), (int(literal[0]), *(0,) * (len(stack.shape) - 1)))


def _row_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    grad, rows = only_gradient(grads), spec_of(operand(node, 0)).shape[0]
    return [emit("nn.index_select_gradient", grad, operand(node, 1), axis=0, extent=rows), None]


COMMANDS = (
    Command(
        "index_select",
        "Elements along an axis, at indices of any shape; the shape of the indices replaces the axis.",
        _select_infer,
        _index_select,
        _select_back,
        {"axis": REQUIRED_INTEGER},
        inputs=(2, 2),
    ),
    Command(
        "index_select_gradient",
        "The gradient of nn.index_select: adds every slice of dy at its source index.",
        _summed_infer,
        _index_select_gradient,
        _summed_back,
        {"axis": REQUIRED_INTEGER, "extent": REQUIRED_INTEGER},
        inputs=(2, 2),
    ),
    Command(
        "embedding",
        "Rows of a table w [rows, width] at indices of any shape.",
        _embedding_infer,
        lambda w, indices: _index_select(w, indices, 0),
        _embedding_back,
        inputs=(2, 2),
        slices=leading_axis(0),
    ),
    Command(
        "embedding_gradient",
        "The gradient of nn.embedding: adds every row of dy to its source row of the table.",
        _embedding_gradient_infer,
        lambda dy, indices, rows: _index_select_gradient(dy, indices, 0, rows),
        _embedding_gradient_back,
        {"rows": REQUIRED_INTEGER},
        inputs=(2, 2),
        slices=leading_axis(sums=(0,)),
    ),
    Command(
        "gather",
        "y[i, j] = x[i, indices[i, j]] for axis 1, and so on: one index for each element of the result.",
        _gather_infer,
        _gather,
        _gather_back,
        {"axis": REQUIRED_INTEGER},
        inputs=(2, 2),
    ),
    Command(
        "scatter_add",
        "x plus every update, added at its index along the axis.",
        _scatter_infer,
        _scatter_add,
        _scatter_back,
        {"axis": REQUIRED_INTEGER},
        inputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 0)),
    ),
    Command(
        "one_hot",
        "1 at the index and 0 elsewhere along a new last axis of `depth` elements.",
        _one_hot_infer,
        _one_hot,
        attrs={"depth": REQUIRED_INTEGER, "dtype": "f32"},
        slices=leading_axis(),
    ),
    Command(
        "masked_fill",
        "x, but `value` where the mask is true.",
        _masked_infer,
        lambda x, mask, value: np.where(mask, np.asarray(value, x.dtype), x),
        _masked_back,
        {"value": REQUIRED_NUMBER},
        inputs=(2, 2),
        inplace=overwrite_any(0),
    ),
    Command(
        "select",
        "stack[i] for an index computed at run time; a view for a constant index.",
        _row_infer,
        _row,
        _row_back,
        inputs=(2, 2),
        views=_row_views,
    ),
)
