"""Random ONNX models: what exporters write seldom, and together hardly ever.

Local functions called in bodies, optional outputs left out or unread, tensors without elements and without axes, loops
that make no round, values of outside as results of branches, every data type that ONNX Runtime has a kernel for.
`program(seed)` is the same model for the same seed. Shapes are known while it is written, but for results of loops and
branches that depend on data: these are only read as outputs of the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

DEEPEST = 3
LOCAL = "local"
FLAG, COUNT = np.dtype(np.bool_), np.dtype(np.int64)
F32 = np.dtype(np.float32)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """A value in the file; its shape is None where it depends on data."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None

    @property
    def rank(self) -> int:
        return len(self.shape or ())

    @property
    def size(self) -> int:
        return int(np.prod(self.shape or ()))


@dataclass
class Block:
    """A graph that is being written: its nodes and constants, and the values it may read."""

    scope: list[Known]
    depth: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def inner(self) -> Block:
        return Block(list(self.scope), self.depth + 1)


@dataclass(frozen=True)
class Function:
    """A local function of float32 tensors of one shape, and of a flag where it branches."""

    proto: onnx.FunctionProto
    inputs: int
    branches: bool


@dataclass(frozen=True)
class Program:
    model: onnx.ModelProto
    feeds: dict[str, Any]


Step = Callable[["Writer", Block], Sequence[Known]]
"""Writes nodes; the values it made. None are made when the scope has nothing that fits."""


class Writer:
    """What is common to all blocks of one model."""

    def __init__(self, rng: random.Random, size: int, steps: Sequence[Step]) -> None:
        self.rng = rng
        self.numbers = np.random.default_rng(rng.randrange(1 << 32))
        self.budget = size
        self.opset = rng.choice((13, 14, 15, 16, 17, 18, 19, 20, 21, 22))
        self.steps = steps
        self.named = 0
        self.functions: list[Function] = []

    def name(self, prefix: str = "v") -> str:
        self.named += 1
        return f"{prefix}{self.named}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Values

    def shape(self) -> Shape:
        """Mostly small and of few axes; now and then without elements, or without axes."""
        extents = (1, 2, 2, 3, 3, 4, 5, 8) if self.chance(0.9) else (0, 1, 2, 3)
        return tuple(self.rng.choice(extents) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))))

    def array(self, dtype: np.dtype[Any], shape: Shape) -> Any:
        if dtype == FLAG:
            return self.numbers.integers(0, 2, shape).astype(FLAG)
        if dtype.kind in "iu":
            return self.numbers.integers(0, 5, shape).astype(dtype)
        return self.numbers.normal(size=shape).astype(dtype)

    def constant(self, block: Block, array: Any) -> Known:
        """A constant: an initialiser, or a Constant node."""
        made = Known(self.name("c"), array.dtype, array.shape)
        tensor = numpy_helper.from_array(np.asarray(array), made.name)
        if self.chance(0.7):
            block.constants.append(tensor)
        else:
            block.nodes.append(helper.make_node("Constant", [], [made.name], value=tensor))
        return made

    def indices(self, block: Block, *numbers: int) -> Known:
        return self.constant(block, np.array(numbers, COUNT))

    def fitting(self, block: Block, fits: Callable[[Known], bool]) -> Known | None:
        """A value to read: often a recent one, so that chains form."""
        found = [value for value in block.scope if value.shape is not None and fits(value)]
        if not found:
            return None
        return self.rng.choice(found[-3:] if self.chance(0.6) else found)

    def add(self, block: Block, op: str, inputs: Sequence[Known | None], *outs: tuple[Any, Any], **attrs: Any) -> Any:
        """A node; its outputs, of which None is one that is left out."""
        names = ["" if value is None else value.name for value in inputs]
        made = [Known(self.name(), np.dtype(dtype), shape) for dtype, shape in outs]
        block.nodes.append(helper.make_node(op, names, [value.name for value in made], **attrs))
        block.scope += made
        return made

    def one(self, block: Block, op: str, inputs: Sequence[Known | None], dtype: Any, shape: Any, **attrs: Any) -> Known:
        found: Known = self.add(block, op, inputs, (dtype, shape), **attrs)[0]
        return found

    def exactly(self, block: Block, dtype: np.dtype[Any], shape: Shape) -> Known:
        """A value of this type and shape: one that is there (of outside too), a constant, or a further node's."""
        there = self.fitting(block, lambda value: value.dtype == dtype and value.shape == shape)
        if there is None or self.chance(0.15):
            there = self.constant(block, self.array(dtype, shape))
        return there

    def flag(self, block: Block) -> Known:
        """A scalar of type bool, from data or constant."""
        there = self.fitting(block, lambda value: value.dtype == FLAG and value.shape == ())
        if there is not None and self.chance(0.7):
            return there
        count = self.fitting(block, lambda value: value.dtype == COUNT and value.shape == ())
        if count is not None and self.chance(0.6):
            return self.one(
                block, "Less", [count, self.constant(block, np.array(self.rng.randint(0, 4), COUNT))], FLAG, ()
            )
        return self.constant(block, np.array(self.chance(0.5)))

    # Blocks

    def fill(self, block: Block, most: int) -> None:
        for _ in range(self.rng.randint(0, most)):
            if self.budget > 0:
                self.step(block)

    def step(self, block: Block) -> None:
        self.budget -= 1
        self.rng.choice(self.steps)(self, block)

    def results(self, block: Block, values: Sequence[Known], given: Sequence[str] = ()) -> list[Known]:
        """The values as a sub-graph may hand them out: no two the same, none of outside, parameters only sometimes."""
        own = {name for node in block.nodes for name in node.output} | {tensor.name for tensor in block.constants}
        found: list[Known] = []
        for value in values:
            direct = value.name in own or (value.name in given and self.chance(0.5))
            if not direct or value in found:
                value = self.one(block, "Identity", [value], value.dtype, value.shape)
            found.append(value)
        return found

    def graph(
        self, block: Block, inputs: Sequence[Known], outputs: Sequence[Known], *, told: bool = False
    ) -> onnx.GraphProto:
        """The block as a graph; the types of its outputs are `told` where somebody insists on it."""
        tell = declared if told else undeclared
        infos = [declared(value) for value in inputs], [tell(value) for value in outputs]
        return helper.make_graph(block.nodes, self.name("g"), *infos, block.constants)


def declared(value: Known) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def undeclared(value: Known) -> onnx.ValueInfoProto:
    return helper.make_empty_tensor_value_info(value.name)


def program(seed: int, steps: Sequence[Step], functions: Callable[[Writer], list[Function]]) -> Program:
    rng = random.Random(seed)
    writer = Writer(rng, rng.choice((3, 6, 10, 16)), steps)
    writer.functions = functions(writer)
    block = Block([])
    inputs = [Known("flag", FLAG, ()), Known("count", COUNT, ())]
    for _ in range(rng.randint(1, 4)):
        kind = np.dtype(
            rng.choice((np.float32,) * 6 + (np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_))
        )
        inputs.append(Known(writer.name("x"), kind, writer.shape()))
    block.scope += inputs
    for _ in range(rng.randint(0, 3)):
        block.scope.append(writer.constant(block, writer.array(F32, writer.shape())))
    while writer.budget > 0:
        writer.step(block)
    outputs = _outputs(writer, block, inputs)
    imports = [helper.make_opsetid("", writer.opset), helper.make_opsetid(LOCAL, 1)]
    model = helper.make_model(
        writer.graph(block, inputs, outputs),
        opset_imports=imports,
        ir_version=10,
        functions=[function.proto for function in writer.functions],
    )
    feeds = {value.name: writer.array(value.dtype, value.shape or ()) for value in inputs}
    return Program(model, feeds)


def _outputs(w: Writer, block: Block, inputs: Sequence[Known]) -> list[Known]:
    """What depends on data, some of the rest, and the last; of types that NumPy has."""
    made = [value for value in block.scope if value not in inputs]
    found = [value for value in made if value.shape is None or w.chance(0.2)] + made[-1:]
    if w.chance(0.1) or not found:
        found.append(w.rng.choice(inputs))
    for i, value in enumerate(found):
        if value.dtype.char not in np.typecodes["All"]:
            found[i] = w.one(block, "Cast", [value], F32, value.shape, to=onnx.TensorProto.FLOAT)
    return list(dict.fromkeys(found))
