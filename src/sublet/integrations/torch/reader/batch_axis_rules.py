"""Batch-axis rules of ATen operators: the batch axis of each result, if the operator computes sample by sample.

A rule returns only if each sample of the results depends on the same sample of the operands alone; otherwise the rule
raises ModelError. An operator without a rule may only compute tensors equal for all samples, unless PyTorch marks the
operator as pointwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from sublet.integrations.torch.reader.traced_tensor import torch


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
    return call.elementwise_axis(call.node.all_input_nodes, len(node_shape(call.node)))


def _matrix_product(one: str, other: str, addend: str = "", batch: int = 0) -> BatchAxisRule:
    """Return the rule of a matrix product.

    Samples are matrices of a batch, rows of the first operand, or columns of the second operand.
    """

    def product(call: BatchedCall) -> OptionalBatchAxis:
        a, b = call.value_axis(one), call.value_axis(other)
        if a is None and b is None:
            result = None
        elif batch and a is not None and b is not None:
            call.require(a == b and a.axis == 0)
            result = a
        elif b is None:
            call.require(a is not None and a.axis == batch)
            result = a
        else:
            call.require(a is None and b.axis == batch + 1)
            result = b
        if not addend:
            return result
        return _add_broadcast(call, addend, result)

    return product


def _add_broadcast(call: BatchedCall, addend: str, found: OptionalBatchAxis) -> OptionalBatchAxis:
    """Return the batch axis of the sum of a batched result and an addend broadcast to the result."""
    rank = len(node_shape(call.node))
    added = call.elementwise_axis([call[addend]], rank)
    call.require(added is None or added == found)
    if found is not None and added is None:
        shape = call.argument_shape(addend)
        at = found.axis - rank + len(shape)
        call.require(at < 0 or shape[at] == 1)
    return found


def _batch_on_first_axis(name: str, *common: str, results: int = 1) -> BatchAxisRule:
    """Return a rule for samples on the first axis of argument `name` and of the first result.

    The arguments `common` must be equal for all samples.
    """

    def rule(call: BatchedCall) -> Any:
        call.require_unbatched(*common)
        state = call.value_axis(name)
        call.require(state is None or state.axis == 0)
        return [state, *[None] * (results - 1)] if results > 1 else state

    return rule


def _batch_before_inner_axes(
    inner: int | Callable[[BatchedCall], int], name: str = "self", common: Sequence[str] = (), results: int = 1
) -> BatchAxisRule:
    """Return a rule: the batch axis lies before the `inner` last axes, along which the operator computes."""

    def rule(call: BatchedCall) -> Any:
        call.require_unbatched(*common)
        state = call.value_axis(name)
        along = inner if isinstance(inner, int) else inner(call)
        call.require(state is None or state.axis < len(call.argument_shape(name)) - along)
        return [state] * results if results > 1 else state

    return rule


def _group_norm(call: BatchedCall) -> Any:
    """Keep the batch axis of a group norm, and change the argument N."""
    call.require_unbatched("weight", "bias")
    batch = call.value_axis("input")
    if batch is not None:
        call.require(batch.axis == 0)
        call.change_argument("N", call["N"] // call.sizes.full * call.sizes.smaller)
    return [batch] * 3


def _batch_beside_axis(name: str = "dim", results: int = 1) -> BatchAxisRule:
    """Return a rule: the operator computes along axes other than the batch axis, without removing an axis."""

    def rule(call: BatchedCall) -> Any:
        state = call.value_axis("self")
        call.require(state is None or state.axis not in axes_argument(call[name], len(call.argument_shape("self"))))
        return [state] * results if results > 1 else state

    return rule


def _roll(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the batch axis of a roll along other axes."""
    batch = call.value_axis("self")
    call.require(
        batch is None
        or (bool(call["dims"]) and batch.axis not in axes_argument(call["dims"], len(call.argument_shape("self"))))
    )
    return batch


def _reduction(results: int = 1) -> BatchAxisRule:
    """Return a rule: the operator reduces axes other than the batch axis."""

    def rule(call: BatchedCall) -> Any:
        batch, rank = call.value_axis("self"), len(call.argument_shape("self"))
        if batch is None:
            return [None] * results if results > 1 else None
        over = call["dim"]
        call.require(over is not None and over != [])
        axes = axes_argument(over, rank)
        call.require(batch.axis not in axes)
        if not call["keepdim"]:
            batch = replace(batch, axis=batch.axis - sum(axis < batch.axis for axis in axes))
        return [batch] * results if results > 1 else batch

    return rule


def _embedding(call: BatchedCall) -> OptionalBatchAxis:
    """Return the batch axis of the indices of an embedding; the table is equal for all samples."""
    call.require_unbatched("weight")
    return call.value_axis("indices")


def _gather(call: BatchedCall) -> OptionalBatchAxis:
    """Keep the common batch axis of operand and index; the gathered axis must be another axis."""
    batch, index = call.value_axis("self"), call.value_axis("index")
    call.require(batch == index)
    call.require_other_axis(batch, call.argument_shape("self"))
    return batch


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
    rank = max(len(node_shape(each)) for each in nodes)
    if batch is None:
        picked = call.elementwise_axis(nodes, rank)
        return picked and replace(picked, axis=picked.axis + at[0])
    if batch.axis in at:
        return _index_own_sample(call, batch, nodes, batch.axis - at[0], rank, at[0])
    call.require(all(call.axis_of(each) is None for each in nodes))
    return batch if batch.axis < at[0] else replace(batch, axis=batch.axis - len(at) + rank)


def _index_own_sample(
    call: BatchedCall, found: BatchAxis, nodes: Sequence[Any], which: int, rank: int, begin: int
) -> BatchAxis:
    """Return the batch axis of x[arange(B), i]: each sample indexes only its own elements.

    `nodes[which]` holds the sample indices; the further indices are equal for all samples, or batched. The indices are
    broadcast to `rank` axes, placed from axis `begin` on.
    """
    numbers = call.axis_of(nodes[which])
    call.require(found.inner == found.outer == 1 and numbers is not None and numbers.holds_indices)
    axis = numbers.axis + rank - len(node_shape(nodes[which]))
    others = [each for i, each in enumerate(nodes) if i != which]
    picked = call.elementwise_axis(others, rank) if others else None
    call.require(picked is None or picked == BatchAxis(axis))
    for each in others:
        at = axis - rank + len(node_shape(each))
        call.require(call.axis_of(each) is not None or at < 0 or node_shape(each)[at] == 1)
    return BatchAxis(axis + begin)


def _attention(call: BatchedCall) -> Any:
    """Return the batch axis of attention results.

    Query, key and value must have the batch on the first axis; dropout is refused.
    """
    axes = {call.value_axis(name) for name in ("query", "key", "value")}
    call.require(len(axes) == 1 and not call["dropout_p"])
    (state,) = axes
    call.require(state is None or state.axis == 0)
    mask = call["attn_mask"]
    if mask is not None:
        shape = node_shape(mask)
        masked = call.value_axis_of(mask)
        if masked is None:
            call.require(len(shape) < 4 or shape[0] == 1 or state is None)
        else:
            call.require(len(shape) == 4 and masked == state)
    return [state] * 2


UNTAGGED_POINTWISE = frozenset(
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
"""Pointwise operators without PyTorch's tag."""

BATCH_NORM_WEIGHTS = ("weight", "bias", "running_mean", "running_var")

BATCH_AXIS_RULES: dict[str, BatchAxisRule] = {
    **VIEW_RULES,
    "mm.default": _matrix_product("self", "mat2"),
    "addmm.default": _matrix_product("mat1", "mat2", "self"),
    "bmm.default": _matrix_product("self", "mat2", batch=1),
    "baddbmm.default": _matrix_product("batch1", "batch2", "self", batch=1),
    "convolution.default": _batch_on_first_axis("input", "weight", "bias"),
    "_native_batch_norm_legit_no_training.default": _batch_on_first_axis("input", *BATCH_NORM_WEIGHTS, results=3),
    "native_layer_norm.default": _batch_before_inner_axes(
        lambda call: len(call["normalized_shape"]), "input", ("weight", "bias"), 3
    ),
    "native_group_norm.default": _group_norm,
    **dict.fromkeys(
        ("_softmax.default", "_log_softmax.default", "cumsum.default", "cumprod.default"), _batch_beside_axis()
    ),
    **dict.fromkeys(("sort.default", "topk.default"), _batch_beside_axis(results=2)),
    "flip.default": _batch_beside_axis("dims"),
    "roll.default": _roll,
    **dict.fromkeys(("mean.dim", "sum.dim_IntList", "amax.default", "amin.default", "prod.dim_int"), _reduction()),
    **dict.fromkeys(("var.correction", "any.dim", "all.dim", "argmax.default", "argmin.default"), _reduction()),
    "logsumexp.default": _reduction(),
    **dict.fromkeys(("max.dim", "min.dim", "var_mean.correction"), _reduction(2)),
    "max_pool2d_with_indices.default": _batch_before_inner_axes(2, results=2),
    **dict.fromkeys(("avg_pool2d.default", "_adaptive_avg_pool2d.default"), _batch_before_inner_axes(2)),
    **dict.fromkeys(("upsample_nearest2d.default", "upsample_bilinear2d.default"), _batch_before_inner_axes(2)),
    "constant_pad_nd.default": _batch_before_inner_axes(lambda call: len(call["pad"]) // 2),
    "embedding.default": _embedding,
    "gather.default": _gather,
    "index.Tensor": _index,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
}
"""Rules by operator. Operators tagged pointwise by PyTorch need no rule."""
