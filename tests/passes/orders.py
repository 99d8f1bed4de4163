"""All orders of small graphs, and random ones of any."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.passes.reordering import data_flow
from tests.support import dialect

assert dialect.OPS


def all_orders(graph: Graph) -> Iterator[list[int]]:
    """Every order of the nodes that respects the data flow."""
    before = [set(several) for several in data_flow(graph.nodes).before]

    def longer(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(before):
            yield order
        for i, needed in enumerate(before):
            if i not in order and needed <= {*order}:
                yield from longer([*order, i])

    return longer([])


def in_random_order(graph: Graph, rng: random.Random) -> Graph:
    """The graph with its nodes in another order."""
    flow = data_flow(graph.nodes)
    waiting = [len(several) for several in flow.before]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for j in flow.after[order[-1]]:
            waiting[j] -= 1
            ready += [j] if waiting[j] == 0 else []
    return replace(graph, nodes=tuple(graph.nodes[i] for i in order))


def concatenations(rng: random.Random, count: int) -> Graph:
    """A graph of `count` nodes: concatenations of concatenations, splits, and results written over operands."""
    made = [Value(name, TensorSpec(DType.U8, (rng.choice((4, 8, 16)),))) for name in "xz"[: rng.choice((1, 1, 2))]]
    inputs, nodes = tuple(made), list[Node]()
    while len(nodes) < count:
        op, near = rng.choice(("concat", "concat", "concat", "relu", "relu", "matmul", "split", "add")), made[-5:]
        operands = [rng.choice(near)]
        sizes = [operands[0].nbytes]
        if op == "concat":
            operands = rng.sample(near, min(len(near), rng.choice((2, 2, 3))))
            sizes = [sum(value.nbytes for value in operands)]
        elif op == "matmul":
            sizes = [rng.choice((4, 8, 16, 24, 32))]
        elif op == "split":
            first = 4 * rng.randint(0, sizes[0] // 4)
            sizes = [first, sizes[0] - first]
        elif op == "add":
            operands.append(rng.choice([value for value in made if value.nbytes == sizes[0]]))
        results = tuple(Value(f"v{len(nodes)}.{i}", TensorSpec(DType.U8, (n,))) for i, n in enumerate(sizes))
        nodes.append(Node(f"n{len(nodes)}", f"test.{op}", tuple(operands), results))
        made += results
    read = {value for node in nodes for value in node.uses}
    outputs = [value for value in made if value not in inputs and (value not in read or rng.random() < 0.1)]
    return Graph("concatenations", inputs, tuple(nodes), tuple(outputs))
