"""All orders of small graphs, and random ones of any."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from sublet.ir.graph import Graph
from sublet.passes.reordering import data_flow


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
