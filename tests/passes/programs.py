"""Random programs of the nn dialect, with loops and branches, and what they compute.

They are full of what the passes look for: equal expressions, known values, copies, conversions, dead ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import sublet
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir.graph import CaseOf, Graph, Value, While
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of

SHAPES = ((3, 4), (3, 4), (3, 4), (4, 3), (12,), (1, 4), ())
FLAG, INDEX, COUNT = TensorSpec(DType.BOOL), TensorSpec(DType.I64), TensorSpec(DType.I64)
UNARY = ("neg", "abs", "sin", "cos", "square", "floor", "sign")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


def program(seed: int, size: int = 30) -> Graph:
    """A program of about `size` nodes; the same for the same seed."""
    return _Writer(random.Random(seed), size).root()


def computed(graph: Graph, runs: int = 2, largest: int = 3) -> list[dict[str, Any]]:
    """What the program computes from random inputs, run after run, by the reference, planned and checked.

    Integers are at least -1 and at most `largest`.
    """
    rng = np.random.default_rng(0)
    weights = {}
    for value in graph.weights:
        if value.literal is None:
            weights[value.name] = rng.uniform(-1, 1, spec_of(value).shape).astype(NUMPY[spec_of(value).dtype])
    executable = sublet.compile(graph, backend="reference", weights=weights)
    return [dict(executable(_inputs(graph, rng, largest))) for _ in range(runs)]


def _inputs(graph: Graph, rng: np.random.Generator, largest: int) -> dict[str, Any]:
    inputs = {}
    for value in graph.inputs:
        spec = spec_of(value)
        whole = rng.integers(-1, largest + 1, spec.shape) if spec.dtype is DType.I64 else rng.uniform(-2, 2, spec.shape)
        inputs[value.name] = np.asarray(whole, NUMPY[spec.dtype])
    return inputs


def same(before: Graph, *after: Graph, runs: int = 3, tolerance: float = 0.0, largest: int = 3) -> None:
    """Assert that all compute the same results under the same names."""
    expected = computed(before, runs, largest)
    for graph in after:
        assert [value.name for value in before.outputs] == [value.name for value in graph.outputs]
        assert before.inputs == graph.inputs
        for right, found in zip(expected, computed(graph, runs, largest), strict=True):
            for name, array in right.items():
                np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def nodes_of(graph: Graph) -> int:
    """Nodes of the whole program."""
    return sum(1 for _ in graph.walk())


class _Writer:
    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        self.budget = size
        self.loops = 0

    def root(self) -> Graph:
        rng = self.rng
        f32, f64 = DType.F32, DType.F64
        inputs = [Value(f"x{i}", TensorSpec(rng.choice((f32, f64)), rng.choice(SHAPES))) for i in range(3)]
        inputs.append(Value("i", INDEX))
        weights = [Value(f"w{i}", TensorSpec(f64, rng.choice(SHAPES))) for i in range(2)]
        emit = Emitter.from_graph(Graph("program", tuple(inputs), (), (), tuple(weights)))
        scope = [*inputs, *weights]
        while self.budget > 0:
            self.step(emit, scope, 0)
        made = [v for node in emit.nodes for v in node.defs]
        outputs = dict.fromkeys([*(v for v in made if rng.random() < 0.15), made[-1]])
        graph = Graph("program", tuple(inputs), tuple(emit.nodes), tuple(outputs), (*weights, *emit.literals.added))
        return replace(graph, updates=tuple(self.updates(weights, made)))

    def updates(self, weights: list[Value], made: list[Value]) -> Iterator[tuple[Value, Value]]:
        for weight in weights:
            alike = [value for value in made if value.spec == weight.spec]
            if alike and self.rng.random() < 0.7:
                yield weight, self.rng.choice(alike)

    def floats(self, scope: list[Value]) -> list[Value]:
        return [v for v in scope if spec_of(v).dtype in (DType.F32, DType.F64)]

    def some(self, scope: list[Value]) -> Value:
        floats = self.floats(scope)
        return self.rng.choice(floats[-5:] if self.rng.random() < 0.6 else floats)

    def like(self, scope: list[Value], spec: TensorSpec, emit: Emitter) -> Value:
        there = [v for v in self.floats(scope) if v.spec == spec]
        return self.rng.choice(there) if there and self.rng.random() < 0.8 else emit.full(self.number(), spec)

    def number(self) -> float:
        return self.rng.choice((0.0, 0.0, 1.0, 1.0, 2.0, -0.5))

    def step(self, emit: Emitter, scope: list[Value], depth: int) -> None:
        self.budget -= 1
        if depth < 2 and self.budget > 3 and self.rng.random() < 0.15:
            (self.branch if self.rng.random() < 0.5 else self.loop)(emit, scope, depth)
            return
        scope.append(self.rng.choice((self.unary, self.binary, self.binary, self.layout, self.twice))(emit, scope))

    def unary(self, emit: Emitter, scope: list[Value]) -> Value:
        return emit(f"nn.{self.rng.choice(UNARY)}", self.some(scope))

    def binary(self, emit: Emitter, scope: list[Value]) -> Value:
        x = self.some(scope)
        pair = [x, self.like(scope, spec_of(x), emit)]
        self.rng.shuffle(pair)
        return emit(f"nn.{self.rng.choice(BINARY)}", *pair)

    def layout(self, emit: Emitter, scope: list[Value]) -> Value:
        x, rng = self.some(scope), self.rng
        spec = spec_of(x)
        kind = rng.choice(("reshape", "sum", "cast", "copy", "transpose", "fill", "where"))
        if kind == "reshape" and spec.size == 12:
            return emit("nn.reshape", x, shape=rng.choice(((3, 4), (4, 3), (12,))))
        if kind == "transpose" and len(spec.shape) == 2:
            return emit("nn.transpose", x, axes=rng.choice(((1, 0), (1, 0), (0, 1))))
        if kind == "cast":
            return emit("nn.cast", x, dtype=rng.choice(("f32", "f64")))
        if kind == "fill":
            return emit("nn.fill", shape=(3, 4), dtype="f64", value=self.number())
        if kind == "where":
            return emit("nn.where", emit("nn.less", x, emit.constant(0.5, x)), x, self.like(scope, spec, emit))
        return emit("nn.sum", x, keepdims=1, axes=(0,)) if kind == "sum" and spec.shape else emit("nn.copy", x)

    def twice(self, emit: Emitter, scope: list[Value]) -> Value:
        x = self.some(scope)
        op = f"nn.{self.rng.choice(UNARY)}"
        return emit("nn.mul", emit(op, x), emit(op, x))

    def inner(self, emit: Emitter, scope: list[Value], depth: int) -> tuple[Emitter, list[Value]]:
        inside, below = emit.for_subgraph(), list(scope)
        for _ in range(self.rng.randint(0, 4)):
            self.step(inside, below, depth + 1)
        return inside, below

    def branch(self, emit: Emitter, scope: list[Value], depth: int) -> None:
        models = [spec_of(self.some(scope)) for _ in range(self.rng.randint(1, 3))]
        arms = []
        for _ in range(2):
            inside, below = self.inner(emit, scope, depth)
            arm_outputs = tuple(self.like(below, spec, inside) for spec in models)
            arms.append(Graph(emit.names.fresh("arm"), (), tuple(inside.nodes), arm_outputs))
        given = next(v for v in scope if v.name == "i")
        limits = [emit.literals.constant_of((n,), INDEX) for n in (-1, 1)]
        chosen = emit("nn.minimum", emit("nn.maximum", given, limits[0]), limits[1])
        index = chosen if self.rng.random() < 0.7 else emit.literals.constant_of((self.rng.choice((-1, 0, 1)),), INDEX)
        fallbacks = tuple(self.like(scope, spec, emit) for spec in models)
        outputs = tuple(Value(emit.names.fresh("chosen"), spec) for spec in models)
        name = emit.names.fresh("branch")
        emit.nodes.append(CaseOf(name, "case", (index, *fallbacks), outputs, arms=tuple(arms)))
        scope += outputs

    def loop(self, emit: Emitter, scope: list[Value], depth: int) -> None:
        rng = self.rng
        inits = tuple(self.some(scope) for _ in range(rng.randint(1, 4)))
        fresh = emit.names.fresh
        counter = Value(fresh("count"), COUNT)
        parameters = tuple(Value(fresh("state"), init.spec) for init in inits)
        inside = emit.for_subgraph()
        limit = emit.literals.constant_of((rng.choice((0, 2, 3)),), COUNT)
        before = list(scope)
        for _ in range(rng.randint(0, 1)):
            self.step(inside, before, 2)
        condition = inside("nn.less", counter, limit)
        check, below = len(inside.nodes), [*before, *parameters]
        for _ in range(rng.randint(1, 4)):
            self.step(inside, below, depth + 1)
        updates = [self.like(below, spec_of(p), inside) for p in parameters]
        updates = [p if rng.random() < 0.2 else u for p, u in zip(parameters, updates, strict=True)]
        rows = [self.some(below)] if limit.literal == (3,) and rng.random() < 0.5 else []
        stacked = [replace_shape(row, (3, *spec_of(row).shape), fresh("stacked")) for row in rows]
        finals = [Value(fresh("final"), p.spec) for p in parameters]
        body = Graph(fresh("body"), (counter, *parameters), tuple(inside.nodes), (*updates, *rows))
        emit.nodes.append(
            While(
                fresh("loop"), "while", inits, (*finals, *stacked), body=body, condition=condition, check=check,
                carried=len(inits), row_axes=(0,) * len(rows), row_reversed=(False,) * len(rows),
            )
        )  # fmt: skip
        scope += [*finals, *stacked]


def replace_shape(value: Value, shape: tuple[int, ...], name: str) -> Value:
    """A value of another name and shape."""
    return replace(value, name=name, spec=TensorSpec(spec_of(value).dtype, shape))
