"""Generated ONNX programs with extents that depend on data: NonZero, Compress, Unique, NonMaxSuppression, Range, TopK.

Rows are values of [rows, 16]: those of the input x, as many as the dimension n, and those that data choose. Steps take
any number of rows, none included.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from benchmarks.models.builder import Builder
from sublet.base.boxes import Range

MOST_ROWS = 6
RANGES = (Range("n", 1, MOST_ROWS),)
WIDTH = 16


@dataclass
class MeasuredProgram:
    """A program under construction.

    rows      values of [rows, 16], by the source of their number of rows
    declared  the names of extents that depend on data, each with the value and the axis; axis None for the element
    equal     the names of extents declared as another extent
    """

    rng: random.Random
    b: Builder
    rows: list[tuple[str, str]] = field(default_factory=list)
    declared: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    equal: dict[str, str] = field(default_factory=dict)

    def add_source(self) -> None:
        """Append rows that data choose from other rows."""
        sources: list[Callable[[str], tuple[str, str]]] = [self._nonzero, self._compress, self._unique, self._boxes]
        sources += [self._counted, self._largest]
        self.rows.append(self.rng.choice(sources)(self.rng.choice(self.rows)[0]))

    def add_step(self) -> None:
        """Append rows computed from other rows."""
        name, source = self.rng.choice(self.rows)
        steps: list[Callable[[str], str]] = [self._elements, self._product, self._attention, self._extent, self._half]
        new = self.rng.choice(steps)(name)
        others = [each for each, of in self.rows if of == source]
        if len(others) > 1 and self.rng.random() < 0.5:
            new = self.b.op("Add", new, self.rng.choice(others)) if not new.startswith("Slice") else new
        self.rows.append((new, new if new.startswith("Slice") else source))
        if self.rng.random() < 0.3:
            whole = self.b.op("Concat", new, self.rng.choice(self.rows)[0], axis=0)
            self.rows.append((whole, whole))

    def _declare(self, value: str, axis: int | None) -> str:
        name = value if axis is None or self.rng.random() < 0.3 else f"{value}:{axis}"
        self.declared[name] = value, axis
        return value

    def _as_rows(self, column: str) -> str:
        """Return [rows] as [rows, 16]."""
        return self.b.op("Mul", self.b.op("Unsqueeze", column, self.b.ints(1)), self.b.random_weight(1, WIDTH))

    def _nonzero(self, x: str) -> tuple[str, str]:
        found = self._declare(self.b.op("NonZero", self.b.op("Relu", x)), 1)
        return self._as_rows(self.b.op("GatherND", x, self.b.op("Transpose", found, perm=[1, 0]))), found

    def _compress(self, x: str) -> tuple[str, str]:
        chosen = self.b.op("Greater", self.b.op("ReduceSum", x, self.b.ints(1), keepdims=0), self.b.filled(0.0))
        found = self._declare(self.b.op("Compress", x, chosen, axis=0), 0)
        return found, found

    def _unique(self, x: str) -> tuple[str, str]:
        found = self._declare(self.b.op("Unique", self.b.op("Round", x)), 0)
        return self._as_rows(found), found

    def _boxes(self, x: str) -> tuple[str, str]:
        corners = self.b.op("Slice", x, self.b.ints(0), self.b.ints(4), self.b.ints(1))
        boxes = self.b.op("Unsqueeze", self.b.op("Sigmoid", corners), self.b.ints(0))
        scores = self.b.op("ReduceSum", self.b.op("Unsqueeze", x, self.b.ints(0, 1)), self.b.ints(3), keepdims=0)
        limits = self.b.ints(MOST_ROWS), self.b.filled(0.5, 1), self.b.filled(0.0, 1)
        found = self._declare(self.b.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=1), 0)
        return self.b.op("Gather", x, self.b.op("Gather", found, self.b.scalar(2), axis=1)), found

    def _count_of(self, x: str) -> str:
        total = self.b.op("Abs", self.b.op("ReduceSum", x, keepdims=0))
        return self.b.op("Cast", self.b.op("Clip", total, self.b.filled(0.0), self.b.filled(9.0)), to=TensorProto.INT64)

    def _counted(self, x: str) -> tuple[str, str]:
        count = self._count_of(x)
        is_declared = self.rng.random() < 0.6
        if is_declared:
            self._declare(count, None)
        numbers = self.b.op("Range", self.b.scalar(0), count, self.b.scalar(1))
        if not is_declared:
            self._declare(numbers, 0)
        elif self.rng.random() < 0.5:
            shape = self.b.op("Concat", self.b.op("Unsqueeze", count, self.b.ints(0)), self.b.ints(WIDTH), axis=0)
            return self.b.op("Expand", self.b.random_weight(1, WIDTH), shape), count
        return self._as_rows(self.b.op("Cast", numbers, to=TensorProto.FLOAT)), count

    def _largest(self, x: str) -> tuple[str, str]:
        flat = self.b.op("Concat", self.b.op("Reshape", x, self.b.ints(-1)), self.b.filled(0.5, 9), axis=0)
        count = self.b.op("Unsqueeze", self._count_of(x), self.b.ints(0))
        values, places = self.b.ops("TopK", 2, flat, count)
        found = self._declare(values, 0)
        self.equal[f"{places}:0"] = next(reversed(self.declared))
        return self._as_rows(self.b.op("Mul", found, self.b.op("Cast", places, to=TensorProto.FLOAT))), found

    def _elements(self, x: str) -> str:
        return self.b.op(self.rng.choice(("Sin", "Relu", "Tanh")), self.b.op("Neg", x))

    def _product(self, x: str) -> str:
        return self.b.op("MatMul", x, self.b.random_weight(WIDTH, WIDTH))

    def _attention(self, x: str) -> str:
        scores = self.b.op("MatMul", self.b.op("Sin", x), self.b.op("Transpose", x, perm=[1, 0]))
        return self.b.op("MatMul", self.b.op("Sigmoid", scores), x)

    def _extent(self, x: str) -> str:
        extent = self.b.op("Gather", self.b.op("Shape", x), self.b.scalar(0))
        return self.b.op("Add", x, self.b.op("Cast", extent, to=TensorProto.FLOAT))

    def _half(self, x: str) -> str:
        extent = self.b.op("Gather", self.b.op("Shape", x), self.b.ints(0))
        return self.b.op("Slice", x, self.b.ints(0), self.b.op("Div", extent, self.b.ints(2)), self.b.ints(0))


def measured_program(seed: int) -> tuple[onnx.ModelProto, MeasuredProgram]:
    """Return a model with the input x of [n, 16], and its program with the extents to declare."""
    rng = random.Random(seed)
    program = MeasuredProgram(rng, Builder("measured", seed))
    program.rows.append((program.b.input("x", ("n", WIDTH)), "x"))
    for _ in range(rng.randint(1, 3)):
        program.add_source()
        for _ in range(rng.randint(1, 5)):
            program.add_step()
    results = dict.fromkeys([*(name for name, _ in rng.sample(program.rows[1:], 2)), program.rows[-1][0]])
    results |= dict.fromkeys(program.declared[name][0] for name in program.declared if rng.random() < 0.2)
    total = program.b.op("ReduceSum", program.rows[-1][0], keepdims=0)
    model = program.b.model()
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, (*results, total)))
    return model, program
