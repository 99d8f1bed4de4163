"""Reductions over axes, and their inverse: broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops import slice_maps
from sublet.ops.nn.command import (
    REQUIRED_INTEGER,
    REQUIRED_INTEGERS,
    REQUIRED_NUMBER,
    Command,
    Required,
    overwrite_unless_repeated,
    pick,
    same_bytes,
    spec_of,
)
from sublet.ops.nn.rules import (
    ANY,
    FLOATS,
    NUMBERS,
    broadcast_shape,
    elementwise_gradient,
    normalize_axes,
    normalize_axis,
    only_gradient,
    operand,
    require_equal,
    require_shape,
    require_type,
    reshape_to,
    result,
    term_by_op,
)
from sublet.ops.op import Attrs, Emit, Gradient, GradientByExpansion, Grads, Infer, Specs, overwrite_any
from sublet.ops.slice_maps import SliceMaps, same_axes, shape_of, slice_map


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: int) -> tuple[int, ...]:
    """Return the shape without `axes`, or with 1 in place of `axes`."""
    gone = normalize_axes(axes, len(shape))
    if keepdims:
        return tuple(1 if axis in gone else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def infer_reduced(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of a reduction of numbers."""
    x = require_type(specs[0], NUMBERS)
    return (TensorSpec(x.dtype, reduced_shape(x.shape, pick(attrs, "axes"), pick(attrs, "keepdims"))),)


def _infer_mean(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    require_type(specs[0], FLOATS)
    return infer_reduced(specs, attrs)


def _mean_of(x: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / x.dtype.type(x.size // max(1, total.size))


def spread_gradient(emit: Emit, node: Node, grad: Value) -> Value:
    """Return the gradient of a reduced value, broadcast to every reduced element."""
    x = spec_of(operand(node, 0))
    kept = reduced_shape(x.shape, pick(node.attrs, "axes"), 1)
    return emit("nn.broadcast_to", emit("nn.reshape", grad, shape=kept), shape=x.shape)


def _reduced_slices(node: Node, *, sums: bool) -> SliceMaps:
    """Return the maps along the axes not reduced, and, with `sums`, along those reduced: the result is a sum."""
    reduced = normalize_axes(pick(node.attrs, "axes"), len(shape_of(node.inputs[0])))
    added = same_axes(node, reduced, sums=(0,)) if sums else ()
    return slice_maps.reduced_axes(node, reduced, keepdims=bool(pick(node.attrs, "keepdims"))) + added


def reduction_command(name: str, text: str, infer: Infer, function: Callable[..., Any], rule: Gradient) -> Command:
    """Return a command reducing over `axes`; over all axes for ()."""

    def compute(x: Any, axes: tuple[int, ...], keepdims: int) -> Any:
        return function(x, axis=tuple(axes) or None, keepdims=bool(keepdims))

    return Command(
        name,
        text,
        infer,
        compute,
        rule,
        {"axes": (), "keepdims": False},
        views=same_bytes,
        slices=partial(_reduced_slices, sums=name == "sum"),
    )


def _sum(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [spread_gradient(emit, node, only_gradient(grads))]


def _mean(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    grad = only_gradient(grads)
    count = spec_of(operand(node, 0)).size // max(1, spec_of(grad).size)
    return [spread_gradient(emit, node, emit("nn.mul", grad, emit.constant(1 / max(1, count), grad)))]


def _sum_to_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], NUMBERS), require_shape(pick(attrs, "shape"))
    smaller = TensorSpec(x.dtype, shape)
    if broadcast_shape([x, smaller]) != x.shape:
        raise SpecError(f"{x} cannot be summed to the shape {list(shape)}")
    return (smaller,)


def _sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    extra = x.ndim - len(shape)
    axes = tuple(a for a in range(x.ndim) if a < extra or (shape[a - extra] == 1 and x.shape[a] != 1))
    return np.sum(x, axis=axes, keepdims=True).reshape(shape)


def _broadcast_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], ANY), require_shape(pick(attrs, "shape"))
    wanted = TensorSpec(x.dtype, shape)
    if broadcast_shape([x, wanted]) != shape:
        raise SpecError(f"{x} cannot be broadcast to the shape {list(shape)}")
    return (wanted,)


def _reshape_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, shape = require_type(specs[0], ANY), require_shape(pick(attrs, "shape"))
    if prod(shape) != x.size:
        raise SpecError(f"{x} has {x.size} elements, the shape {list(shape)} has {prod(shape)}")
    return (TensorSpec(x.dtype, shape),)


def gradient_with_shape(op: str) -> Gradient:
    """Return the gradient rule of a command changing the shape: `op` with the shape of the input."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        return [emit(op, only_gradient(grads), shape=spec_of(operand(node, 0)).shape)]

    return gradient


def _sum_to_slices(node: Node) -> SliceMaps:
    """Return the maps along each axis of the input: along the axis of the result, or, for axes not kept, as sums."""
    maps: SliceMaps = ()
    for axis in range(len(shape_of(node.inputs[0]))):
        to = slice_maps.aligned_axis(node.outputs[0], node.inputs[0], axis)
        facts = {} if to is None else {"attrs": slice_maps.resize("shape", to)}
        maps += slice_map(node, [axis], [to], **facts)
    return maps


def _reshape_slices(node: Node) -> SliceMaps:
    """Return the map along all axes, flattened: a reshape keeps the order of elements. Slices must be rows of both."""

    def attrs(given: Attrs, begin: int, end: int) -> dict[str, Attr]:
        first, *rest = pick(given, "shape")
        return {**given, "shape": (first * (end - begin) // spec_of(operand(node, 0)).size, *rest)}

    x, y = (range(len(shape_of(value))) for value in (node.inputs[0], node.outputs[0]))
    return slice_map(node, [x], [y], attrs=attrs)


REDUCTION_COMMANDS = (
    reduction_command("sum", "The sum over axes; over all for ().", infer_reduced, np.sum, _sum),
    reduction_command("mean", "The mean over axes; over all for ().", _infer_mean, _mean_of, _mean),
    Command(
        "sum_to",
        "The sum over the axes broadcast from `shape` to x: the inverse of nn.broadcast_to.",
        _sum_to_infer,
        _sum_to,
        gradient_with_shape("nn.broadcast_to"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
        slices=_sum_to_slices,
    ),
    Command(
        "broadcast_to",
        "Repeated along axes of extent 1 and new leading axes, as NumPy does it.",
        _broadcast_infer,
        lambda x, shape: np.broadcast_to(x, shape),
        gradient_with_shape("nn.sum_to"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
        slices=lambda node: slice_maps.elementwise_axes(node, partial(slice_maps.resize, "shape")),
    ),
    Command(
        "reshape",
        "The same elements in another shape.",
        _reshape_infer,
        lambda x, shape: x.reshape(shape),
        gradient_with_shape("nn.reshape"),
        {"shape": REQUIRED_INTEGERS},
        views=same_bytes,
        slices=_reshape_slices,
    ),
)


# Reductions by selection or product (max, min, argmax, argmin, prod, norm), top-k, histograms and running sums.

Axes = tuple[int, ...]


def _infer_nonempty(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of a reduction undefined for no elements. Raises SpecError for an empty reduction."""
    (y,) = infer_reduced(specs, attrs)
    x = require_type(specs[0], NUMBERS)
    if y.size and not x.size:
        raise SpecError(f"{x} has no elements along the axes {list(pick(attrs, 'axes'))}, expected at least one")
    return (y,)


def _infer_gradient(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of x for (dy, x, y?); dy and y must have the spec of the reduced x."""
    x = require_type(specs[1], FLOATS, "x")
    for i, spec in enumerate(specs):
        if i != 1:
            (small,) = infer_reduced([x], attrs)
            require_equal(require_type(spec, FLOATS, f"input {i}"), small, f"input {i}, and the reduced x,")
    return (x,)


def _keep_axes(emit: Emit, node: Node, small: Value, position: int) -> Value:
    """Return a reduced value with extent 1 along the reduced axes, broadcastable to the input."""
    shape = reduced_shape(spec_of(operand(node, position)).shape, pick(node.attrs, "axes"), 1)
    return reshape_to(emit, small, shape)


def _axes_attrs(node: Node) -> dict[str, Any]:
    return {name: pick(node.attrs, name) for name in ("axes", "keepdims")}


def _extremum_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [emit("nn.extremum_gradient", only_gradient(grads), operand(node, 0), result(node), **_axes_attrs(node))]


def _extremum_gradient(dy: Any, x: Any, y: Any, axes: Axes, keepdims: int) -> Any:
    """Return dy in equal shares at the elements of x equal to y."""
    kept = reduced_shape(x.shape, axes, 1)
    mask = x == y.reshape(kept)
    count = np.maximum(mask.sum(tuple(axes) or None, keepdims=True), 1)
    return mask * (dy.reshape(kept) / count).astype(x.dtype)


def _extremum_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dy, x, y = (operand(node, i) for i in range(3))
    mask = emit("nn.equal", x, _keep_axes(emit, node, y, 1))
    count = emit("nn.sum", emit("nn.cast", mask, dtype=spec_of(x).dtype.text), **_axes_attrs(node))
    count = emit("nn.maximum", count, emit.constant(1, x))
    share = emit("nn.broadcast_to", _keep_axes(emit, node, emit("nn.div", dy, count), 1), shape=spec_of(x).shape)
    return [emit("nn.where", mask, share, emit.constant(0, x))]


def _prod_gradient(dy: Any, x: Any, axes: Axes, keepdims: int) -> Any:
    """Return dy times the product of all other elements.

    With one zero, only the gradient of the zero is nonzero; with several zeros, all gradients are 0.
    """
    kept, over_all = reduced_shape(x.shape, axes, 1), tuple(axes) or None
    zero = x == 0
    count = zero.sum(over_all, keepdims=True)
    others = np.where(zero, 1, x)
    product = np.prod(others, over_all, keepdims=True) * dy.reshape(kept)
    return np.where(zero == count, product / others, 0)


def _prod_parts(emit: Emit, node: Node) -> Sequence[Value]:
    """Write the product as a binary tree of products and differentiate the tree: no division is needed."""
    dy, x = operand(node, 0), operand(node, 1)
    shape = spec_of(x).shape
    gone = normalize_axes(pick(node.attrs, "axes"), len(shape))
    axes = sorted(range(len(shape)), key=lambda axis: axis in gone)
    turned = [shape[axis] for axis in axes]
    size, count = prod(shape[axis] for axis in axes if axis not in gone), prod(shape[axis] for axis in gone)
    rows = reshape_to(emit, emit("nn.transpose", x, axes=tuple(axes)), (size, count))
    grad = reshape_to(emit, _row_product_gradient(emit, reshape_to(emit, dy, (size, 1)), rows), tuple(turned))
    return [emit("nn.transpose", grad, axes=tuple(axes.index(axis) for axis in range(len(axes))))]


def _row_product_gradient(emit: Emit, dy: Value, x: Value) -> Value:
    """Return the gradient of the product of each row.

    Each element receives the gradient of its pair's product, times the partner in the pair.
    """
    size, count = spec_of(x).shape
    if count < 2:
        return dy if count else x
    if count % 2:
        x = emit("nn.pad", x, pads=(0, 0, 0, 1), value=1.0)
    pairs = emit("nn.reshape", x, shape=(size, (count + 1) // 2, 2))
    first, second = emit.all_outputs("nn.split", pairs, axis=2, sizes=(1, 1))
    of_pairs = _row_product_gradient(
        emit, dy, reshape_to(emit, emit("nn.mul", first, second), (size, (count + 1) // 2))
    )
    others = emit("nn.flip", pairs, axes=(2,))
    grad = emit("nn.mul", others, emit("nn.reshape", of_pairs, shape=(size, (count + 1) // 2, 1)))
    grad = emit("nn.reshape", grad, shape=(size, count + count % 2))
    return emit("nn.slice", grad, starts=(0, 0), ends=(size, count), steps=(1, 1)) if count % 2 else grad


def _norm_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, p = require_type(specs[0], FLOATS), pick(attrs, "p")
    if not p > 0:
        raise SpecError(f"p = {p} must be above 0: 1, 2, inf, ...")
    return (_infer_nonempty if p == inf else infer_reduced)([x], attrs)


def _norm(x: Any, p: float, axes: Axes, keepdims: int) -> Any:
    over_all, kept = tuple(axes) or None, bool(keepdims)
    if p == inf:
        return np.abs(x).max(over_all, keepdims=kept)
    if p == 2:
        return np.sqrt(np.square(x).sum(over_all, keepdims=kept))
    return np.power(np.power(np.abs(x), p).sum(over_all, keepdims=kept), 1 / p)


def _norm_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Return dy sign(x) (|x| / y)^(p - 1); 0 for y = 0. For p = 1 and 2, extra factors have only the size of y."""
    x, y, dy, p = operand(node, 0), result(node), only_gradient(grads), pick(node.attrs, "p")
    if p == inf:
        size = emit("nn.abs", x)
        return [emit("nn.mul", emit("nn.extremum_gradient", dy, size, y, **_axes_attrs(node)), emit("nn.sign", x))]
    if p == 1:
        return [emit("nn.mul", emit("nn.sign", x), _keep_axes(emit, node, dy, 0))]
    scale = y if p == 2 else emit("nn.pow", y, emit.constant(p - 1, y))
    nothing = emit("nn.equal", y, emit.constant(0, y))
    scale = _keep_axes(emit, node, emit("nn.masked_fill", emit("nn.div", dy, scale), nothing, value=0.0), 0)
    if p == 2:
        return [emit("nn.mul", x, scale)]
    powers = emit("nn.pow", emit("nn.abs", x), emit.constant(p - 1, x))
    if p < 1:  # the slope is unbounded at x = 0; use 0, as PyTorch does
        powers = emit("nn.masked_fill", powers, emit("nn.equal", x, emit.constant(0, x)), value=0.0)
    return [emit("nn.mul", emit("nn.mul", emit("nn.sign", x), powers), scale)]


def _position_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], NUMBERS)
    axis = normalize_axis(pick(attrs, "axis"), len(x.shape))
    (y,) = _infer_nonempty([x], {"axes": (axis,), "keepdims": pick(attrs, "keepdims")})
    return (TensorSpec(DType.I64, y.shape),)


def _top_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, k = require_type(specs[0], NUMBERS), pick(attrs, "k")
    axis = normalize_axis(pick(attrs, "axis"), len(x.shape))
    if not 0 < k <= x.shape[axis]:
        raise SpecError(f"k = {k} must be from 1 to {x.shape[axis]}, the extent of axis {axis} of {x}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorSpec(x.dtype, shape), TensorSpec(DType.I64, shape)


def _top_k(x: Any, k: int, axis: int, largest: int) -> Any:
    """Return the k largest or smallest elements and positions.

    NaN is above all numbers; of equal elements the first comes first.
    """
    if largest:
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, order, axis), order


def _top_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    x = operand(node, 0)
    if grads[0] is None:
        return [None]
    zeros = emit.constant(0, x, spec_of(x).shape)
    return [emit("nn.scatter_add", zeros, result(node, 1), grads[0], axis=pick(node.attrs, "axis"))]


def _histogram_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    require_type(specs[0], FLOATS)
    low, high, bins = (pick(attrs, key) for key in ("low", "high", "bins"))
    if not -inf < low < high < inf or bins < 1:
        raise SpecError(f"{bins} bins from {low} to {high}: expected at least one bin, and low below high")
    return (TensorSpec(DType.I64, (bins,)),)


def _histogram(x: Any, bins: int, low: float, high: float) -> Any:
    numbers = x[np.isfinite(x)].astype(np.float64)
    return np.histogram(numbers, bins, (low, high))[0].astype(np.int64)


def _running_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = require_type(specs[0], NUMBERS)
    normalize_axis(pick(attrs, "axis"), len(x.shape))
    return (x,)


def _cumsum(x: Any, axis: int, reverse: int) -> Any:
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)


def _running_back(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return [
        emit("nn.cumsum", only_gradient(grads), axis=pick(node.attrs, "axis"), reverse=1 - pick(node.attrs, "reverse"))
    ]


def _position_command(name: str, text: str, function: Callable[..., Any]) -> Command:
    """Return a command for the position of the first extreme element."""
    return Command(
        name,
        text,
        _position_infer,
        lambda x, axis, keepdims: function(x, axis, keepdims=bool(keepdims)),
        attrs={"axis": REQUIRED_INTEGER, "keepdims": False},
        slices=slice_maps.axes_beside(after=False),
    )


_AXES: Mapping[str, Attr | Required] = {"axes": (), "keepdims": False}

COMMANDS = (
    *REDUCTION_COMMANDS,
    reduction_command(
        "max", "The largest element over axes; over all for ().", _infer_nonempty, np.max, _extremum_back
    ),
    reduction_command(
        "min", "The smallest element over axes; over all for ().", _infer_nonempty, np.min, _extremum_back
    ),
    reduction_command(
        "prod",
        "The product over axes; over all for ().",
        infer_reduced,
        np.prod,
        elementwise_gradient(term_by_op("nn.prod_gradient", 0)),
    ),
    Command(
        "extremum_gradient",
        "The gradient of nn.max and nn.min: (dy, x, y) -> dx, in equal shares where x is y.",
        _infer_gradient,
        _extremum_gradient,
        GradientByExpansion(_extremum_parts),
        _AXES,
        inputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 1)),
    ),
    Command(
        "prod_gradient",
        "The gradient of nn.prod: (dy, x) -> dx, exact for elements of 0 too.",
        _infer_gradient,
        _prod_gradient,
        GradientByExpansion(_prod_parts),
        _AXES,
        inputs=(2, 2),
    ),
    Command(
        "norm",
        "(sum of |x|^p)^(1/p) over axes, over all for (); the largest |x| for p = inf.",
        _norm_infer,
        _norm,
        _norm_back,
        {"p": 2.0, "axes": (), "keepdims": False},
    ),
    _position_command("argmax", "The index of the first of the largest elements along an axis, as i64.", np.argmax),
    _position_command("argmin", "The index of the first of the smallest elements along an axis, as i64.", np.argmin),
    Command(
        "top_k",
        "The k largest elements along an axis, or the k smallest, in order, and their indices, as i64. "
        "Equal elements keep their order; NaN is above all numbers.",
        _top_infer,
        _top_k,
        _top_back,
        {"k": REQUIRED_INTEGER, "axis": -1, "largest": True},
        outputs=(2, 2),
    ),
    Command(
        "histogram",
        "The number of elements in each of `bins` intervals of equal length from low to high, as i64. "
        "The last interval includes both ends; elements outside are not counted.",
        _histogram_infer,
        _histogram,
        attrs={"bins": REQUIRED_INTEGER, "low": REQUIRED_NUMBER, "high": REQUIRED_NUMBER},
    ),
    Command(
        "cumsum",
        "Cumulative sums along an axis, from the far end if `reverse` is 1.",
        _running_infer,
        _cumsum,
        _running_back,
        {"axis": REQUIRED_INTEGER, "reverse": False},
        inplace=overwrite_any(0),
        slices=slice_maps.axes_beside(),
    ),
)
