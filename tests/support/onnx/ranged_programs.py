"""Generated ONNX programs with open dimensions and shape arithmetic: Shape, Gather, Slice, Concat, Reshape, Range.

Every value has three axes, [rows, columns, channels]: extents of rows and columns are expressions over the dimensions
"a" and "b". The generator tracks shapes with `Extent`s only to stay within legal programs; the truth of a test is a run
of ONNX Runtime at a point.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from sublet.base.boxes import Range
from sublet.base.extents import Extent, Undecided, bounds_of

RANGES = (Range("a", 1, 5), Range("b", 2, 9))
MOST_EXTENT = 60
"""Extents of generated values at the largest point, at most: runs stay fast."""

Shape = tuple[Extent | int, ...]
Step = Callable[["RangedProgram", str], None]


class RangedProgram:
    """A program under construction: nodes, constants, and the shape of every value."""

    def __init__(self, rng: random.Random, ranges: Sequence[Range] = RANGES) -> None:
        self.rng = rng
        a, b = (each.extent for each in ranges)
        self.shapes: dict[str, Shape] = {"x": (a, b, 4), "y": (a, b, 4)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: object) -> list[str]:
        """Append a node, and return the names of its outputs."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names

    def one(self, op: str, *inputs: str, **attrs: object) -> str:
        """Append a node with one output, and return its name."""
        return self.emit(op, inputs, **attrs)[0]

    def integers(self, *numbers: int) -> str:
        """Return a constant vector of integers."""
        name = f"c{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
        return name

    def floats(self, *shape: int) -> str:
        """Return a constant of random numbers."""
        name = f"c{len(self.constants)}"
        array = np.random.default_rng(len(self.constants)).standard_normal(shape).astype(np.float32)
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def extent(self, value: str, axis: int) -> str:
        """Return the extent of an axis, computed from the shape, as a vector of one element."""
        shape = self.one("Shape", value)
        if self.rng.random() < 0.5:
            return self.one("Gather", shape, self.integers(axis))
        return self.one("Slice", shape, self.integers(axis), self.integers(axis + 1))

    def define(self, name: str, *shape: Extent | int) -> None:
        """Record a value that later steps may read."""
        if all(bounds_of(extent)[0] >= 0 and bounds_of(extent)[1] <= MOST_EXTENT for extent in shape):
            self.shapes[name] = shape

    def model(self, outputs: int = 2) -> onnx.ModelProto:
        """Return the program with the latest values as outputs."""
        last = [name for name in self.shapes if name not in ("x", "y")][-outputs:]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", 4]) for name in ("x", "y")]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in last]
        graph = helper.make_graph(self.nodes, "ranged", infos, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _unary(program: RangedProgram, x: str) -> None:
    op = program.rng.choice(("Relu", "Neg", "Sigmoid", "Tanh", "Identity", "Abs"))
    program.define(program.one(op, x), *program.shapes[x])


def _binary(program: RangedProgram, x: str) -> None:
    shape = program.shapes[x]
    fitting = [
        name
        for name, other in program.shapes.items()
        if all(p == q or (isinstance(q, int) and q == 1) for p, q in zip(shape, other, strict=True))
    ]
    program.define(program.one(program.rng.choice(("Add", "Mul", "Sub")), x, program.rng.choice(fitting)), *shape)


def _transpose(program: RangedProgram, x: str) -> None:
    perm = program.rng.choice(((1, 0, 2), (0, 1, 2), (0, 2, 1)))
    if perm != (0, 2, 1):
        program.define(program.one("Transpose", x, perm=perm), *(program.shapes[x][axis] for axis in perm))


def _concat(program: RangedProgram, x: str) -> None:
    axis, shape = program.rng.randrange(3), program.shapes[x]
    others = [
        name
        for name, other in program.shapes.items()
        if all(i == axis or p == q for i, (p, q) in enumerate(zip(shape, other, strict=True)))
    ]
    parts = [x, *program.rng.choices(others, k=program.rng.randint(1, 2))]
    along = sum((program.shapes[part][axis] for part in parts), 0)
    program.define(program.one("Concat", *parts, axis=axis), *shape[:axis], along, *shape[axis + 1 :])


def _slice(program: RangedProgram, x: str) -> None:
    axis, shape = program.rng.randrange(3), program.shapes[x]
    if bounds_of(shape[axis])[0] < 2:
        return
    begin = program.rng.random() < 0.5
    starts, ends = (1, 1 << 40) if begin else (0, -1)
    operands = (program.integers(starts), program.integers(ends), program.integers(axis))
    program.define(program.one("Slice", x, *operands), *shape[:axis], shape[axis] - 1, *shape[axis + 1 :])


def _split(program: RangedProgram, x: str) -> None:
    rows, columns, channels = program.shapes[x]
    if isinstance(channels, int) and channels > 1:
        sizes = (1, channels - 1)
        for name, size in zip(program.emit("Split", (x, program.integers(*sizes)), 2, axis=2), sizes, strict=True):
            program.define(name, rows, columns, size)


def _split_columns(program: RangedProgram, x: str) -> None:
    """Split the columns in two by a computed size."""
    rows, columns, channels = program.shapes[x]
    half = program.one("Div", program.extent(x, 1), program.integers(2))
    sizes = program.one("Concat", half, program.one("Sub", program.extent(x, 1), half), axis=0)
    names = program.emit("Split", (x, sizes), 2, axis=1)
    for name, size in zip(names, (columns // 2, columns - columns // 2), strict=True):
        program.define(name, rows, size, channels)


def _flatten_and_back(program: RangedProgram, x: str) -> None:
    """Reshape to a matrix by a computed shape, multiply, and reshape back."""
    rows, columns, channels = program.shapes[x]
    if not isinstance(channels, int):
        return
    whole = program.one("Mul", program.extent(x, 0), program.extent(x, 1))
    matrix = program.one("Reshape", x, program.one("Concat", whole, program.integers(channels), axis=0))
    product = program.one("MatMul", matrix, program.floats(channels, 3))
    last = program.integers(program.rng.choice((3, -1)))
    back = program.one("Concat", program.extent(x, 0), program.extent(x, 1), last, axis=0)
    program.define(program.one("Reshape", product, back), rows, columns, 3)


def _reshape_rest(program: RangedProgram, x: str) -> None:
    """Reshape with -1 and 0 in the shape."""
    rows, columns, channels = program.shapes[x]
    if program.rng.random() < 0.5:
        program.define(program.one("Reshape", x, program.integers(1, -1, channels)), 1, rows * columns, channels)
    else:
        program.define(program.one("Reshape", x, program.integers(0, -1, 1)), rows, columns * channels, 1)


def _mean(program: RangedProgram, x: str) -> None:
    axis, shape = program.rng.randrange(3), list(program.shapes[x])
    if bounds_of(shape[axis])[0] > 0:
        shape[axis] = 1
        program.define(program.one("ReduceMean", x, axes=[axis], keepdims=1), *shape)


def _softmax(program: RangedProgram, x: str) -> None:
    program.define(program.one("Softmax", x, axis=-1), *program.shapes[x])


def _expand(program: RangedProgram, x: str) -> None:
    """Expand one row to the shape of another value."""
    shape = program.shapes[x]
    if bounds_of(shape[0])[0] > 0 and bounds_of(shape[1])[0] > 0:
        row = program.one("ReduceMax", x, axes=[0, 1], keepdims=1)
        program.define(program.one("Expand", row, program.one("Shape", x)), *shape)


def _positions(program: RangedProgram, x: str) -> None:
    """Add positions made by Range from the extent of the columns."""
    scalar = program.one("Squeeze", program.extent(x, 1), program.integers(0))
    zero, step = program.one("Squeeze", program.integers(0)), program.one("Squeeze", program.integers(1))
    numbers = program.one("Cast", program.one("Range", zero, scalar, step), to=TensorProto.FLOAT)
    column = program.one("Unsqueeze", numbers, program.integers(0, 2))
    program.define(program.one("Add", x, column), *program.shapes[x])


def _pad(program: RangedProgram, x: str) -> None:
    rows, columns, channels = program.shapes[x]
    program.define(program.one("Pad", x, program.integers(0, 1, 0, 0, 0, 0)), rows, columns + 1, channels)


def _pool(program: RangedProgram, x: str) -> None:
    """Pool over the channels' axis as length: windows of three with stride two over transposed columns."""
    rows, columns, channels = program.shapes[x]
    if bounds_of(columns)[0] < 1:
        return
    turned = program.one("Transpose", x, perm=[0, 2, 1])
    pooled = program.one("MaxPool", turned, kernel_shape=[3], strides=[2], pads=[1, 1])
    program.define(program.one("Transpose", pooled, perm=[0, 2, 1]), rows, (columns - 1) // 2 + 1, channels)


def _fill(program: RangedProgram, x: str) -> None:
    """Add a constant of a computed shape."""
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    filled = program.one("ConstantOfShape", program.one("Shape", x), value=value)
    program.define(program.one("Mul", x, filled), *program.shapes[x])


def _tile(program: RangedProgram, x: str) -> None:
    rows, columns, channels = program.shapes[x]
    program.define(program.one("Tile", x, program.integers(2, 1, 1)), 2 * rows, columns, channels)


STEPS: Sequence[Step] = (
    *(_unary, _binary, _binary, _transpose, _concat, _concat, _slice, _split, _split_columns, _flatten_and_back),
    *(_reshape_rest, _mean, _softmax, _expand, _positions, _pad, _pool, _fill, _tile),
)


def ranged_program(seed: int, steps: int = 8, ranges: Sequence[Range] = RANGES) -> onnx.ModelProto:
    """Return a generated program of about `steps` steps."""
    rng = random.Random(seed)
    program = RangedProgram(rng, ranges)
    while len(program.shapes) < 2 + steps:
        recent = list(program.shapes)[-4:]
        try:
            rng.choice(STEPS)(program, rng.choice(recent))
        except Undecided:
            continue
    return program.model()
