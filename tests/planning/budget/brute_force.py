"""The fewest bytes that any order with any recomputation needs, by a search over all states: for small graphs."""

from __future__ import annotations

import heapq

from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup


def fewest_bytes(graph: Graph) -> int:
    """Of a graph without views, parts, loops and updates, whose inputs and outputs lie in the arena.

    A state is the set of values that are there. A node may run when its operands are; what nobody wants any more may go
    at any time; a result may be written over an operand that goes.
    """
    start = frozenset(graph.inputs)
    goal = frozenset(graph.outputs)
    first = _bytes(start)
    best = {start: first}
    todo = [(first, 0, start)]
    count = 0
    while todo:
        peak, _, state = heapq.heappop(todo)
        if goal <= state:
            return peak
        if peak > best[state]:
            continue
        for then, needed in [*_after_nodes(graph, state), *((state - {value}, 0) for value in sorted(state, key=str))]:
            higher = max(peak, needed)
            if higher < best.get(then, higher + 1):
                best[then] = higher
                count += 1
                heapq.heappush(todo, (higher, count, then))
    raise AssertionError("no way to the outputs")


def _after_nodes(graph: Graph, state: frozenset[Value]) -> list[tuple[frozenset[Value], int]]:
    found = []
    for node in graph.nodes:
        if not state.issuperset(node.uses) or state.issuperset(node.defs):
            continue
        found.append((state | set(node.defs), _bytes(state | set(node.defs))))
        for made, read in _over(node):
            found.append(((state - {read}) | set(node.defs), _bytes(state | set(node.defs)) - made.nbytes))
    return found


def _over(node: Node) -> list[tuple[Value, Value]]:
    pairs = [(node.outputs[share.output], node.inputs[share.input]) for share in lookup(node.op).inplace(node)]
    return [(made, read) for made, read in pairs if made is not None and read is not None]


def _bytes(state: frozenset[Value] | set[Value]) -> int:
    return sum(value.nbytes for value in state)
