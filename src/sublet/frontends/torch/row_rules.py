"""Batch-axis rules of ATen operators: the batch axis of each result, if the operator computes sample by sample.

A rule returns only if each sample of the results depends on the same sample of the operands alone; otherwise the rule
raises ModelError. An operator without a rule may only compute tensors equal for all samples, unless PyTorch marks the
operator as pointwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sublet.frontends.torch.row_views import VIEWS
from sublet.frontends.torch.rows import Call, Rows, Rule, State, axes_of, shape_of
from sublet.frontends.torch.tensors import torch


def rows_of(call: Call) -> Any:
    """Return the batch axis of an operator's result, a list for several results.

    Raises ModelError for an operator possibly computing across samples.
    """
    target = call.node.target
    name = str(target).removeprefix("aten.")
    rule = RULES.get(name)
    if rule is not None:
        return rule(call)
    call.demand(not target._schema.is_mutable and torch().Tag.nondeterministic_seeded not in target.tags)
    if all(call.state(node) is None for node in call.node.all_input_nodes):
        return None
    call.demand(torch().Tag.pointwise in target.tags or name in POINTWISE)
    call.demand(hasattr(call.node.meta["val"], "shape"))
    return call.elementwise_axis(call.node.all_input_nodes, len(shape_of(call.node)))


def _product(one: str, other: str, addend: str = "", batch: int = 0) -> Rule:
    """Return the rule of a matrix product.

    Samples are matrices of a batch, rows of the first operand, or columns of the second operand.
    """

    def product(call: Call) -> State:
        a, b = call.rows(one), call.rows(other)
        if a is None and b is None:
            result = None
        elif batch and a is not None and b is not None:
            call.demand(a == b and a.axis == 0)
            result = a
        elif b is None:
            call.demand(a is not None and a.axis == batch)
            result = a
        else:
            call.demand(a is None and b.axis == batch + 1)
            result = b
        if not addend:
            return result
        return _with(call, addend, result)

    return product


def _with(call: Call, addend: str, found: State) -> State:
    """Return the batch axis of the sum of a batched result and an addend broadcast to the result."""
    rank = len(shape_of(call.node))
    added = call.elementwise_axis([call[addend]], rank)
    call.demand(added is None or added == found)
    if found is not None and added is None:
        shape = call.shape(addend)
        at = found.axis - rank + len(shape)
        call.demand(at < 0 or shape[at] == 1)
    return found


def _first_axis(name: str, *common: str, results: int = 1) -> Rule:
    """Return a rule for samples on the first axis of argument `name` and of the first result.

    The arguments `common` must be equal for all samples.
    """

    def rule(call: Call) -> Any:
        call.common(*common)
        state = call.rows(name)
        call.demand(state is None or state.axis == 0)
        return [state, *[None] * (results - 1)] if results > 1 else state

    return rule


def _leading(
    inner: int | Callable[[Call], int], name: str = "self", common: Sequence[str] = (), results: int = 1
) -> Rule:
    """Return a rule: the batch axis lies before the `inner` last axes, along which the operator computes."""

    def rule(call: Call) -> Any:
        call.common(*common)
        state = call.rows(name)
        along = inner if isinstance(inner, int) else inner(call)
        call.demand(state is None or state.axis < len(call.shape(name)) - along)
        return [state] * results if results > 1 else state

    return rule


def _groups_normalized(call: Call) -> Any:
    """Keep the batch axis of a group norm, and change the argument N."""
    call.common("weight", "bias")
    batch = call.rows("input")
    if batch is not None:
        call.demand(batch.axis == 0)
        call.change("N", call["N"] // call.counts.samples * call.counts.fewer)
    return [batch] * 3


def _along(name: str = "dim", results: int = 1) -> Rule:
    """Return a rule: the operator computes along axes other than the batch axis, without removing an axis."""

    def rule(call: Call) -> Any:
        state = call.rows("self")
        call.demand(state is None or state.axis not in axes_of(call[name], len(call.shape("self"))))
        return [state] * results if results > 1 else state

    return rule


def _rolled(call: Call) -> State:
    """Keep the batch axis of a roll along other axes."""
    batch = call.rows("self")
    call.demand(
        batch is None or (bool(call["dims"]) and batch.axis not in axes_of(call["dims"], len(call.shape("self"))))
    )
    return batch


def _reduced(results: int = 1) -> Rule:
    """Return a rule: the operator reduces axes other than the batch axis."""

    def rule(call: Call) -> Any:
        batch, rank = call.rows("self"), len(call.shape("self"))
        if batch is None:
            return [None] * results if results > 1 else None
        over = call["dim"]
        call.demand(over is not None and over != [])
        axes = axes_of(over, rank)
        call.demand(batch.axis not in axes)
        if not call["keepdim"]:
            batch = replace(batch, axis=batch.axis - sum(axis < batch.axis for axis in axes))
        return [batch] * results if results > 1 else batch

    return rule


def _looked_up(call: Call) -> State:
    """Return the batch axis of the indices of an embedding; the table is equal for all samples."""
    call.common("weight")
    return call.rows("indices")


def _gathered(call: Call) -> State:
    """Keep the common batch axis of operand and index; the gathered axis must be another axis."""
    batch, index = call.rows("self"), call.rows("index")
    call.demand(batch == index)
    call.require_beside(batch, call.shape("self"))
    return batch


def _indexed(call: Call) -> State:
    """Return the batch axis of a tensor indexed along adjacent axes.

    x[:, [0, 2]]      the same elements of each sample
    x[arange(B), i]   for each sample elements of the same sample, see `_index_own_sample`
    table[i]          elements of an unbatched tensor, by indices of each sample
    """
    batch, indices = call.rows("self"), list(call["indices"])
    at = [i for i, each in enumerate(indices) if each is not None]
    nodes = [indices[i] for i in at]
    if batch is None and all(call.state(each) is None for each in nodes):
        return None
    call.demand(at == list(range(at[0], at[0] + len(at))))
    rank = max(len(shape_of(each)) for each in nodes)
    if batch is None:
        picked = call.elementwise_axis(nodes, rank)
        return picked and replace(picked, axis=picked.axis + at[0])
    if batch.axis in at:
        return _own(call, batch, nodes, batch.axis - at[0], rank, at[0])
    call.demand(all(call.state(each) is None for each in nodes))
    return batch if batch.axis < at[0] else replace(batch, axis=batch.axis - len(at) + rank)


def _own(call: Call, found: Rows, nodes: Sequence[Any], which: int, rank: int, begin: int) -> Rows:
    """Return the batch axis of x[arange(B), i]: each sample indexes only its own elements.

    `nodes[which]` holds the sample indices; the further indices are equal for all samples, or batched. The indices are
    broadcast to `rank` axes, placed from axis `begin` on.
    """
    numbers = call.state(nodes[which])
    call.demand(found.each == found.outer == 1 and numbers is not None and numbers.numbers)
    axis = numbers.axis + rank - len(shape_of(nodes[which]))
    others = [each for i, each in enumerate(nodes) if i != which]
    picked = call.elementwise_axis(others, rank) if others else None
    call.demand(picked is None or picked == Rows(axis))
    for each in others:
        at = axis - rank + len(shape_of(each))
        call.demand(call.state(each) is not None or at < 0 or shape_of(each)[at] == 1)
    return Rows(axis + begin)


def _attended(call: Call) -> Any:
    """Return the batch axis of attention results.

    Query, key and value must have the batch on the first axis; dropout is refused.
    """
    axes = {call.rows(name) for name in ("query", "key", "value")}
    call.demand(len(axes) == 1 and not call["dropout_p"])
    (state,) = axes
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
"""Pointwise operators without PyTorch's tag."""

NORMALIZED = ("weight", "bias", "running_mean", "running_var")

RULES: dict[str, Rule] = {
    **VIEWS,
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
"""Rules by operator. Operators tagged pointwise by PyTorch need no rule."""
