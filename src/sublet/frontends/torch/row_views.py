"""Rules of ATen operators that compute nothing, and of constants: where samples lie in what one gives."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from sublet.frontends.torch.rows import Call, Rows, Rule, State, axes_of, shape_of
from sublet.ops.aten import Strided


def _same(call: Call) -> State:
    return call.any_rows("self")


def _alike(call: Call) -> State:
    """A tensor of one number with the extents of another."""
    found = call.any_rows("self")
    return found and replace(found, numbers=False)


def _viewed(call: Call) -> State:
    """Samples stay where they are, on the axis of the new extents that they lie on.

        (B, heads, n, n) -> (B * heads, n, n)   axis 0, each = heads
        (2, B, n)        -> (2 * B, n)          axis 0, outer = 2

    The elements are `before` groups of all samples one after another: the axes before the new one make as many, times
    `outer`.
    """
    found = call.any_rows("self")
    if found is None:
        return None
    shape, sizes = call.shape("self"), shape_of(call.node)
    before = prod(shape[: found.axis]) * found.outer
    axis = next((i for i in range(len(sizes)) if prod(sizes[: i + 1]) > before), None)
    if axis is None or before % prod(sizes[:axis]):
        raise call.refused()
    outer = before // prod(sizes[:axis])
    each, rest = divmod(sizes[axis], outer * call.counts.samples)
    call.demand(not rest and not (found.numbers and outer * each > 1))
    name = "shape" if call.has("shape") else "size"
    call.change(name, call.fewer_of(call[name], axis))
    return replace(found, axis=axis, each=each, outer=outer)


def _strided(call: Call) -> State:
    """The same elements of each sample, where samples lie one after another in memory, without gaps."""
    found = call.rows("self")
    if found is None:
        return None
    whole, part, shape = call["self"].meta["val"], call.made("self"), call.shape("self")
    block = prod(shape) // call.counts.samples
    call.demand(not call["storage_offset"] and found.each == found.outer == 1 and whole.stride(found.axis) == block)
    inner = [axis for axis, extent in enumerate(shape) if extent > 1 and axis != found.axis]
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
    found, sizes = call.any_rows("self"), shape_of(call.node)
    if found is not None:
        found = replace(found, axis=found.axis + len(sizes) - len(call.shape("self")))
        call.change("size", call.fewer_of(call["size"], found.axis))
        return found
    axis = call.first(sizes)
    before = len(sizes) - len(call.shape("self"))
    if axis is None or (axis >= before and call.shape("self")[axis - before] != 1):
        return None
    call.change("size", call.fewer_of(call["size"], axis))
    return Rows(axis)


def _repeated(call: Call) -> State:
    found, sizes, times = call.rows("self"), shape_of(call.node), call["repeats"]
    before = len(times) - len(call.shape("self"))
    if found is not None:
        call.demand(times[found.axis + before] == 1)
        return replace(found, axis=found.axis + before)
    axis = call.first(sizes)
    if axis is None or times[axis] != call.counts.samples:
        return None
    call.change("repeats", call.fewer_of(times, axis))
    return Rows(axis)


def _permuted(call: Call) -> State:
    found, rank = call.any_rows("self"), len(shape_of(call.node))
    order = [axis % rank for axis in call["dims"]]
    return found and replace(found, axis=order.index(found.axis))


def _transposed(call: Call) -> State:
    found, rank = call.any_rows("self"), len(shape_of(call.node))
    if found is None:
        return None
    one, other = (call.axis("dim0", rank), call.axis("dim1", rank)) if call.has("dim0") else (0, rank - 1)
    return replace(found, axis={one: other, other: one}.get(found.axis, found.axis))


def _unsqueezed(call: Call) -> State:
    found, axis = call.any_rows("self"), call.axis("dim", len(shape_of(call.node)))
    return found and replace(found, axis=found.axis + (axis <= found.axis))


def _squeezed(call: Call) -> State:
    found = call.any_rows("self")
    if found is None:
        return None
    shape = call.shape("self")
    axes = range(len(shape)) if not call.has("dim") else axes_of(call["dim"], len(shape))
    return replace(found, axis=found.axis - sum(shape[axis] == 1 and axis < found.axis for axis in set(axes)))


def _selected(call: Call) -> State:
    found, axis = call.any_rows("self"), call.axis("dim", len(call.shape("self")))
    if found is None:
        return None
    call.demand(axis != found.axis)
    return replace(found, axis=found.axis - (axis < found.axis))


def _sliced(call: Call) -> State:
    found, axis = call.any_rows("self"), call.axis("dim", len(call.shape("self")))
    call.demand(found is None or axis != found.axis or shape_of(call.node) == call.shape("self"))
    return found


def _placed(call: Call) -> State:
    """A slice of one tensor replaced by another."""
    found = call.aligned([call["self"], call["src"]], len(shape_of(call.node)))
    call.require_beside(found, shape_of(call.node))
    return found


def _parted(call: Call) -> Any:
    found = call.any_rows("self")
    call.require_beside(found, call.shape("self"))
    return [found] * len(call.node.meta["val"])


def _unbound(call: Call) -> Any:
    return [_selected(call)] * len(call.node.meta["val"])


def _joined(call: Call) -> State:
    states = {call.usable(each) for each in call["tensors"]}
    call.demand(len(states) == 1)
    (found,) = states
    call.require_beside(found, shape_of(call.node))
    return found


def _made(call: Call) -> State:
    """A tensor of one number."""
    axis = call.first(call["size"])
    if axis is None:
        return None
    call.change("size", call.fewer_of(call["size"], axis))
    return Rows(axis)


def _counted(call: Call) -> State:
    """The numbers from 0 on."""
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
"""By operator."""
