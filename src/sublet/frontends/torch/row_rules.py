"""Rules of ATen operators: where samples lie in what one gives, if it computes sample by sample.

A rule says that each sample of its operator's results is made of the same sample of its operands, and raises ModelError
where that does not hold. An operator without a rule may only compute what is the same for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from sublet.frontends.torch.rows import Call, Rows, State, shape_of
from sublet.frontends.torch.tensors import torch
from sublet.ops.aten import Strided

Rule = Callable[[Call], Any]


def rows_of(call: Call) -> Any:
    """Where samples lie in what an operator gives: a state, or a list of them for several results."""
    target = call.node.target
    name = str(target).removeprefix("aten.")
    rule = RULES.get(name)
    if rule is not None:
        return rule(call)
    call.demand(not target._schema.is_mutable and torch().Tag.nondeterministic_seeded not in target.tags)
    if all(call.state(node) is None for node in call.node.all_input_nodes):
        return None
    call.demand(torch().Tag.pointwise in target.tags or name in POINTWISE)
    return call.aligned(call.node.all_input_nodes, len(shape_of(call.node)))


def _same(call: Call) -> State:
    return call.any_rows("self")


def _alike(call: Call) -> State:
    """A tensor of one number with the extents of another."""
    found = call.any_rows("self")
    return found and replace(found, numbers=False)


def _viewed(call: Call) -> State:
    """Samples stay on the axis that the elements before them end on: so many lie before, whatever the axes are."""
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
    axes = range(len(shape)) if not call.has("dim") else _axes(call["dim"], len(shape))
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
    call.demand(found is None or call.axis("dim", len(shape_of(call.node))) != found.axis)
    return found


def _parted(call: Call) -> Any:
    found = call.any_rows("self")
    call.demand(found is None or call.axis("dim", len(call.shape("self"))) != found.axis)
    return [found] * len(call.node.meta["val"])


def _joined(call: Call) -> State:
    states = {call.usable(each) for each in call["tensors"]}
    call.demand(len(states) == 1)
    (found,) = states
    call.demand(found is None or call.axis("dim", len(shape_of(call.node))) != found.axis)
    return found


def _made(name: str) -> Rule:
    """A tensor of one number."""

    def made(call: Call) -> State:
        axis = call.first(call[name])
        if axis is None:
            return None
        call.change(name, call.fewer_of(call[name], axis))
        return Rows(axis)

    return made


def _counted(call: Call) -> State:
    """The numbers from 0 on."""
    begin, step = (call[name] if call.has(name) else other for name, other in (("start", 0), ("step", 1)))
    if (begin, step) != (0, 1) or not isinstance(call["end"], int) or call.first(shape_of(call.node)) is None:
        return None
    call.change("end", call.counts.fewer)
    return Rows(0, numbers=True)


def _product(one: str, other: str, addend: str = "", batch: int = 0) -> Rule:
    """A product of matrices, or of many: samples are matrices, rows of the first, or columns of the other."""

    def product(call: Call) -> State:
        a, b = call.rows(one), call.rows(other)
        if a is None and b is None:
            found = None
        elif batch and a is not None and b is not None:
            call.demand(a == b and a.axis == 0)
            found = a
        elif b is None:
            call.demand(a is not None and a.axis == batch)
            found = a
        else:
            call.demand(a is None and b.axis == batch + 1)
            found = b
        if not addend:
            return found
        return _with(call, addend, found)

    return product


def _with(call: Call, addend: str, found: State) -> State:
    """That of a sum, of something with samples and an addend that is broadcast to it."""
    rank = len(shape_of(call.node))
    added = call.aligned([call[addend]], rank)
    call.demand(added is None or added == found)
    if found is not None and added is None:
        shape = call.shape(addend)
        at = found.axis - rank + len(shape)
        call.demand(at < 0 or shape[at] == 1)
    return found


def _first_axis(name: str, *common: str, results: int = 1) -> Rule:
    """Samples on the first axis of one argument and of the first result; what else it reads is the same for all."""

    def found(call: Call) -> Any:
        call.common(*common)
        state = call.rows(name)
        call.demand(state is None or state.axis == 0)
        return [state, *[None] * (results - 1)] if results > 1 else state

    return found


def _leading(
    inner: int | Callable[[Call], int], name: str = "self", common: Sequence[str] = (), results: int = 1
) -> Rule:
    """Samples on an axis before those, at the end, that it computes along."""

    def found(call: Call) -> Any:
        call.common(*common)
        state = call.rows(name)
        along = inner if isinstance(inner, int) else inner(call)
        call.demand(state is None or state.axis < len(call.shape(name)) - along)
        return [state] * results if results > 1 else state

    return found


def _groups_normalized(call: Call) -> Any:
    call.common("weight", "bias")
    found = call.rows("input")
    if found is not None:
        call.demand(found.axis == 0)
        call.change("N", call["N"] // call.counts.samples * call.counts.fewer)
    return [found] * 3


def _along(name: str = "dim", results: int = 1) -> Rule:
    """Computed along other axes than that of samples, each of which stays."""

    def found(call: Call) -> Any:
        state = call.rows("self")
        call.demand(state is None or state.axis not in _axes(call[name], len(call.shape("self"))))
        return [state] * results if results > 1 else state

    return found


def _rolled(call: Call) -> State:
    found = call.rows("self")
    call.demand(
        found is None or (bool(call["dims"]) and found.axis not in _axes(call["dims"], len(call.shape("self"))))
    )
    return found


def _reduced(results: int = 1) -> Rule:
    """Of other axes than that of samples one element is left, or none."""

    def reduced(call: Call) -> Any:
        found, rank = call.rows("self"), len(call.shape("self"))
        if found is None:
            return [None] * results if results > 1 else None
        over = call["dim"]
        call.demand(over is not None and over != [])
        axes = _axes(over, rank)
        call.demand(found.axis not in axes)
        if not call["keepdim"]:
            found = replace(found, axis=found.axis - sum(axis < found.axis for axis in axes))
        return [found] * results if results > 1 else found

    return reduced


def _looked_up(call: Call) -> State:
    call.common("weight")
    return call.rows("indices")


def _gathered(call: Call) -> State:
    found, index = call.rows("self"), call.rows("index")
    call.demand(found == index)
    call.demand(found is None or call.axis("dim", len(call.shape("self"))) != found.axis)
    return found


def _indexed(call: Call) -> State:
    """Indices of axes side by side: of samples their own numbers, of others the same for all, or of what all share."""
    found, indices = call.rows("self"), list(call["indices"])
    at = [i for i, each in enumerate(indices) if each is not None]
    nodes = [indices[i] for i in at]
    if found is None and all(call.state(each) is None for each in nodes):
        return None
    call.demand(at == list(range(at[0], at[0] + len(at))))
    rank = max(len(shape_of(each)) for each in nodes)
    if found is None:
        picked = call.aligned(nodes, rank)
        return picked and replace(picked, axis=picked.axis + at[0])
    if found.axis in at:
        return _own(call, found, nodes, found.axis - at[0], rank, at[0])
    call.demand(all(call.state(each) is None for each in nodes))
    return found if found.axis < at[0] else replace(found, axis=found.axis - len(at) + rank)


def _own(call: Call, found: Rows, nodes: Sequence[Any], which: int, rank: int, begin: int) -> Rows:
    """Each sample takes of itself: one index is its number, the others are the same for all, or its own."""
    numbers = call.state(nodes[which])
    call.demand(found.each == found.outer == 1 and numbers is not None and numbers.numbers)
    axis = numbers.axis + rank - len(shape_of(nodes[which]))
    others = [each for i, each in enumerate(nodes) if i != which]
    picked = call.aligned(others, rank) if others else None
    call.demand(picked is None or picked == Rows(axis))
    for each in others:
        at = axis - rank + len(shape_of(each))
        call.demand(call.state(each) is not None or at < 0 or shape_of(each)[at] == 1)
    return Rows(axis + begin)


def _attended(call: Call) -> Any:
    found = {call.rows(name) for name in ("query", "key", "value")}
    call.demand(len(found) == 1 and not call["dropout_p"])
    (state,) = found
    call.demand(state is None or state.axis == 0)
    mask = call["attn_mask"]
    if mask is not None:
        shape = shape_of(mask)
        masked = call.usable(mask)
        if masked is None:
            call.demand(len(shape) < 4 or shape[0] == 1 or state is None)
        else:
            call.demand(len(shape) == 4 and masked == state)
    return [state] * 2


def _axes(found: Any, rank: int) -> set[int]:
    return {axis % max(rank, 1) for axis in ([found] if isinstance(found, int) else found)}


POINTWISE = frozenset(
    (
        "hardswish.default",
        "hardsigmoid.default",
        "hardtanh.default",
        "relu6.default",
        "mish.default",
        "fill.Tensor",
        "fill.Scalar",
    )
)
"""Computed place by place, and not marked so by PyTorch."""

NORMALIZED = ("weight", "bias", "running_mean", "running_var")

RULES: dict[str, Rule] = {
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
    **dict.fromkeys(("split.Tensor", "split_with_sizes.default", "unbind.int"), _parted),
    "cat.default": _joined,
    **dict.fromkeys(("full.default", "zeros.default", "ones.default"), _made("size")),
    **dict.fromkeys(("new_full.default", "new_zeros.default", "new_ones.default"), _made("size")),
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _counted),
    "mm.default": _product("self", "mat2"),
    "addmm.default": _product("mat1", "mat2", "self"),
    "bmm.default": _product("self", "mat2", batch=1),
    "baddbmm.default": _product("batch1", "batch2", "self", batch=1),
    "convolution.default": _first_axis("input", "weight", "bias"),
    "_native_batch_norm_legit_no_training.default": _first_axis("input", *NORMALIZED, results=3),
    "native_layer_norm.default": _leading(lambda call: len(call["normalized_shape"]), "input", ("weight", "bias"), 3),
    "native_group_norm.default": _groups_normalized,
    **dict.fromkeys(("_softmax.default", "_log_softmax.default", "cumsum.default", "cumprod.default"), _along()),
    **dict.fromkeys(("sort.default", "topk.default"), _along(results=2)),
    "flip.default": _along("dims"),
    "roll.default": _rolled,
    **dict.fromkeys(("mean.dim", "sum.dim_IntList", "amax.default", "amin.default", "prod.dim_int"), _reduced()),
    **dict.fromkeys(("var.correction", "any.dim", "all.dim", "argmax.default", "argmin.default"), _reduced()),
    "logsumexp.default": _reduced(),
    **dict.fromkeys(("max.dim", "min.dim", "var_mean.correction"), _reduced(2)),
    "max_pool2d_with_indices.default": _leading(2, results=2),
    **dict.fromkeys(("avg_pool2d.default", "_adaptive_avg_pool2d.default"), _leading(2)),
    **dict.fromkeys(("upsample_nearest2d.default", "upsample_bilinear2d.default"), _leading(2)),
    "constant_pad_nd.default": _leading(lambda call: len(call["pad"]) // 2),
    "embedding.default": _looked_up,
    "gather.default": _gathered,
    "index.Tensor": _indexed,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attended,
}
"""By operator. What PyTorch marks as computed place by place needs no rule."""
