"""Rules of ATen operators: where samples lie in what one gives, if it computes sample by sample.

A rule says that each sample of its operator's results is made of the same sample of its operands, and raises ModelError
where that does not hold. An operator without a rule may only compute what is the same for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sublet.frontends.torch.row_views import VIEWS
from sublet.frontends.torch.rows import Call, Rows, Rule, State, axes_of, shape_of
from sublet.frontends.torch.tensors import torch


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
    call.demand(hasattr(call.node.meta["val"], "shape"))
    return call.aligned(call.node.all_input_nodes, len(shape_of(call.node)))


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
        call.demand(state is None or state.axis not in axes_of(call[name], len(call.shape("self"))))
        return [state] * results if results > 1 else state

    return found


def _rolled(call: Call) -> State:
    found = call.rows("self")
    call.demand(
        found is None or (bool(call["dims"]) and found.axis not in axes_of(call["dims"], len(call.shape("self"))))
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
        axes = axes_of(over, rank)
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
    call.require_beside(found, call.shape("self"))
    return found


def _indexed(call: Call) -> State:
    """Indices of axes side by side: of samples their own numbers, of others the same for all, or of what all share.

    x[:, [0, 2]]      the same elements of each sample
    x[arange(B), i]   one of each sample, each by an index of its own: `_own`
    table[i]          what all samples share, by indices of each
    """
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
    """Each sample takes of itself, as in x[arange(B), i]: one index, `nodes[which]`, is its number, the others are the
    same for all, or its own. The axes of indices are broadcast to `rank`, and come to lie from axis `begin` on."""
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
"""By operator. What PyTorch marks as computed place by place needs no rule."""
