"""Random programs with a gradient everywhere: loops, branches, slices and rows, nested, in f64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import CaseOf, Graph, Value, While
from sublet.ops.emitter import Emitter

VECTOR = TensorSpec(DType.F64, (4,))
COUNT = TensorSpec(DType.I64)
STEPS = 4


class _Writer:
    """Writes one level after the other; `pool` holds the vectors that may be read."""

    def __init__(self, rng: random.Random, emit: Emitter, counts: list[Value]) -> None:
        self.rng = rng
        self.emit = emit
        self.counts = counts
        self.number = 0

    def fresh(self, hint: str, spec: TensorSpec) -> Value:
        return Value(self.emit.names.fresh(hint), spec)

    def node(self, emit: Emitter, pool: list[Value], stacks: list[Value], index: Value | None) -> Value:
        """A vector from some of the pool, of a size that stays about the same in a loop."""
        a, b = self.rng.choice(pool), self.rng.choice(pool)
        kind = self.rng.randrange(9)
        if kind == 0:
            return emit("nn.sin", a)
        if kind == 1:
            return emit("nn.sin", emit("nn.add", a, b))
        if kind == 2:
            return emit("nn.mul", a, emit("nn.cos", b))
        if kind == 3:
            return emit("nn.exp", emit("nn.neg", emit("nn.square", a)))
        if kind == 4:
            cut = self.rng.randrange(1, 4)
            parts = [
                emit("nn.slice", v, starts=(s,), ends=(s + n,), steps=(1,))
                for v, s, n in ((a, 0, cut), (b, cut - 1, 4 - cut))
            ]
            return emit("nn.sin", emit("nn.concat", *parts, axis=0))
        if kind == 5:
            low, high = emit.all_outputs("nn.split", a, axis=0, sizes=(2, 2))
            return emit("nn.concat", emit("nn.mul", high, low), emit("nn.sin", low), axis=0)
        if kind == 6 and stacks and index is not None:
            return emit("nn.mul", a, emit("nn.select", self.rng.choice(stacks), index))
        if kind == 7:
            return emit("nn.mul", a, emit("nn.reciprocal", emit("nn.add", emit("nn.square", b), emit.constant(1, b))))
        return emit("nn.sub", a, emit("nn.sin", b))

    def level(
        self, emit: Emitter, pool: list[Value], stacks: list[Value], index: Value | None, depth: int, size: int
    ) -> None:
        for _ in range(size):
            if depth and self.rng.random() < 0.4:
                pool += (self.loop if self.rng.random() < 0.6 else self.branch)(emit, pool, stacks, index, depth)
            else:
                pool.append(self.node(emit, pool, stacks, index))

    def branch(
        self, emit: Emitter, pool: list[Value], stacks: list[Value], index: Value | None, depth: int
    ) -> list[Value]:
        which = index if index is not None and self.rng.random() < 0.5 else self.rng.choice(self.counts)
        which = emit(
            "nn.sub", emit("nn.minimum", which, emit.constant(2, which)), emit.constant(self.rng.randrange(2), which)
        )
        results = [self.fresh("branch", VECTOR) for _ in range(self.rng.randint(1, 2))]
        arms = []
        for _ in range(3):
            inner, own = emit.for_subgraph(), list(pool)
            self.level(inner, own, list(stacks), index, depth - 1, self.rng.randint(0, 3))
            arms.append(Graph("arm", (), tuple(inner.nodes), tuple(self.rng.choice(own[-4:]) for _ in results)))
        fallbacks = [self.rng.choice(pool) for _ in results]
        emit.nodes.append(CaseOf(results[0].name, "case", (which, *fallbacks), tuple(results), arms=tuple(arms)))
        return results

    def loop(
        self, emit: Emitter, pool: list[Value], stacks: list[Value], index: Value | None, depth: int
    ) -> list[Value]:
        rng, inner = self.rng, emit.for_subgraph()
        counter = self.fresh("k", COUNT)
        carried = [self.fresh("p", VECTOR) for _ in range(rng.randint(1, 3))]
        inits = [rng.choice(pool) for _ in carried]
        sequences = [rng.choice(stacks) for _ in range(rng.randint(0, 1))] if stacks else []
        slices = [self.fresh("s", VECTOR) for _ in sequences]
        known = rng.random() < 0.5
        limit = emit.constant(rng.randrange(STEPS + 1), counter) if known else rng.choice(self.counts)
        go = inner("nn.less", counter, limit)
        if rng.random() < 0.3:
            total = inner("nn.sum", carried[0], axes=(), keepdims=0)
            go = inner("nn.logical_and", go, inner("nn.less", total, inner.constant(3.1, total)))
            known = False
        check = len(inner.nodes)
        own = [*pool, *carried, *slices, *carried]
        self.level(inner, own, list(stacks), counter, depth - 1, rng.randint(1, 4))
        updates = [rng.choice([*own[-5:], *carried]) for _ in carried]
        rows = [rng.choice([*own[-4:], *carried]) for _ in range(rng.randint(0, 1))] if known else []
        extent = int(limit.literal[0]) if limit.literal else STEPS
        finals = [self.fresh("final", VECTOR) for _ in carried]
        wholes = [self.fresh("rows", TensorSpec(DType.F64, (extent, 4))) for _ in rows]
        attrs = {"max_trips": STEPS + 1} if rng.random() < 0.7 or depth < 2 or index is not None else {}
        body = Graph("body", (counter, *carried, *slices), tuple(inner.nodes), (*updates, *rows))
        emit.nodes.append(
            While(
                finals[0].name,
                "while",
                (*inits, *sequences),
                (*finals, *wholes),
                attrs,
                body=body,
                condition=go,
                check=check,
                carried=len(carried),
                slice_axes=(0,) * len(slices),
                slice_reversed=tuple(rng.random() < 0.5 for _ in slices),
                row_axes=(0,) * len(rows),
                row_reversed=tuple(rng.random() < 0.5 for _ in rows),
            )
        )
        if extent == STEPS:
            stacks += wholes
        return finals


def program(seed: int, size: int = 4, depth: int = 2) -> tuple[Graph, dict[str, Any]]:
    """A random program of inputs `x`, `y` (vectors), `w` (a stack of them), `n`, `m` (counts), with what to feed it."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    inputs = (
        Value("x", VECTOR),
        Value("y", VECTOR),
        Value("w", TensorSpec(DType.F64, (STEPS, 4))),
        Value("n", COUNT),
        Value("m", COUNT),
    )
    emit = Emitter.from_graph(Graph("random", inputs, (), ()))
    pool = list(inputs[:2])
    writer = _Writer(rng, emit, list(inputs[3:]))
    writer.level(emit, pool, [inputs[2]], None, depth, size)
    if not any(isinstance(node, While | CaseOf) for node in emit.nodes):
        pool += writer.loop(emit, pool, [inputs[2]], None, depth)
    outputs = tuple(dict.fromkeys(value for value in pool[-3:] if value not in inputs))
    feeds = {"x": values.uniform(-1, 1, 4), "y": values.uniform(0.2, 1, 4), "w": values.uniform(-1, 1, (STEPS, 4))}
    feeds |= {"n": np.array(rng.randrange(STEPS + 1)), "m": np.array(rng.randrange(STEPS))}
    return Graph("random", inputs, tuple(emit.nodes), outputs, tuple(emit.literals.added)), feeds
