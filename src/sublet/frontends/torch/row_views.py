"""Batch-axis rules of ATen operators without computation (views, copies, concatenation) and of constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from sublet.frontends.torch.rows import Call, Rows, Rule, State, axes_of, shape_of
from sublet.ops.aten import Strided


def _same(call: Call) -> State:
    """Keep the batch axis."""
    return call.any_rows("self")


def _alike(call: Call) -> State:
    """Keep the batch axis of a tensor filled with one number in the extents of an operand."""
    batch = call.any_rows("self")
    return batch and replace(batch, numbers=False)


def _viewed(call: Call) -> State:
    """Return the axis of the new extents with the samples; a view never moves an element.

        (B, heads, n, n) -> (B * heads, n, n)   axis 0, inner = heads
        (2, B, n)        -> (2 * B, n)          axis 0, outer = 2

    The elements are `before` groups, each with all samples one after another. The axes before the new batch axis and
    `outer` together make `before` groups too.
    """
    batch = call.any_rows("self")
    if batch is None:
        return None
    shape, sizes = call.shape("self"), shape_of(call.node)
    before = prod(shape[: batch.axis]) * batch.outer
    axis = next((i for i in range(len(sizes)) if prod(sizes[: i + 1]) > before), None)
    if axis is None or before % prod(sizes[:axis]):
        raise call.refused()
    outer = before // prod(sizes[:axis])
    each, rest = divmod(sizes[axis], outer * call.counts.samples)
    call.demand(not rest and not (batch.numbers and outer * each > 1))
    name = "shape" if call.has("shape") else "size"
    call.change(name, call.fewer_of(call[name], axis))
    return replace(batch, axis=axis, each=each, outer=outer)


def _strided(call: Call) -> State:
    """Return the batch axis of an `as_strided` view keeping each sample in place.

    The samples must lie one after another in memory, without gaps.
    """
    batch = call.rows("self")
    if batch is None:
        return None
    whole, part, shape = call["self"].meta["val"], call.made("self"), call.shape("self")
    block = prod(shape) // call.counts.samples
    call.demand(not call["storage_offset"] and batch.each == batch.outer == 1 and whole.stride(batch.axis) == block)
    inner = [axis for axis, extent in enumerate(shape) if extent > 1 and axis != batch.axis]
    call.demand(Strided(tuple(shape), tuple(whole.stride())).is_dense)
    call.demand(all(whole.stride(axis) == part.stride(axis) for axis in inner))
    sizes, strides = call["size"], call["stride"]
    axes = [i for i, (n, stride) in enumerate(zip(sizes, strides, strict=True)) if n > 1 and stride >= block]
    call.demand(len(axes) == 1 and (sizes[axes[0]], strides[axes[0]]) == (call.counts.samples, block))
    reach = sum((n - 1) * stride for i, (n, stride) in enumerate(zip(sizes, strides, strict=True)) if i != axes[0])
    call.demand(reach < block)
    call.change("size", call.fewer_of(sizes, axes[0]))
    return Rows(axes[0])


def _expanded(call: Call) -> State:
    """Keep the batch axis behind new axes; an unbatched operand expanded to all samples becomes batched."""
    batch, sizes = call.any_rows("self"), shape_of(call.node)
    if batch is not None:
        batch = replace(batch, axis=batch.axis + len(sizes) - len(call.shape("self")))
        call.change("size", call.fewer_of(call["size"], batch.axis))
        return batch
    axis = call.first(sizes)
    before = len(sizes) - len(call.shape("self"))
    if axis is None or (axis >= before and call.shape("self")[axis - before] != 1):
        return None
    call.change("size", call.fewer_of(call["size"], axis))
    return Rows(axis)


def _repeated(call: Call) -> State:
    """Keep the batch axis if not repeated; an unbatched operand repeated once a sample becomes batched."""
    batch, sizes, times = call.rows("self"), shape_of(call.node), call["repeats"]
    before = len(times) - len(call.shape("self"))
    if batch is not None:
        call.demand(times[batch.axis + before] == 1)
        return replace(batch, axis=batch.axis + before)
    axis = call.first(sizes)
    if axis is None or times[axis] != call.counts.samples:
        return None
    call.change("repeats", call.fewer_of(times, axis))
    return Rows(axis)


def _permuted(call: Call) -> State:
    """Move the batch axis with the permutation."""
    batch, rank = call.any_rows("self"), len(shape_of(call.node))
    order = [axis % rank for axis in call["dims"]]
    return batch and replace(batch, axis=order.index(batch.axis))


def _transposed(call: Call) -> State:
    """Swap the batch axis with the other axis of the transposition."""
    batch, rank = call.any_rows("self"), len(shape_of(call.node))
    if batch is None:
        return None
    one, other = (call.axis("dim0", rank), call.axis("dim1", rank)) if call.has("dim0") else (0, rank - 1)
    return replace(batch, axis={one: other, other: one}.get(batch.axis, batch.axis))


def _unsqueezed(call: Call) -> State:
    """Count the new axis before the batch axis."""
    batch, axis = call.any_rows("self"), call.axis("dim", len(shape_of(call.node)))
    return batch and replace(batch, axis=batch.axis + (axis <= batch.axis))


def _squeezed(call: Call) -> State:
    """Count out the removed axes before the batch axis."""
    batch = call.any_rows("self")
    if batch is None:
        return None
    shape = call.shape("self")
    axes = range(len(shape)) if not call.has("dim") else axes_of(call["dim"], len(shape))
    return replace(batch, axis=batch.axis - sum(shape[axis] == 1 and axis < batch.axis for axis in set(axes)))


def _selected(call: Call) -> State:
    """Count out the selected axis; the batch axis must not be selected."""
    batch, axis = call.any_rows("self"), call.axis("dim", len(call.shape("self")))
    if batch is None:
        return None
    call.demand(axis != batch.axis)
    return replace(batch, axis=batch.axis - (axis < batch.axis))


def _sliced(call: Call) -> State:
    """Keep the batch axis; the batch axis may only be sliced in full."""
    batch, axis = call.any_rows("self"), call.axis("dim", len(call.shape("self")))
    call.demand(batch is None or axis != batch.axis or shape_of(call.node) == call.shape("self"))
    return batch


def _placed(call: Call) -> State:
    """Return the batch axis of a tensor with a slice replaced by a second tensor.

    The slice must not cut the batch axis.
    """
    batch = call.elementwise_axis([call["self"], call["src"]], len(shape_of(call.node)))
    call.require_beside(batch, shape_of(call.node))
    return batch


def _parted(call: Call) -> Any:
    """Keep the batch axis in all parts of a split along another axis."""
    batch = call.any_rows("self")
    call.require_beside(batch, call.shape("self"))
    return [batch] * len(call.node.meta["val"])


def _unbound(call: Call) -> Any:
    """Return the batch axis of each slice, as for `select`."""
    return [_selected(call)] * len(call.node.meta["val"])


def _joined(call: Call) -> State:
    """Keep the common batch axis of tensors concatenated along another axis."""
    states = {call.usable(each) for each in call["tensors"]}
    call.demand(len(states) == 1)
    (batch,) = states
    call.require_beside(batch, shape_of(call.node))
    return batch


def _made(call: Call) -> State:
    """Return the guessed batch axis of a tensor of one number."""
    axis = call.first(call["size"])
    if axis is None:
        return None
    call.change("size", call.fewer_of(call["size"], axis))
    return Rows(axis)


def _counted(call: Call) -> State:
    """Return the guessed batch axis of arange(B), with sample indices as elements."""
    begin, step = (call[name] if call.has(name) else other for name, other in (("start", 0), ("step", 1)))
    if (begin, step) != (0, 1) or not isinstance(call["end"], int) or call.first(shape_of(call.node)) is None:
        return None
    call.change("end", call.counts.fewer)
    return Rows(0, numbers=True)


VIEWS: dict[str, Rule] = {
    **dict.fromkeys(("alias.default", "clone.default", "detach.default", "_to_copy.default"), _same),
    **dict.fromkeys(("lift_fresh_copy.default", "contiguous.default"), _same),
    **dict.fromkeys(("zeros_like.default", "ones_like.default", "full_like.default", "empty_like.default"), _alike),
    **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default"), _viewed),
    "as_strided.default": _strided,
    "expand.default": _expanded,
    "repeat.default": _repeated,
    "permute.default": _permuted,
    **dict.fromkeys(("transpose.int", "t.default"), _transposed),
    "unsqueeze.default": _unsqueezed,
    **dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims"), _squeezed),
    "select.int": _selected,
    "slice.Tensor": _sliced,
    "slice_scatter.default": _placed,
    **dict.fromkeys(("split.Tensor", "split_with_sizes.default"), _parted),
    "unbind.int": _unbound,
    "cat.default": _joined,
    **dict.fromkeys(("full.default", "zeros.default", "ones.default"), _made),
    **dict.fromkeys(("new_full.default", "new_zeros.default", "new_ones.default"), _made),
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _counted),
}
"""Rules by operator."""
