"""Scaled dot-product attention.

The gradient needs only q, k, v and the mask: the kernel recomputes the probabilities in tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import Command, overwrite_unless_repeated, pick, spec_of
from sublet.ops.nn.rules import (
    FLOATS,
    broadcast_shape,
    operand,
    require_equal,
    require_present,
    require_same_type,
    require_type,
    sum_present,
    sum_to_shape,
)
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Grads, Specs
from sublet.ops.slice_maps import SliceMaps, Slices, same_axes, shape_of

LAYOUTS = ("bhtd", "bthd")
"""The orders of axes of queries, keys, values and results: [batch, heads, positions, width], or positions first."""
HEADS_FIRST = (0, 2, 1, 3)
"""The permutation from either layout to the other."""


def is_positions_first(attrs: Attrs) -> bool:
    """True if the positions are axis 1 and the heads axis 2. Raises SpecError for an unknown layout."""
    layout = pick(attrs, "layout")
    if layout not in LAYOUTS:
        raise SpecError(f"layout = {layout!r} must be one of {', '.join(LAYOUTS)}")
    return bool(layout == "bthd")


def heads_first_shape(value: Value | None, attrs: Attrs) -> tuple[int, ...]:
    """Return the shape of a query, key or value as [batch, heads, positions, width]."""
    shape = shape_of(value)
    return tuple(shape[axis] for axis in HEADS_FIRST) if is_positions_first(attrs) else shape


def score_scale(attrs: Attrs, width: int) -> float:
    """Return the factor of the scores: the attribute `scale`, or 1 / sqrt(width of a query) if `scale` is 0."""
    given: float = pick(attrs, "scale")
    return given or 1 / sqrt(max(1, width))


# The definition.


def _scores(q: Any, k: Any, mask: Any, scale: float, causal: int) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) * q.dtype.type(score_scale({"scale": scale}, q.shape[-1]))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return scores.astype(q.dtype)


def _probabilities(scores: Any) -> tuple[Any, Any]:
    """Return the softmax of each row, and the logarithm of the sum of exponentials.

    A row without any allowed key has probabilities 0 and a logarithm of -inf.
    """
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    base = np.where(np.isneginf(highest), 0, highest)
    raised = np.exp(scores - base)
    total = raised.sum(axis=-1, keepdims=True)
    divisor = np.where(total == 0, 1, total)
    return raised / divisor, np.where(total == 0, -np.inf, base + np.log(divisor))[..., 0]


def _swap_axes(layout: str, *arrays: Any) -> list[Any]:
    """Return views of arrays in `layout` as [batch, heads, positions, width], or the other way round."""
    return [np.swapaxes(x, 1, 2) if layout == "bthd" else x for x in arrays]


def _attention(q: Any, k: Any, v: Any, mask: Any = None, *, scale: float, causal: int, layout: str) -> tuple[Any, Any]:
    q, k, v = _swap_axes(layout, q, k, v)
    probabilities, lse = _probabilities(_scores(q, k, mask, scale, causal))
    return *_swap_axes(layout, probabilities @ v), lse


def _attention_gradient(
    dy: Any, q: Any, k: Any, v: Any, mask: Any = None, *, scale: float, causal: int, layout: str
) -> tuple[Any, ...]:
    dy, q, k, v = _swap_axes(layout, dy, q, k, v)
    p, _ = _probabilities(_scores(q, k, mask, scale, causal))
    dp = dy @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * q.dtype.type(score_scale({"scale": scale}, q.shape[-1]))
    return tuple(_swap_axes(layout, ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dy))


# Shapes.


def _scores_shape(specs: Specs, attrs: Attrs) -> tuple[int, ...]:
    """Return the shape of the scores, [B, H, T, S]. Raises SpecError if q, k, v or mask do not fit."""
    q, k, v = (require_type(spec, FLOATS, role) for spec, role in zip(specs, "qkv", strict=False))
    shown = f"q {q}, k {k}, v {v}"
    require_same_type((q, k, v), FLOATS)
    axes = (1, 2) if is_positions_first(attrs) else (2, 1)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        named = "positions, heads" if axes[0] == 1 else "heads, positions"
        raise SpecError(f"{shown} must have 4 axes: [batch, {named}, width]. Use nn.reshape.")
    positions, heads = axes
    if len({(spec.shape[0], spec.shape[heads]) for spec in (q, k, v)}) > 1:
        raise SpecError(f"{shown} must agree in batch and heads, their axes 0 and {heads}")
    if q.shape[3] != k.shape[3] or k.shape[positions] != v.shape[positions]:
        raise SpecError(
            f"{shown}: q and k must have the same width (axis 3), k and v the same number of positions "
            f"(axis {positions})"
        )
    scores = TensorSpec(q.dtype, (q.shape[0], q.shape[heads], q.shape[positions], k.shape[positions]))
    mask = specs[3] if len(specs) > 3 else None
    if mask is not None:
        require_type(mask, (q.dtype, DType.BOOL), "the mask")
        if broadcast_shape([mask, scores]) != scores.shape:
            raise SpecError(f"the mask {mask} cannot be broadcast to the scores {scores} of {shown}")
    return scores.shape


def _infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape = _scores_shape(specs, attrs)
    q, v = require_present(specs[0], "q"), require_present(specs[2], "v")
    return TensorSpec(q.dtype, (*q.shape[:3], v.shape[3])), TensorSpec(q.dtype, shape[:3])


def _gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    y, _ = _infer(specs[1:], attrs)
    require_equal(require_type(specs[0], FLOATS, "dy"), y, "dy and y")
    q, k, v = (require_type(spec, FLOATS, role) for spec, role in zip(specs[1:], "qkv", strict=False))
    return q, k, v


# Gradients.


def _allowed_pairs(emit: Emit, node: Node, mask: Value | None, rows: int, columns: int) -> Value | None:
    """Return the bools of allowed (query, key) pairs by bool mask and causality; None if all pairs are allowed."""
    bools = mask if mask is not None and spec_of(mask).dtype is DType.BOOL else None
    if not pick(node.attrs, "causal"):
        return bools
    query = emit("nn.reshape", emit("nn.iota", count=rows, dtype="i64"), shape=(rows, 1))
    past = emit("nn.less_equal", emit("nn.iota", count=columns, dtype="i64"), query)
    return past if bools is None else emit("nn.logical_and", bools, past)


def _transpose_values(emit: Emit, node: Node, *values: Value) -> Sequence[Value]:
    """Return values in the layout of the node as [batch, heads, positions, width], or the other way round."""
    if not is_positions_first(node.attrs):
        return values
    return [emit("nn.transpose", value, axes=HEADS_FIRST) for value in values]


def _softmax(emit: Emit, node: Node, q: Value, k: Value, mask: Value | None) -> tuple[Value, Value]:
    """Return the masked scores and the probabilities."""
    scale = emit.constant(score_scale(node.attrs, spec_of(q).shape[3]), q)
    scores = emit("nn.mul", emit("nn.matmul", q, k, transpose_b=1), scale)
    if mask is not None and spec_of(mask).dtype is not DType.BOOL:
        scores = emit("nn.add", scores, mask)
    allowed = _allowed_pairs(emit, node, mask, spec_of(q).shape[2], spec_of(k).shape[2])
    if allowed is None:
        return scores, emit("nn.softmax", scores, axis=-1)
    # A finite number instead of -inf keeps rows without an allowed key finite; their probabilities are zeroed below.
    scores = emit("nn.where", allowed, scores, emit.constant(-1e4 if _is_f16(q) else -1e30, q))
    return scores, emit("nn.where", allowed, emit("nn.softmax", scores, axis=-1), emit.constant(0, q))


def _is_f16(value: Value) -> bool:
    return spec_of(value).dtype is DType.F16


def _score_gradient(emit: Emit, p: Value, dp: Value) -> Value:
    """Return the gradient through the softmax: p (dp - sum(p dp))."""
    inner = emit("nn.sum", emit("nn.mul", p, dp), axes=(-1,), keepdims=1)
    return emit("nn.mul", p, emit("nn.sub", dp, inner))


def _rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return the gradients of q, k and v as one command.

    The rarely needed gradients of the mask, and through lse, are written with small commands.
    """
    dy, dlse = grads
    q, k, v = (operand(node, i) for i in range(3))
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    gradients: list[Value | None] = [None, None, None]
    if dy is not None:
        gradients = list(emit.all_outputs("nn.attention_gradient", dy, q, k, v, mask, **node.attrs))
    learnt = mask is not None and spec_of(mask).dtype is not DType.BOOL
    terms: list[Value] = []
    p: Value | None = None
    if learnt or dlse is not None:
        q, k, v = _transpose_values(emit, node, q, k, v)
        _, p = _softmax(emit, node, q, k, mask)
    if p is not None and dlse is not None:
        ds = emit("nn.mul", p, emit("nn.reshape", dlse, shape=(*spec_of(dlse).shape, 1)))
        terms.append(ds)
        scaled = emit("nn.mul", ds, emit.constant(score_scale(node.attrs, spec_of(q).shape[3]), q))
        products = emit("nn.matmul", scaled, k), emit("nn.matmul", scaled, q, transpose_a=1)
        for i, more in enumerate(_transpose_values(emit, node, *products)):
            gradients[i] = sum_present(emit, gradients[i], more)
    if p is not None and dy is not None:
        (dy,) = _transpose_values(emit, node, dy)
        terms.append(_score_gradient(emit, p, emit("nn.matmul", dy, v, transpose_b=1)))
    if mask is None or not learnt:
        return [*gradients, None][: len(node.inputs)]
    return [*gradients, sum_present(emit, *(sum_to_shape(emit, term, mask) for term in terms))]


def _gradient_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dy, q, k, v = _transpose_values(emit, node, *(operand(node, i) for i in range(4)))
    _, p = _softmax(emit, node, q, k, node.inputs[4] if len(node.inputs) > 4 else None)
    ds = _score_gradient(emit, p, emit("nn.matmul", dy, v, transpose_b=1))
    ds = emit("nn.mul", ds, emit.constant(score_scale(node.attrs, spec_of(q).shape[3]), q))
    dq, dk = emit("nn.matmul", ds, k), emit("nn.matmul", ds, q, transpose_a=1)
    return _transpose_values(emit, node, dq, dk, emit("nn.matmul", p, dy, transpose_a=1))


def slices_with_mask(position: int) -> Slices:
    """Return the fact: computed sample by sample, with the mask of each sample or one mask for all."""

    def slices(node: Node) -> SliceMaps:
        mask = shape_of(node.inputs[position]) if len(node.inputs) > position else ()
        one = len(mask) < len(shape_of(node.inputs[0])) or mask[0] == 1
        return same_axes(node, (0,), whole=(position,) if one else ())

    return slices


COMMANDS: tuple[Command, ...] = (
    Command(
        "attention",
        "Scaled dot-product attention (Vaswani et al. 2017): q [B, H, T, D], k [B, H, S, D], v [B, H, S, E] and a "
        "mask for [B, H, T, S], boolean or additive, -> (y [B, H, T, E], log-sum-exp of the scores). In the layout "
        "bthd, positions come before heads: q [B, T, H, D], k [B, S, H, D], v [B, S, H, E] and y [B, T, H, E].",
        _infer,
        _attention,
        _rule,
        {"scale": 0.0, "causal": False, "layout": "bhtd"},
        inputs=(3, 4),
        outputs=(2, 2),
        inplace=overwrite_unless_repeated((0, 0)),
        slices=slices_with_mask(3),
    ),
    Command(
        "attention_gradient",
        "The gradients of nn.attention: (dy, q, k, v, mask) -> (dq, dk, dv).",
        _gradient_infer,
        _attention_gradient,
        GradientByExpansion(_gradient_parts),
        {"scale": 0.0, "causal": False, "layout": "bhtd"},
        inputs=(4, 5),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 0), (0, 1)),
        slices=slices_with_mask(4),
    ),
)
