"""Generated ONNX programs with open dimensions and shape arithmetic: Shape, Gather, Slice, Concat, Reshape, Range.

Every value has three axes, [rows, columns, channels]: extents of rows and columns are expressions over the dimensions
"a" and "b". Programs with control flow have If, Loop and Scan besides, with bodies of the same steps. The generator
tracks shapes with `Extent`s only to stay within legal programs; the truth of a test is a run
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

    def __init__(self, rng: random.Random, ranges: Sequence[Range] = RANGES, steps: Sequence[Step] = ()) -> None:
        self.rng = rng
        self.steps = steps or STEPS
        self.prefix = ""
        a, b = (each.extent for each in ranges)
        self.shapes: dict[str, Shape] = {"x": (a, b, 4), "y": (a, b, 4)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: object) -> list[str]:
        """Append a node, and return the names of its outputs."""
        names = [f"{self.prefix}v{len(self.nodes)}_{i}" for i in range(outputs)]
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

    def body(self, title: str, **parameters: Shape) -> RangedProgram:
        """Return a program for a sub-graph, which reads all values, with named parameters of its own."""
        inner = RangedProgram(self.rng, steps=self.steps)
        inner.prefix, inner.constants = f"{self.prefix}{title}{len(self.nodes)}_", self.constants
        inner.shapes = {**self.shapes, **{f"{inner.prefix}{name}": shape for name, shape in parameters.items()}}
        return inner

    def walk(self, start: str, steps: int) -> None:
        """Append some steps, beginning with a value, and going on with the latest values."""
        before = list(self.shapes)
        for _ in range(steps):
            latest = [name for name in self.shapes if name not in before][-2:] or [start]
            try:
                self.rng.choice(self.steps)(self, self.rng.choice(latest))
            except Undecided:
                continue

    def result(self, shape: Shape, known: Sequence[str], fallback: str) -> str:
        """Return a node result of a shape, not among the `known` values, computed from `fallback` if there is none."""
        fitting = [name for name, other in self.shapes.items() if other == shape and name not in known]
        return self.one("Tanh", fitting[-1] if fitting else fallback)

    def graph(self, outputs: Sequence[str], inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
        """Return the nodes as a sub-graph."""
        return helper.make_graph(
            self.nodes, f"{self.prefix}body", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs]
        )

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


def _number(program: RangedProgram, x: str) -> str:
    """Return a scalar that depends on the data: the sum of a value."""
    return program.one("ReduceSum", x, keepdims=0)


def _condition(program: RangedProgram, x: str) -> str:
    """Return a condition on the data, or on an extent."""
    if program.rng.random() < 0.5:
        zero = program.one("Squeeze", program.floats(1))
        return program.one("Greater", _number(program, x), zero)
    few = program.integers(program.rng.randint(1, 5))
    return program.one("Squeeze", program.one("Less", program.extent(x, program.rng.randrange(2)), few))


def _branch(program: RangedProgram, x: str) -> None:
    """Branch between two bodies; most results have equal extents."""
    shape, known, rng = program.shapes[x], list(program.shapes), program.rng
    condition, arms = _condition(program, x), []
    for title in ("t", "e"):
        arm = program.body(title)
        arm.walk(x, rng.randint(0, 3))
        own = [name for name in arm.shapes if name not in known]
        if rng.random() < 0.1 and own:  # the arms may differ
            arms.append(arm.graph([arm.one("Tanh", own[-1])]))
        else:
            arms.append(arm.graph([arm.result(shape, known, x)]))
    program.define(program.one("If", condition, then_branch=arms[0], else_branch=arms[1]), *shape)


def _loop(program: RangedProgram, x: str) -> None:
    """Loop with a carried value, and mostly the sum of the rows of another value.

    ONNX Runtime 1.31 divides by 0 for rows without elements, and ends the process.
    """
    rng, shape = program.rng, program.shapes[x]
    trips = program.one("Squeeze", program.integers(rng.randint(1, 3)))
    if rng.random() < 0.3:
        trips = program.one("Squeeze", program.extent(x, rng.randrange(2)))
    body = program.body("l", h=shape)
    number, goes_on, h = (f"{body.prefix}{name}" for name in ("i", "g", "h"))
    known = list(body.shapes)
    body.walk(h, rng.randint(0, 3))
    other = rng.choice([name for name in body.shapes if name not in known] or [h])
    again = body.one("Identity", goes_on)
    if has_rows := rng.random() < 0.6 and all(bounds_of(extent)[0] for extent in body.shapes[other]):
        row = body.one("Identity", other)
    else:
        again = body.one("And", again, _condition(body, other))
    update = body.result(shape, known, body.one("Add", h, x))
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
        helper.make_tensor_value_info(h, TensorProto.FLOAT, None),
    ]
    graph = body.graph([again, update, *([row] if has_rows else [])], inputs)
    final, *stacked = program.emit("Loop", (trips, "", x), 2 if has_rows else 1, body=graph)
    program.define(final, *shape)
    for rows in stacked:
        total = program.one("ReduceSum", rows, program.integers(0), keepdims=0)
        program.define(program.one("Tanh", total), *body.shapes[other])


def _scan(program: RangedProgram, x: str) -> None:
    """Scan the rows or columns forwards or backwards, with a state."""
    rng, shape, axis = program.rng, program.shapes[x], program.rng.randrange(2)
    if not all(bounds_of(extent)[0] for extent in shape):
        return
    rest = shape[:axis] + shape[axis + 1 :]
    first = program.one("ReduceMax", x, axes=[axis], keepdims=0)
    body, front = program.body("s"), program.integers(0)
    names = [f"{body.prefix}{name}" for name in ("h", "e")]
    lifted = [body.one("Unsqueeze", name, front) for name in names]
    known = list(body.shapes)
    body.define(lifted[1], 1, *rest)
    if lifted[1] not in body.shapes:
        return
    body.walk(lifted[1], rng.randint(0, 2))
    row = body.result((1, *rest), known, lifted[1])
    state = body.one("Tanh", body.one("Add", lifted[0], row))
    results = [body.one("Squeeze", each, front) for each in (state, row)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    attrs = {f"scan_{kind}_directions": [int(rng.random() < 0.5)] for kind in ("input", "output")}
    attrs |= {f"scan_{kind}_axes": [axis] for kind in ("input", "output")}
    final, stacked = program.emit("Scan", (first, x), 2, body=body.graph(results, inputs), num_scan_inputs=1, **attrs)
    program.define(program.one("Unsqueeze", final, front), 1, *rest)
    program.define(stacked, *shape)


CONTROL_STEPS: Sequence[Step] = (*STEPS, *(_branch, _loop, _scan) * 3)


def ranged_program(
    seed: int, steps: int = 8, ranges: Sequence[Range] = RANGES, *, control: bool = False
) -> onnx.ModelProto:
    """Return a generated program of about `steps` steps, with `control` also of loops and branches."""
    rng = random.Random(seed)
    program = RangedProgram(rng, ranges, CONTROL_STEPS if control else STEPS)
    while len(program.shapes) < 2 + steps:
        recent = list(program.shapes)[-4:]
        try:
            rng.choice(program.steps)(program, rng.choice(recent))
        except Undecided:
            continue
    return program.model()
