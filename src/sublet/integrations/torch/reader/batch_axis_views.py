"""Batch-axis rules of ATen operators without computation (views, copies, concatenation) and of constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.batch_axis import (
    BatchAxis,
    BatchAxisRule,
    BatchedCall,
    OptionalBatchAxis,
    axes_argument,
    node_shape,
)


def _keep_axis(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis."""
    return call.any_axis("self")


def _fill_like(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis of a tensor filled with one number in the extents of an operand."""
    batch = call.any_axis("self")
    return batch and replace(batch, holds_indices=False)


def _view(call: BatchedCall) -> OptionalBatchAxis:
    """Return the axis of the new extents with the samples; a view never moves an element.

        (B, heads, n, n) -> (B * heads, n, n)   axis 0, inner = heads
        (2, B, n)        -> (2 * B, n)          axis 0, outer = 2

    The elements are `before` groups, each with all samples one after another. The axes before the new batch axis and
    `outer` together make `before` groups too.
    """
    batch = call.any_axis("self")
    if batch is None:
        return None
    shape, sizes = call.argument_shape("self"), node_shape(call.node)
    before = prod(shape[: batch.axis]) * batch.outer
    axis = next((i for i in range(len(sizes)) if prod(sizes[: i + 1]) > before), None)
    if axis is None or before % prod(sizes[:axis]):
        raise call.refusal()
    outer = before // prod(sizes[:axis])
    each, rest = divmod(sizes[axis], outer * call.sizes.full)
    call.require(not rest and not (batch.holds_indices and outer * each > 1))
    name = "shape" if call.has_argument("shape") else "size"
    call.change_argument(name, call.smaller_extents(call[name], axis))
    return replace(batch, axis=axis, inner=each, outer=outer)


def _as_strided(call: BatchedCall) -> OptionalBatchAxis:
    """Return the batch axis of an `as_strided` view keeping each sample in place.

    The samples must lie one after another in memory, without gaps.
    """
    batch = call.value_axis("self")
    if batch is None:
        return None
    whole, part, shape = call["self"].meta["val"], call.smaller_argument("self"), call.argument_shape("self")
    block = prod(shape) // call.sizes.full
    call.require(not call["storage_offset"] and batch.inner == batch.outer == 1 and whole.stride(batch.axis) == block)
    inner = [axis for axis, extent in enumerate(shape) if extent > 1 and axis != batch.axis]
    call.require(StridedLayout(tuple(shape), tuple(whole.stride())).is_dense)
    call.require(all(whole.stride(axis) == part.stride(axis) for axis in inner))
    sizes, strides = call["size"], call["stride"]
    axes = [i for i, (n, stride) in enumerate(zip(sizes, strides, strict=True)) if n > 1 and stride >= block]
    call.require(len(axes) == 1 and (sizes[axes[0]], strides[axes[0]]) == (call.sizes.full, block))
    reach = sum((n - 1) * stride for i, (n, stride) in enumerate(zip(sizes, strides, strict=True)) if i != axes[0])
    call.require(reach < block)
    call.change_argument("size", call.smaller_extents(sizes, axes[0]))
    return BatchAxis(axes[0])


def _expand(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis behind new axes; an unbatched operand expanded to all samples becomes batched."""
    batch, sizes = call.any_axis("self"), node_shape(call.node)
    if batch is not None:
        batch = replace(batch, axis=batch.axis + len(sizes) - len(call.argument_shape("self")))
        call.change_argument("size", call.smaller_extents(call["size"], batch.axis))
        return batch
    axis = call.guessed_axis(sizes)
    before = len(sizes) - len(call.argument_shape("self"))
    if axis is None or (axis >= before and call.argument_shape("self")[axis - before] != 1):
        return None
    call.change_argument("size", call.smaller_extents(call["size"], axis))
    return BatchAxis(axis)


def _repeat(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis if not repeated; an unbatched operand repeated once a sample becomes batched."""
    batch, sizes, times = call.value_axis("self"), node_shape(call.node), call["repeats"]
    before = len(times) - len(call.argument_shape("self"))
    if batch is not None:
        call.require(times[batch.axis + before] == 1)
        return replace(batch, axis=batch.axis + before)
    axis = call.guessed_axis(sizes)
    if axis is None or times[axis] != call.sizes.full:
        return None
    call.change_argument("repeats", call.smaller_extents(times, axis))
    return BatchAxis(axis)


def _permute(call: BatchedCall) -> OptionalBatchAxis:
    """Move the batch axis with the permutation."""
    batch, rank = call.any_axis("self"), len(node_shape(call.node))
    order = [axis % rank for axis in call["dims"]]
    return batch and replace(batch, axis=order.index(batch.axis))


def _transpose(call: BatchedCall) -> OptionalBatchAxis:
    """Swap the batch axis with the other axis of the transposition."""
    batch, rank = call.any_axis("self"), len(node_shape(call.node))
    if batch is None:
        return None
    one, other = (
        (call.axis_argument("dim0", rank), call.axis_argument("dim1", rank))
        if call.has_argument("dim0")
        else (0, rank - 1)
    )
    return replace(batch, axis={one: other, other: one}.get(batch.axis, batch.axis))


def _unsqueeze(call: BatchedCall) -> OptionalBatchAxis:
    """Count the new axis before the batch axis."""
    batch, axis = call.any_axis("self"), call.axis_argument("dim", len(node_shape(call.node)))
    return batch and replace(batch, axis=batch.axis + (axis <= batch.axis))


def _squeeze(call: BatchedCall) -> OptionalBatchAxis:
    """Count out the removed axes before the batch axis."""
    batch = call.any_axis("self")
    if batch is None:
        return None
    shape = call.argument_shape("self")
    axes = range(len(shape)) if not call.has_argument("dim") else axes_argument(call["dim"], len(shape))
    return replace(batch, axis=batch.axis - sum(shape[axis] == 1 and axis < batch.axis for axis in set(axes)))


def _select(call: BatchedCall) -> OptionalBatchAxis:
    """Count out the selected axis; the batch axis must not be selected."""
    batch, axis = call.any_axis("self"), call.axis_argument("dim", len(call.argument_shape("self")))
    if batch is None:
        return None
    call.require(axis != batch.axis)
    return replace(batch, axis=batch.axis - (axis < batch.axis))


def _slice(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis; the batch axis may only be sliced in full."""
    batch, axis = call.any_axis("self"), call.axis_argument("dim", len(call.argument_shape("self")))
    call.require(batch is None or axis != batch.axis or node_shape(call.node) == call.argument_shape("self"))
    return batch


def _slice_scatter(call: BatchedCall) -> OptionalBatchAxis:
    """Return the batch axis of a tensor with a slice replaced by a second tensor.

    The slice must not cut the batch axis.
    """
    batch = call.elementwise_axis([call["self"], call["src"]], node_shape(call.node))
    call.require_other_axis(batch, node_shape(call.node))
    return batch


def _split(call: BatchedCall) -> list[OptionalBatchAxis]:
    """Keep the batch axis in all parts of a split along another axis."""
    batch = call.any_axis("self")
    call.require_other_axis(batch, call.argument_shape("self"))
    return [batch] * len(call.node.meta["val"])


def _unbind(call: BatchedCall) -> list[OptionalBatchAxis]:
    """Return the batch axis of each slice, as for `select`."""
    return [_select(call)] * len(call.node.meta["val"])


def _concatenate(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the common batch axis of tensors concatenated along another axis."""
    states = {call.value_axis_of(each) for each in call["tensors"]}
    call.require(len(states) == 1)
    (batch,) = states
    call.require_other_axis(batch, node_shape(call.node))
    return batch


def _fill(call: BatchedCall) -> OptionalBatchAxis:
    """Return the guessed batch axis of a tensor of one number."""
    axis = call.guessed_axis(call["size"])
    if axis is None:
        return None
    call.change_argument("size", call.smaller_extents(call["size"], axis))
    return BatchAxis(axis)


def _arange(call: BatchedCall) -> OptionalBatchAxis:
    """Return the guessed batch axis of arange(B), with sample indices as elements."""
    begin, step = (call[name] if call.has_argument(name) else other for name, other in (("start", 0), ("step", 1)))
    if (begin, step) != (0, 1) or not isinstance(call["end"], int) or call.guessed_axis(node_shape(call.node)) is None:
        return None
    call.change_argument("end", call.sizes.smaller)
    return BatchAxis(0, holds_indices=True)


VIEW_RULES: dict[str, BatchAxisRule] = {
    **dict.fromkeys(("alias.default", "clone.default", "detach.default", "_to_copy.default"), _keep_axis),
    **dict.fromkeys(("lift_fresh_copy.default", "contiguous.default"), _keep_axis),
    **dict.fromkeys(("zeros_like.default", "ones_like.default", "full_like.default", "empty_like.default"), _fill_like),
    **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default"), _view),
    "as_strided.default": _as_strided,
    "expand.default": _expand,
    "repeat.default": _repeat,
    "permute.default": _permute,
    **dict.fromkeys(("transpose.int", "t.default"), _transpose),
    "unsqueeze.default": _unsqueeze,
    **dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims"), _squeeze),
    "select.int": _select,
    "slice.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    **dict.fromkeys(("split.Tensor", "split_with_sizes.default"), _split),
    "unbind.int": _unbind,
    "cat.default": _concatenate,
    **dict.fromkeys(("full.default", "zeros.default", "ones.default"), _fill),
    **dict.fromkeys(("new_full.default", "new_zeros.default", "new_ones.default"), _fill),
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _arange),
}
"""Rules by operator."""
