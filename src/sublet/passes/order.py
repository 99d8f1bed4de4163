"""Order: the nodes of a program in an order that needs fewer bytes at its peak.

Requires a legal graph. Ensures an order that respects the data flow in which, as far as `live_bytes` estimates, the
peak is lower than in the order it was given; that order is kept where none is found. What updates an input or a
weight runs after everything else that reads it, so that it may be written over it, and otherwise as soon as it gives
bytes back: a gradient is consumed by its optimiser when it is complete.

    %g1 = gradient of %w1                %g1 = gradient of %w1
    %g2 = gradient of %w2                %n1 = nn.sgd(%w1, %g1, %lr)
    %n1 = nn.sgd(%w1, %g1, %lr)    ->    %g2 = gradient of %w2
    %n2 = nn.sgd(%w2, %g2, %lr)          %n2 = nn.sgd(%w2, %g2, %lr)

Finding the best order is NP-hard (Sethi, Complete Register Allocation Problems, 1975). Several greedy orders are
made, forwards and backwards, and the best is taken, as long as that improves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import makers, reads_inside, results
from sublet.passes.greedy_orders import ORDERS, DataFlow
from sublet.passes.live_bytes import blocks_of
from sublet.passes.rewriting import is_pure

ROUNDS = 8
"""Times that orders are made from the best one so far, at most."""


def ordered(graph: Graph, measure: Callable[[Graph], tuple[int, ...]] | None = None) -> Graph:
    """The graph in an order with a lower peak, or as it is.

    `measure` tells the bytes of a graph exactly, where somebody above can: then an order is taken only when it needs
    fewer by that, too. The estimate knows little about what loops carry.
    """
    found = reordered(graph, greedy)
    if measure is None or found == graph or measure(found) < measure(graph):
        return found
    return graph


Choose = Callable[[Graph, Sequence[Node], Sequence[Value], dict[str, int]], tuple[tuple[Node, ...], int]]
"""(level, nodes of it in order, values wanted after them, bytes by node that its sub-graphs need besides its results)
-> the nodes in another order, and the peak that is estimated."""


def reordered(graph: Graph, choose: Choose) -> Graph:
    """The program with each level in the order that `choose` gives it, from the inside out."""
    extra: dict[str, int] = {}
    nodes = tuple(_inside(node, extra, choose) for node in graph.nodes)
    graph = replace(graph, nodes=nodes)
    return replace(graph, nodes=choose(graph, nodes, results(graph), extra)[0])


def _inside(node: Node, extra: dict[str, int], choose: Choose) -> Node:
    """The node with its sub-graphs ordered; `extra` is told how many bytes they need besides the results."""
    made = sum(value.nbytes for value in node.defs)
    if isinstance(node, While):
        below: dict[str, int] = {}
        inner = tuple(_inside(each, below, choose) for each in node.body.nodes)
        body = replace(node.body, nodes=inner)
        after = inner[node.check :]
        later = {value for each in after for value in reads_inside(each)}
        wanted = (node.condition, *node.parameters, *node.slices, *sorted(later, key=lambda value: value.name))
        first, peak = choose(body, inner[: node.check], (*wanted, *body.outputs), below)
        second, higher = choose(body, after, body.outputs, below)
        extra[node.name] = max(0, max(peak, higher) - made)
        return replace(node, body=replace(body, nodes=(*first, *second)))
    if isinstance(node, CaseOf):
        arms, peaks = [], [0]
        for arm in node.arms:
            below = {}
            arm = replace(arm, nodes=tuple(_inside(each, below, choose) for each in arm.nodes))
            nodes, peak = choose(arm, arm.nodes, arm.outputs, below)
            arms.append(replace(arm, nodes=nodes))
            peaks.append(peak)
        extra[node.name] = max(0, max(peaks) - made)
        return replace(node, arms=tuple(arms))
    return node


def greedy(
    graph: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
) -> tuple[tuple[Node, ...], int]:
    """The nodes of a level in the best order found, and its peak."""
    nodes = tuple(nodes)
    blocks = blocks_of(graph, nodes, wanted, extra)
    flow = constrained(graph, nodes)
    best = tuple(range(len(nodes)))
    lowest = blocks.peak(best)
    for _ in range(ROUNDS):
        found = [make(blocks, flow, best) for make in ORDERS]
        peaks = [blocks.peak(order) for order in found]
        if min(peaks)[0] >= lowest[0]:
            break
        lowest = min(peaks)
        best = tuple(found[peaks.index(lowest)])
    return tuple(nodes[i] for i in best), lowest[0]


def data_flow(nodes: Sequence[Node], also: Sequence[tuple[int, int]] = ()) -> DataFlow:
    """Who waits for whom: by what is read, and by the pairs (first, then) in `also`."""
    maker = makers(nodes)
    before = [{maker[value] for value in reads_inside(node) if value in maker} - {i} for i, node in enumerate(nodes)]
    _keep_effects(nodes, before)
    for first, then in also:
        before[then].add(first)
    after: list[list[int]] = [[] for _ in nodes]
    for i, several in enumerate(before):
        for j in sorted(several):
            after[j].append(i)
    return DataFlow(tuple(tuple(sorted(several)) for several in before), tuple(map(tuple, after)))


def _keep_effects(nodes: Sequence[Node], before: list[set[int]]) -> None:
    """Nodes that do more than compute their outputs stay in their order. One that reads and gives nothing is a barrier,
    as that between two calls of a program in pieces: no node moves from one side of it to the other.
    """
    last = barrier = -1
    for i, node in enumerate(nodes):
        if barrier >= 0:
            before[i].add(barrier)
        if not is_pure(node):
            if last >= 0:
                before[i].add(last)
            last = i
            if not node.uses and not node.defs:
                before[i].update(range(barrier + 1, i))
                barrier = i


def constrained(graph: Graph, nodes: Sequence[Node]) -> DataFlow:
    """The data flow, with what writes over an updated value after all that reads it, unless these wait for it."""
    flow = data_flow(nodes)
    maker = makers(nodes)
    readers: dict[Value, list[int]] = {target: [] for target in graph.updated}
    for i, node in enumerate(nodes):
        for value in reads_inside(node) & readers.keys():
            readers[value].append(i)
    pairs: list[tuple[int, int]] = []
    for target, source in graph.updates:
        writer = maker.get(source)
        if writer is not None and target in nodes[writer].uses:
            later = _following(flow, writer)
            pairs += [(i, writer) for i in readers[target] if i != writer and i not in later]
    if not pairs:
        return flow
    limited = data_flow(nodes, pairs)
    return limited if _acyclic(limited) else flow


def _following(flow: DataFlow, start: int) -> set[int]:
    found, todo = set(), [start]
    while todo:
        for i in flow.after[todo.pop()]:
            if i not in found:
                found.add(i)
                todo.append(i)
    return found


def _acyclic(flow: DataFlow) -> bool:
    """Whether no two nodes wait for each other."""
    waiting = [len(several) for several in flow.before]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    for i in ready:
        for j in flow.after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    return len(ready) == len(waiting)
