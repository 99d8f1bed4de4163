"""Random programs that update several weights of one type from one another, beside whatever else they do."""

from __future__ import annotations

import random
from dataclasses import replace

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from tests.support.programs import program

SPEC = TensorSpec(DType.U8, (16,))


def exchanging(rng: random.Random, size: int) -> Graph:
    """A program of about `size` nodes, and two to five weights %s0, %s1, ... that are permuted, delayed, computed."""
    base = program(rng, size)
    states = [Value(f"s{i}", SPEC) for i in range(rng.randint(2, 5))]
    others = [value for node in base.nodes for value in node.defs if value.plannable] or list(base.inputs)
    nodes: list[Node] = []

    def make(op: str, *operands: Value) -> Value:
        nodes.append(Node(f"t{len(nodes)}", f"test.{op}", operands, (Value(f"t{len(nodes)}", SPEC),)))
        return nodes[-1].defs[0]

    def source() -> Value:
        kind = rng.randrange(8)
        if kind < 5:
            return rng.choice(states)
        if kind == 5:
            return make("reshape", rng.choice(states))
        return make(rng.choice(("add", "matmul")), rng.choice(states), rng.choice(others))

    for state in states:
        if rng.random() < 0.6:
            make("matmul", state, rng.choice(others))
    made = [node.defs[0] for node in nodes]
    if rng.random() < 0.5:
        updates = list(zip(states, rng.sample(states, len(states)), strict=True))
    else:
        updates = [(state, source()) for state in states if rng.random() < 0.9]
    outputs = [value for value in (*made, *(s for _, s in updates)) if rng.random() < 0.4]
    targets = {target for target, _ in updates}
    kept = [value for value in outputs if value not in targets]
    return replace(
        base,
        nodes=(*base.nodes, *nodes),
        outputs=(*base.outputs, *kept),
        weights=(*base.weights, *states),
        updates=(*base.updates, *updates),
    )
