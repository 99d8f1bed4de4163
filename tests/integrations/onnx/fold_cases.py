"""Random nodes of every operator that may be folded, to be computed twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

Array = np.ndarray[Any, Any]


BETWEEN_HALVES = 1 + 2.0**-11 + 2.0**-40
"""A double a little above the middle of two numbers of 16 bits, which it is not as a float."""


@dataclass(frozen=True)
class Case:
    """One node: its attributes and the arrays it reads, None for an omitted one."""

    inputs: Sequence[Array | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1


@dataclass
class Draw:
    """Draws what a node needs, for elements of `dtype` and a version of the operator; some nodes get odd floats."""

    rng: np.random.Generator
    version: int
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        self.odd = self.rng.random() < 0.3

    def shape(self, low: int = 0, high: int = 3, smallest: int = 0) -> tuple[int, ...]:
        extents = self.rng.choice([0, 1, 1, 2, 2, 3, 3, 3, 4, 19], size=int(self.rng.integers(low, high + 1)))
        return tuple(max(int(extent), smallest) for extent in extents)

    def array(self, shape: Sequence[int], dtype: Any = None) -> Array:
        dtype = np.dtype(self.dtype if dtype is None else dtype)
        if dtype == np.bool_:
            return self.rng.integers(0, 2, size=shape).astype(bool)
        if dtype.kind in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            small = self.rng.integers(-5 if low else 0, 6, size=shape)
            extreme = self.rng.choice([low, low + 1, high - 1, high], size=shape) if high < 1 << 63 else small
            return np.where(self.rng.random(shape) < 0.1, extreme, small).astype(dtype)
        plain = self.rng.normal(size=shape) * 3
        halves = self.rng.integers(-7, 8, size=shape) / 2
        some = [0.0, np.inf, -np.inf, 1e-3, 1e3, *([-0.0, np.nan, BETWEEN_HALVES] if self.odd else [])]
        odd = self.rng.choice(some, size=shape)
        which = self.rng.random(shape)
        return np.where(which < 0.15, odd, np.where(which < 0.5, halves, plain)).astype(dtype)

    def tame(self, shape: Sequence[int], dtype: Any = None) -> Array:
        """Small finite numbers."""
        return self.rng.integers(0, 4, size=shape).astype(self.dtype if dtype is None else dtype)

    def either(self, shape: Sequence[int]) -> Array:
        """Small finite numbers, or any."""
        return self.tame(shape) if self.rng.random() < 0.5 else self.array(shape)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def axis(self, rank: int) -> int:
        return int(self.rng.integers(-rank, rank))

    def axes(self, rank: int, few: int = 0) -> list[int]:
        count = int(self.rng.integers(few, rank + 1))
        chosen = sorted(int(axis) for axis in self.rng.permutation(rank)[:count])
        return [axis - rank if self.rng.random() < 0.3 else axis for axis in chosen]

    def index(self, shape: Sequence[int], extent: int) -> Array:
        low = -extent if self.version >= 11 else 0
        kind = self.pick(np.int64, np.int32)
        return self.rng.integers(low, extent, size=shape).astype(kind)


def _i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _broadcast(draw: Draw, count: int) -> list[tuple[int, ...]]:
    whole = draw.shape()
    shapes = []
    for _ in range(count):
        kept = whole[int(draw.rng.integers(len(whole) + 1)) :]
        shapes.append(tuple(1 if draw.rng.random() < 0.3 else extent for extent in kept))
    return shapes


def _unary(draw: Draw) -> Case:
    return Case([draw.array(draw.shape())])


def _binary(draw: Draw) -> Case:
    return Case([draw.array(shape) for shape in _broadcast(draw, 2)])


def _several(draw: Draw) -> Case:
    shapes = _broadcast(draw, draw.pick(1, 2, 3))
    return Case([draw.array(shape if draw.version >= 8 else shapes[0]) for shape in shapes])


def _divided(draw: Draw) -> Case:
    a, b = (draw.array(shape) for shape in _broadcast(draw, 2))
    return Case([a, b if draw.dtype.kind == "f" else np.where((b == 0) | (b == -1), 3, b).astype(b.dtype)])


def _mod(draw: Draw) -> Case:
    case = _divided(draw)
    return Case(case.inputs, {"fmod": draw.pick(0, 1)} if draw.pick(0, 1) else {})


def _reduced(draw: Draw, by_input: int) -> Case:
    shape = draw.shape(1, smallest=1)
    data = draw.either(shape)
    attrs = {"keepdims": draw.pick(0, 1)}
    axes = draw.axes(data.ndim)
    if draw.version < by_input:
        return Case([data], {**attrs, **({"axes": axes} if axes else {})})
    noop = {"noop_with_empty_axes": draw.pick(0, 1)} if draw.pick(0, 1) else {}
    return Case([data, _i64(*axes)] if axes or draw.pick(0, 1) else [data], {**attrs, **noop})


def _arg(draw: Draw) -> Case:
    data = draw.either(draw.shape(1, smallest=1))
    attrs = {"axis": draw.axis(data.ndim) if draw.version >= 11 else 0, "keepdims": draw.pick(0, 1)}
    return Case([data], {**attrs, **({"select_last_index": draw.pick(0, 1)} if draw.version >= 12 else {})})


def _cast(draw: Draw) -> Case:
    target = draw.pick(np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64, np.float16)
    return Case([draw.array(draw.shape())], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))})


def _cast_like(draw: Draw) -> Case:
    target = draw.pick(np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64, np.float16)
    return Case([draw.array(draw.shape()), np.zeros(draw.shape(), target)])


def _clip(draw: Draw) -> Case:
    low, high = sorted([draw.pick(-2, 0, 1), draw.pick(0, 2, 3)])
    data = draw.array(draw.shape())
    low = max(low, 0) if draw.dtype.kind == "u" else low
    bounds = [np.array(low, draw.dtype), np.array(high, draw.dtype)]
    return Case([data, *draw.pick(bounds, bounds[:1], [None, bounds[1]], [])])


def _compress(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=1))
    if draw.pick(0, 1):
        keep = draw.array((int(draw.rng.integers(1, data.size + 1)),), bool)
        return Case([data, keep])
    axis = draw.axis(data.ndim) if draw.version >= 11 else int(draw.rng.integers(data.ndim))
    return Case([data, draw.array((int(draw.rng.integers(1, data.shape[axis] + 1)),), bool)], {"axis": axis})


def _concat(draw: Draw) -> Case:
    shape = draw.shape(1)
    axis = draw.axis(len(shape)) if draw.version >= 11 else int(draw.rng.integers(len(shape)))
    parts = []
    for _ in range(draw.pick(1, 2, 3)):
        own = list(shape)
        own[axis] = draw.pick(0, 1, 2)
        parts.append(draw.array(own))
    return Case(parts, {"axis": axis})


def _cumsum(draw: Draw) -> Case:
    data = draw.either(draw.shape(1, smallest=1))
    axis = np.array(draw.axis(data.ndim), draw.pick(np.int32, np.int64))
    return Case([data, axis], {"exclusive": draw.pick(0, 1), "reverse": draw.pick(0, 1)})


def _expand(draw: Draw) -> Case:
    data, other = _broadcast(draw, 2)
    return Case([draw.array(data), _i64(*other)])


def _eye(draw: Draw) -> Case:
    attrs = {"k": draw.pick(-1, 0, 2)} if draw.pick(0, 1) else {}
    return Case([draw.array(draw.shape(2, 2, 1))], {**attrs, **({"dtype": draw.pick(1, 7)} if draw.pick(0, 1) else {})})


def _flatten(draw: Draw) -> Case:
    data = draw.array(draw.shape(1))
    axis = int(draw.rng.integers(-data.ndim if draw.version >= 11 else 0, data.ndim + 1))
    return Case([data], {"axis": axis})


def _gather(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=1))
    axis = draw.axis(data.ndim)
    return Case([data, draw.index(draw.shape(0, 2), data.shape[axis])], {"axis": axis})


def _gather_elements(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=1))
    axis = draw.axis(data.ndim)
    shape = list(data.shape)
    shape[axis] = draw.pick(1, 2, 5)
    return Case([data, draw.index(shape, data.shape[axis])], {"axis": axis})


def _tuples(draw: Draw, shape: Sequence[int], length: int, batch: int = 0) -> Array:
    own = (*shape[:batch], *draw.shape(1, 1, 1), length)
    columns = [draw.index(own[:-1], extent) for extent in shape[batch : batch + length]]
    return np.stack(columns, axis=-1).astype(np.int64)


def _gather_nd(draw: Draw) -> Case:
    data = draw.array(draw.shape(2, smallest=1))
    batch = draw.pick(0, 1) if draw.version >= 12 else 0
    length = int(draw.rng.integers(1, data.ndim - batch + 1))
    return Case([data, _tuples(draw, data.shape, length, batch)], {"batch_dims": batch} if batch else {})


def _infinite(draw: Draw) -> Case:
    attrs = {"detect_negative": draw.pick(0, 1), "detect_positive": draw.pick(0, 1)} if draw.pick(0, 1) else {}
    return Case([draw.array(draw.shape())], attrs)


def _one_hot(draw: Draw) -> Case:
    indices = draw.rng.integers(-3 if draw.version >= 11 else 0, 4, size=draw.shape(1, 2, 1))
    return Case([indices, np.array(4, np.int64), draw.array((2,))], {"axis": draw.axis(indices.ndim + 1)})


def _pad(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=3))
    mode = draw.pick("constant", "edge", "reflect", *(["wrap"] if draw.version >= 19 else []))
    axes = draw.axes(data.ndim, 1) if draw.version >= 18 and draw.pick(0, 1) else None
    pads = [draw.pick(0, 1, 2) for _ in range(2 * len(axes or data.shape))]
    if draw.version < 11:
        return Case([data], {"mode": mode, "pads": pads, "value": 2.0})
    value = draw.tame(()) if mode == "constant" and draw.pick(0, 1) else None
    inputs = (
        [data, _i64(*pads), value, _i64(*axes)] if axes else [data, _i64(*pads), *([] if value is None else [value])]
    )
    return Case(inputs, {"mode": mode})


def _power(draw: Draw) -> Case:
    a, b = _broadcast(draw, 2)
    kind = draw.pick(draw.dtype, np.int64, np.float32) if draw.version >= 12 else draw.dtype
    return Case([draw.either(a), draw.tame(b, kind)])


def _range(draw: Draw) -> Case:
    whole = [(0, 5, 1), (3, -4, -2), (2, 2, 1), (5, 0, 1), (1, 8, 3)]
    start, limit, step = draw.pick(*whole, *([(0.1, 7, 0.3)] if draw.dtype.kind == "f" else []))
    return Case([np.array(number, draw.dtype) for number in (start, limit, step)])


def _reshape(draw: Draw) -> Case:
    data = draw.array(draw.shape(1))
    target = draw.pick(list(data.shape), list(reversed(data.shape)), [data.size], [0] * data.ndim, [1, *data.shape])
    if data.size:
        target = draw.pick(target, [-1], [0, -1], [-1, 1])
    zero = {"allowzero": 1} if draw.version >= 14 and -1 not in target and int(np.prod(target)) == data.size else {}
    if not zero and 0 in target[data.ndim :]:
        target = [data.size]
    if not zero and int(np.prod([data.shape[i] if t == 0 else t for i, t in enumerate(target)])) not in (data.size, -1):
        target = [0] * data.ndim
    return Case([data, _i64(*target)], zero if draw.pick(0, 1) or 0 in data.shape else {})


def _scatter(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=1))
    axis = draw.axis(data.ndim) if draw.version >= 11 else int(draw.rng.integers(data.ndim))
    shape = [int(draw.rng.integers(1, extent + 1)) for extent in data.shape]
    rows = [draw.rng.permutation(data.shape[axis])[: shape[axis]] for _ in range(int(np.prod(shape)) // shape[axis])]
    others = [extent for i, extent in enumerate(shape) if i != axis % data.ndim]
    index = np.moveaxis(np.array(rows, np.int64).reshape(*others, shape[axis]), -1, axis)
    return Case([data, index, draw.array(shape)], {"axis": axis})


def _scatter_nd(draw: Draw) -> Case:
    data = draw.array(draw.shape(1, smallest=1))
    length = int(draw.rng.integers(1, data.ndim + 1))
    indices = _tuples(draw, data.shape, length)[:1]
    return Case([data, indices, draw.array((*indices.shape[:-1], *data.shape[length:]))])


def _slice(draw: Draw) -> Case:
    data = draw.array(draw.shape(1))
    axes = draw.axes(data.ndim, 1)
    kind = draw.pick(np.int32, np.int64)
    starts, ends = ([int(draw.rng.integers(-5, 6)) for _ in axes] for _ in range(2))
    if draw.pick(0, 1):
        ends = [draw.pick(np.iinfo(np.int32).max, np.iinfo(np.int32).min + 1) for _ in axes]
    if draw.version < 10:
        axes = [axis % data.ndim for axis in axes]
        return Case([data], {"starts": starts, "ends": ends, "axes": axes})
    steps = [draw.pick(1, 2, -1, -2) for _ in axes]
    axes = [axis % data.ndim for axis in axes] if draw.version < 11 else axes
    inputs = [np.array(numbers, kind) for numbers in (starts, ends, axes, steps)]
    return Case([data, *inputs[: draw.pick(3, 4)]])


def _split(draw: Draw) -> Case:
    sizes = [draw.pick(1, 2, 3) for _ in range(draw.pick(1, 2, 3))]
    if equal := draw.pick(0, 1):
        sizes = [2] * len(sizes)
    shape = list(draw.shape(1))
    axis = draw.axis(len(shape)) if draw.version >= 11 else int(draw.rng.integers(len(shape)))
    shape[axis] = sum(sizes)
    attrs: dict[str, Any] = {"axis": axis}
    if equal:
        counted = {"num_outputs": len(sizes)} if draw.version >= 18 else {}
        return Case([draw.array(shape)], {**attrs, **counted}, len(sizes))
    if draw.version < 13:
        return Case([draw.array(shape)], {**attrs, "split": sizes}, len(sizes))
    return Case([draw.array(shape), _i64(*sizes)], attrs, len(sizes))


def _squeeze(draw: Draw) -> Case:
    shape = [draw.pick(1, 1, 2) for _ in draw.shape(1)]
    data = draw.array(shape)
    axes = [
        axis - (len(shape) if draw.version >= 11 and draw.pick(0, 1) else 0) for axis, n in enumerate(shape) if n == 1
    ]
    if draw.version < 13:
        return Case([data], {"axes": axes} if axes and draw.pick(0, 1) else {})
    return Case([data, _i64(*axes)] if axes and draw.pick(0, 1) else [data])


def _unsqueeze(draw: Draw) -> Case:
    data = draw.array(draw.shape())
    rank = data.ndim + draw.pick(1, 2)
    axes = [int(axis) for axis in draw.rng.permutation(rank)[: rank - data.ndim]]
    axes = [axis - rank for axis in axes] if draw.version >= 11 and draw.pick(0, 1) else sorted(axes)
    return Case([data], {"axes": axes}) if draw.version < 13 else Case([data, _i64(*axes)])


def _tile(draw: Draw) -> Case:
    data = draw.array(draw.shape(1))
    return Case([data, _i64(*(draw.pick(0, 1, 2) for _ in data.shape))])


def _top(draw: Draw) -> Case:
    data = draw.either(draw.shape(1, smallest=1))
    axis = draw.axis(data.ndim)
    k = int(draw.rng.integers(1, data.shape[axis] + 1))
    attrs: dict[str, Any] = {"axis": axis}
    if draw.version < 10:
        return Case([data], {**attrs, "k": k}, 2)
    if draw.version >= 11:
        attrs |= {"largest": draw.pick(0, 1), "sorted": 1}
    return Case([data, _i64(k)], attrs, 2)


def _transpose(draw: Draw) -> Case:
    data = draw.array(draw.shape())
    order = [int(axis) for axis in draw.rng.permutation(data.ndim)]
    return Case([data], {"perm": order} if order and draw.pick(0, 1) else {})


def _trilu(draw: Draw) -> Case:
    data = draw.array(draw.shape(2, 3, 1))
    return Case(
        [data, *([np.array(draw.pick(-1, 0, 2), np.int64)] if draw.pick(0, 1) else [])], {"upper": draw.pick(0, 1)}
    )


def _where(draw: Draw) -> Case:
    a, b, c = _broadcast(draw, 3)
    return Case([draw.array(a, bool), draw.array(b), draw.array(c)])


MAKE: dict[str, Callable[[Draw], Case]] = {
    **dict.fromkeys(("Abs", "BitwiseNot", "Ceil", "Floor", "Identity", "IsNaN", "Neg"), _unary),
    **dict.fromkeys(("NonZero", "Not", "Reciprocal", "Round", "Sign", "Sqrt"), _unary),
    **dict.fromkeys(("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater"), _binary),
    **dict.fromkeys(("GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Or", "Sub", "Xor"), _binary),
    **dict.fromkeys(("Max", "Min"), _several),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), lambda draw: _reduced(draw, 18)),
    **{"ReduceSum": lambda draw: _reduced(draw, 13), "Div": _divided, "Mod": _mod},
    **{"Cast": _cast, "CastLike": _cast_like, "Clip": _clip, "Compress": _compress, "Concat": _concat},
    **{"CumSum": _cumsum, "Expand": _expand, "EyeLike": _eye, "Flatten": _flatten, "Gather": _gather},
    **{"GatherElements": _gather_elements, "GatherND": _gather_nd, "IsInf": _infinite, "OneHot": _one_hot},
    **{"Pad": _pad, "Pow": _power, "Range": _range, "Reshape": _reshape, "ScatterElements": _scatter},
    **{"ScatterND": _scatter_nd, "Slice": _slice, "Split": _split},
    **{"Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Tile": _tile, "TopK": _top, "Transpose": _transpose},
    **{"Trilu": _trilu, "Where": _where},
}
"""For every operator that may be folded, how to draw a node of it."""
