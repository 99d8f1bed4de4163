"""Batch-axis rules of ATen operators: the batch axis of each result, if the operator computes sample by sample.

A rule returns only if each sample of the results depends on the same sample of the operands alone; otherwise the rule
raises ModelError. An operator without a rule may only compute tensors equal for all samples, unless PyTorch marks the
operator as pointwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.batch_axis import (
    BatchAxis,
    BatchAxisRule,
    BatchedCall,
    OptionalBatchAxis,
    axes_argument,
    node_shape,
)
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.reader.tracing_rules import RESAMPLING
from sublet.ir.graph import Node
from sublet.ops.nn.attention import slices_with_mask
from sublet.ops.nn.command import pick
from sublet.ops.slice_maps import (
    SliceMaps,
    Slices,
    aligned_axis,
    leading_axis,
    reduced_axes,
    same_axes,
    shape_of,
    slice_map,
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


def batch_axis_of_results(call: BatchedCall) -> Any:
    """Return the batch axis of an operator's result, a list for several results.

    Raises ModelError for an operator possibly computing across samples.
    """
    target = call.node.target
    name = str(target).removeprefix("aten.")
    rule = BATCH_AXIS_RULES.get(name)
    if rule is not None:
        return rule(call)
    call.require(not target._schema.is_mutable and torch().Tag.nondeterministic_seeded not in target.tags)
    if all(call.axis_of(node) is None for node in call.node.all_input_nodes):
        return None
    call.require(torch().Tag.pointwise in target.tags or name in UNTAGGED_POINTWISE)
    call.require(hasattr(call.node.meta["val"], "shape"))
    return call.elementwise_axis(call.node.all_input_nodes, node_shape(call.node))


def _by_slices(slices: Slices, *names: str, results: int = 1, further: int = 0) -> BatchAxisRule:
    """Return a rule by the slice maps from the arguments `names` to the first `results` results.

    The `further` results are equal for all samples.
    """

    def rule(call: BatchedCall) -> Any:
        made = call.node.meta["val"]
        shapes = [tuple(each.shape) for each in (made[:results] if isinstance(made, list | tuple) else [made])]
        axes = call.axes_by(slices, [call[name] for name in names if call.has_argument(name)], shapes)
        return [*axes, *[None] * further] if results + further > 1 else axes[0]

    return rule


def _product_slices(batch: int = 0) -> Slices:
    """Return the maps of a matrix product, with or without a batch axis and an addend broadcast to the product.

    Samples are rows of the first operand, columns of the second operand, or matrices of a batch.
    """

    def slices(node: Node) -> SliceMaps:
        maps: SliceMaps = ()
        for a, b, to in ((batch, None, batch), (None, batch + 1, batch + 1), *([(0, 0, 0)] if batch else [])):
            addend = [aligned_axis(value, node.outputs[0], to) for value in node.inputs[2:]]
            maps += slice_map(node, [a, b, *addend], [to])
        return maps

    return slices


def _axes_before(inner: Callable[[Node], int], *whole: int) -> Slices:
    """Return the maps along the axes before the `inner` last axes, along which the operator computes."""
    return lambda node: same_axes(node, range(len(shape_of(node.inputs[0])) - inner(node)), whole)


def _axes_beside(node: Node, name: str = "dim") -> SliceMaps:
    """Return the maps along the axes not named by an argument, of an operator that computes along the named axes."""
    named, rank = pick(node.attrs, name), len(shape_of(node.inputs[0]))
    return same_axes(node, [axis for axis in range(rank) if named != [] and axis not in axes_argument(named, rank)])


def _kept_axes(node: Node) -> SliceMaps:
    """Return the maps of a reduction."""
    over, rank = pick(node.attrs, "dim"), len(shape_of(node.inputs[0]))
    axes = range(rank) if over is None or over == [] else axes_argument(over, rank)
    return reduced_axes(node, axes, keepdims=bool(node.attrs["keepdim"]))


def _group_norm(call: BatchedCall) -> Any:
    """Keep the batch axis of a group norm, and change the argument N."""
    along = _by_slices(leading_axis(1, 2), "input", "weight", "bias", results=3)(call)
    if along[0] is not None:
        call.change_argument("N", call["N"] // call.sizes.full * call.sizes.smaller)
    return along


def _index(call: BatchedCall) -> OptionalBatchAxis:
    """Return the batch axis of a tensor indexed along adjacent axes.

    x[:, [0, 2]]      the same elements of each sample
    x[arange(B), i]   for each sample elements of the same sample, see `_index_own_sample`
    table[i]          elements of an unbatched tensor, by indices of each sample
    """
    batch, indices = call.value_axis("self"), list(call["indices"])
    at = [i for i, each in enumerate(indices) if each is not None]
    nodes = [indices[i] for i in at]
    if batch is None and all(call.axis_of(each) is None for each in nodes):
        return None
    call.require(at == list(range(at[0], at[0] + len(at))))
    shape = tuple(torch().broadcast_shapes(*map(node_shape, nodes)))
    if batch is None:
        picked = call.elementwise_axis(nodes, shape)
        return picked and replace(picked, axis=picked.axis + at[0])
    if batch.axis in at:
        return _index_own_sample(call, batch, nodes, batch.axis - at[0], shape, at[0])
    call.require(all(call.axis_of(each) is None for each in nodes))
    return batch if batch.axis < at[0] else replace(batch, axis=batch.axis - len(at) + len(shape))


def _index_own_sample(
    call: BatchedCall, found: BatchAxis, nodes: Sequence[Any], which: int, shape: tuple[int, ...], begin: int
) -> BatchAxis:
    """Return the batch axis of x[arange(B), i]: each sample indexes only its own elements.

    `nodes[which]` holds the sample indices; the further indices are equal for all samples, or batched. The indices are
    broadcast to `shape`, placed from axis `begin` on.
    """
    numbers, rank = call.axis_of(nodes[which]), len(shape)
    call.require(found.inner == found.outer == 1 and numbers is not None and numbers.holds_indices)
    axis = numbers.axis + rank - len(node_shape(nodes[which]))
    others = [each for i, each in enumerate(nodes) if i != which]
    picked = call.elementwise_axis(others, shape) if others else None
    call.require(picked is None or picked == BatchAxis(axis))
    for each in others:
        at = axis - rank + len(node_shape(each))
        call.require(call.axis_of(each) is not None or at < 0 or node_shape(each)[at] == 1)
    return BatchAxis(axis + begin)


def _attention(call: BatchedCall) -> Any:
    """Return the batch axis of attention results, the first axis of query, key and value; dropout is refused."""
    call.require(not call["dropout_p"])
    return _by_slices(slices_with_mask(3), "query", "key", "value", "attn_mask", results=2)(call)


UNTAGGED_POINTWISE = frozenset(
    f"{name}.default" for name in ("hardswish", "hardsigmoid", "hardtanh", "relu6", "mish")
) | {"fill.Tensor", "fill.Scalar"}
"""Pointwise operators without PyTorch's tag."""

BATCH_AXIS_RULES: dict[str, BatchAxisRule] = {
    **VIEW_RULES,
    "mm.default": _by_slices(_product_slices(), "self", "mat2"),
    "addmm.default": _by_slices(_product_slices(), "mat1", "mat2", "self"),
    "bmm.default": _by_slices(_product_slices(batch=1), "self", "mat2"),
    "baddbmm.default": _by_slices(_product_slices(batch=1), "batch1", "batch2", "self"),
    "convolution.default": _by_slices(leading_axis(1, 2), "input", "weight", "bias"),
    "_native_batch_norm_legit_no_training.default": _by_slices(
        leading_axis(1, 2, 3, 4), "input", "weight", "bias", "running_mean", "running_var", further=2
    ),
    "native_layer_norm.default": _by_slices(
        _axes_before(lambda node: len(pick(node.attrs, "normalized_shape")), 1, 2),
        *("input", "weight", "bias"),
        results=3,
    ),
    "native_group_norm.default": _group_norm,
    **dict.fromkeys(
        ("_softmax.default", "_log_softmax.default", "cumsum.default", "cumprod.default"),
        _by_slices(_axes_beside, "self"),
    ),
    **dict.fromkeys(("sort.default", "topk.default"), _by_slices(_axes_beside, "self", results=2)),
    **dict.fromkeys(("flip.default", "roll.default"), _by_slices(partial(_axes_beside, name="dims"), "self")),
    **dict.fromkeys(
        ("mean.dim", "sum.dim_IntList", "amax.default", "amin.default", "prod.dim_int", "logsumexp.default"),
        _by_slices(_kept_axes, "self"),
    ),
    **dict.fromkeys(
        ("var.correction", "any.dim", "all.dim", "argmax.default", "argmin.default"), _by_slices(_kept_axes, "self")
    ),
    **dict.fromkeys(("max.dim", "min.dim", "var_mean.correction"), _by_slices(_kept_axes, "self", results=2)),
    "max_pool2d_with_indices.default": _by_slices(_axes_before(lambda node: 2), "self", results=2),
    **dict.fromkeys(
        ("avg_pool2d.default", "_adaptive_avg_pool2d.default", *(f"{name}.default" for name in RESAMPLING)),
        _by_slices(_axes_before(lambda node: 2), "self"),
    ),
    "constant_pad_nd.default": _by_slices(_axes_before(lambda node: len(pick(node.attrs, "pad")) // 2), "self"),
    "embedding.default": _by_slices(
        lambda node: same_axes(node, range(len(shape_of(node.inputs[1]))), whole=(0,)), "weight", "indices"
    ),
    "gather.default": _by_slices(_axes_beside, "self", "index"),
    "index.Tensor": _index,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
}
"""Rules by operator. Operators tagged pointwise by PyTorch need no rule."""
