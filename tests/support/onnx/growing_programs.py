"""Generated ONNX loops with carried values that grow: along random axes, at random rates, with random readers.

Every carried value has three axes. In the first iteration, the axis of growth has the extent of a dimension of the
model, or a fixed one. New rows are computed from reductions of all carried values, of the input and of the number of
the iteration.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from benchmarks.models.builder import Builder
from sublet.base.boxes import Range

RANGES = (Range("s", 1, 4),)
"""From 1: ONNX Runtime 1.31 divides by zero in reductions of no elements."""

SIZES = (1, 2, 3)
MOST_TRIPS = 5

Extents = tuple[int | str, int | str, int | str]


@dataclass
class _Carried:
    """A carried value: its name in the body, the axis of growth (None for a fixed shape), and the other extents."""

    name: str
    axis: int | None
    extents: Extents


@dataclass
class _Writer:
    """Writes the readers of carried values in the body of a loop."""

    rng: random.Random
    b: Builder

    def reader(self, value: _Carried) -> str:
        """Append nodes that reduce a carried value to [1, 1, 2], and return the result."""
        axis = self.rng.randrange(3) if value.axis is None else value.axis
        readers: list[Callable[[str, int], str]] = [self._sum, self._last_row, self._attention, self._extent]
        readers += [self._elements, self._joined, self._sliced]
        return self._as_row(self.rng.choice(readers)(value.name, axis))

    def _as_row(self, x: str) -> str:
        """Return the sum of a value as a row of [1, 1, 2]."""
        total = self.b.op("ReduceSum", x, keepdims=0)
        return self.b.op("Tanh", self.b.op("Mul", total, self.b.random_weight(1, 1, 2)))

    def _sum(self, x: str, axis: int) -> str:
        return self.b.op("ReduceSum", x, self.b.ints(axis), keepdims=1)

    def _last_row(self, x: str, axis: int) -> str:
        padded = self.b.op("Concat", self.b.op("ReduceMax", self._with_row(x, axis), axes=[axis]), x, axis=axis)
        return self.b.op("Gather", padded, self.b.scalar(-1), axis=axis)

    def _with_row(self, x: str, axis: int) -> str:
        """Return a value with a row of its sums: a maximum of no rows is no number."""
        return self.b.op("Concat", x, self.b.op("ReduceSum", x, self.b.ints(axis)), axis=axis)

    def _attention(self, x: str, axis: int) -> str:
        """Products with the value as a cache, on either side."""
        b, last = self.b, [i for i in range(3) if i != axis][self.rng.randrange(2)]
        outer = next(i for i in range(3) if i not in (axis, last))
        columns = b.op("Transpose", x, perm=[outer, last, axis])
        query = b.op("ReduceSum", b.op("Transpose", x, perm=[outer, axis, last]), b.ints(1))
        scores = b.op("MatMul", b.op("Sin", query), columns)
        weights = b.op("Sigmoid", b.op("Div", scores, b.filled(3.0)))
        return b.op("MatMul", weights, b.op("Transpose", x, perm=[outer, axis, last]))

    def _extent(self, x: str, axis: int) -> str:
        extent = self.b.op("Gather", self.b.op("Shape", x), self.b.ints(axis))
        return self.b.op("Div", self.b.op("Cast", extent, to=TensorProto.FLOAT), self.b.filled(10.0))

    def _elements(self, x: str, axis: int) -> str:
        return self.b.op(self.rng.choice(("Sin", "Relu", "Neg")), self.b.op("Cos", x))

    def _joined(self, x: str, axis: int) -> str:
        return self.b.op("Concat", x, self.b.op("Sin", x), axis=axis)

    def _sliced(self, x: str, axis: int) -> str:
        """The rows without the last one."""
        b, whole = self.b, self._with_row(x, axis)
        end = b.op("Sub", b.op("Gather", b.op("Shape", whole), b.ints(axis)), b.ints(1))
        return b.op("Slice", whole, b.ints(0), end, b.ints(axis))


def growing_program(seed: int) -> onnx.ModelProto:
    """Return a model with the input x of [s, 1, 2], a loop, and outputs of fixed and of grown values."""
    rng = random.Random(seed)
    b = Builder("growing", seed)
    x = b.input("x", ("s", 1, 2))
    count = rng.randint(0, MOST_TRIPS)
    carried: list[_Carried] = []
    starts: list[str] = []
    for i in range(rng.randint(1, 3)):
        axis = rng.choice((0, 1, 2, None))
        sizes = [rng.choice(SIZES) for _ in range(3)]
        start = b.op("Expand", b.op("ReduceSum", x, keepdims=1), b.ints(*sizes))
        if axis is not None and rng.random() < 0.5:  # as many rows as the input
            row = b.op("Slice", start, b.ints(0), b.ints(1), b.ints(axis))
            extents = [b.op("Gather", b.op("Shape", x), b.ints(0)) if k == axis else b.ints(sizes[k]) for k in range(3)]
            start = b.op("Expand", row, b.op("Concat", *extents, axis=0))
        extents_of: list[int | str] = [f"grown{i}" if k == axis else sizes[k] for k in range(3)]
        carried.append(_Carried(f"value{i}", axis, (extents_of[0], extents_of[1], extents_of[2])))
        starts.append(start)
    yes = b.op("Cast", b.scalar(1), to=TensorProto.BOOL)
    before = len(b.nodes)
    writer = _Writer(rng, b)
    number = b.op("Div", b.op("Cast", "iteration", to=TensorProto.FLOAT), b.filled(4.0))
    row = b.op("Add", b.op("ReduceSum", x, keepdims=1), number)
    updates: list[str] = []
    is_late = rng.random() < 0.5
    grown = list(carried)
    for i, value in enumerate(carried):
        for _ in range(rng.randint(1, 3)):
            row = b.op("Add", row, writer.reader(rng.choice(grown if is_late else carried)))
        sizes = [each if isinstance(each, int) else rng.randint(1, 3) for each in value.extents]
        new = b.op("Expand", b.op("ReduceMean", row, keepdims=1), b.ints(*sizes))
        if value.axis is None:
            updates.append(b.op("Add", b.op("Sin", value.name), new))
        else:
            updates.append(b.op("Concat", value.name, new, axis=value.axis - rng.choice((0, 3))))
        grown[i] = _Carried(updates[-1], value.axis, value.extents)
    is_counted = rng.random() < 0.5
    condition = b.op("Less", b.op("ReduceMax", row, keepdims=0), b.filled(2.5))
    goes_on = b.op("Identity", "condition") if is_counted else condition
    value, number = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [value("iteration", TensorProto.INT64, ()), value("condition", TensorProto.BOOL, ())]
    inputs += [value(each.name, number, each.extents) for each in carried]
    results = [value(goes_on, TensorProto.BOOL, ())]
    for new, each in zip(updates, carried, strict=True):
        results.append(value(new, number, [f"{e}+" if isinstance(e, str) else e for e in each.extents]))
    body = helper.make_graph(b.nodes[before:], "body", inputs, [*results, value(row, number, (1, 1, 2))])
    trip = b.scalar(count) if is_counted else b.input("count", (), TensorProto.INT64)
    finals = [f"loop_final{i}" for i in range(len(carried))]
    loop = helper.make_node("Loop", [trip, yes, *starts], [*finals, "rows"], name="loop", body=body)
    b.nodes = [*b.nodes[:before], loop]
    whole = [i for i, each in enumerate(carried) if is_counted or each.axis is None]
    model = b.model(**{f"final{i}": finals[i] for i in whole})
    model.graph.output.append(helper.make_empty_tensor_value_info("rows"))
    return model
