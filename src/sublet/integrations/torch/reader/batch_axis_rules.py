"""Batch-axis rules of ATen operators: the batch axis of each result, if the operator computes sample by sample.

A rule returns only if each sample of the results depends on the same sample of the operands alone; otherwise the rule
raises ModelError. An operator without a rule may only compute tensors equal for all samples, unless PyTorch marks the
operator as pointwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sublet.integrations.torch.reader.batch_axis import (
    BatchAxis,
    BatchAxisRule,
    BatchedCall,
    OptionalBatchAxis,
    axes_argument,
    node_shape,
)
from sublet.integrations.torch.reader.batch_axis_views import VIEW_RULES
from sublet.integrations.torch.reader.resampling import RESAMPLING
from sublet.integrations.torch.reader.traced_tensor import torch
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
