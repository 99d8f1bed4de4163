"""Reordering: choose an order of the nodes with a lower peak of live bytes.

Requires a legal graph. Ensures an order that respects the data flow and has a lower peak than the given order, as
estimated by `live_bytes`; without a better order the given order stays. An update of an input or weight runs after all
readers of the old content, to be written in place, and otherwise as soon as the update frees bytes: the optimiser
consumes each gradient as soon as the gradient is complete.

    %g1 = gradient of %w1                %g1 = gradient of %w1
    %g2 = gradient of %w2                %n1 = nn.sgd(%w1, %g1, %lr)
    %n1 = nn.sgd(%w1, %g1, %lr)    ->    %g2 = gradient of %w2
    %n2 = nn.sgd(%w2, %g2, %lr)          %n2 = nn.sgd(%w2, %g2, %lr)

Finding the best order is NP-hard (Sethi, Complete Register Allocation Problems, 1975). The pass computes several greedy
orders, forwards and backwards, takes the best, and repeats from the best order while the peak falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sublet.ir.dataflow import producer_positions, reads_inside, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.passes.greedy_orders import ORDERS, DataFlow
from sublet.passes.live_bytes import blocks_of
from sublet.passes.rewriting import is_pure

MAX_REPEATS = 8
"""Maximum number of repetitions from the best order so far."""


def with_lower_peak(graph: Graph, measure: Callable[[Graph], tuple[int, ...]] | None = None) -> Graph:
    """Return the graph in an order with a lower peak, or unchanged.

    `measure` returns the exact bytes of a graph, if the caller can compute them: a new order must then be lower by
    `measure` too. The estimate alone knows little about loop-carried values.
    """
    candidate = reorder_levels(graph, greedy_order)
    if measure is None or candidate == graph or measure(candidate) < measure(graph):
        return candidate
    return graph


ChooseOrder = Callable[[Graph, Sequence[Node], Sequence[Value], dict[str, int]], tuple[tuple[Node, ...], int]]
"""(level, nodes in order, values live after the nodes, bytes needed inside sub-graphs besides the results, by node)
-> (the nodes in a new order, the estimated peak in bytes)."""


def reorder_levels(graph: Graph, choose: ChooseOrder) -> Graph:
    """Return the program with each level in the order returned by `choose`, innermost levels first."""
    extra: dict[str, int] = {}
    nodes = tuple(_reorder_subgraphs(node, extra, choose) for node in graph.nodes)
    graph = replace(graph, nodes=nodes)
    return replace(graph, nodes=choose(graph, nodes, results(graph), extra)[0])


def _reorder_subgraphs(node: Node, extra: dict[str, int], choose: ChooseOrder) -> Node:
    """Return the node with reordered sub-graphs, and store in `extra` the bytes needed besides the results."""
    result_bytes = sum(value.nbytes for value in node.defs)
    if isinstance(node, While):
        inner_extra: dict[str, int] = {}
        inner = tuple(_reorder_subgraphs(each, inner_extra, choose) for each in node.body.nodes)
        body = replace(node.body, nodes=inner)
        after = inner[node.check :]
        later = {value for each in after for value in reads_inside(each)}
        wanted = (node.condition, *node.parameters, *node.slices, *sorted(later, key=lambda value: value.name))
        first, peak = choose(body, inner[: node.check], (*wanted, *body.outputs), inner_extra)
        second, higher = choose(body, after, body.outputs, inner_extra)
        extra[node.name] = max(0, max(peak, higher) - result_bytes)
        return replace(node, body=replace(body, nodes=(*first, *second)))
    if isinstance(node, CaseOf):
        arms, peaks = [], [0]
        for arm in node.arms:
            inner_extra = {}
            arm = replace(arm, nodes=tuple(_reorder_subgraphs(each, inner_extra, choose) for each in arm.nodes))
            nodes, peak = choose(arm, arm.nodes, arm.outputs, inner_extra)
            arms.append(replace(arm, nodes=nodes))
            peaks.append(peak)
        extra[node.name] = max(0, max(peaks) - result_bytes)
        return replace(node, arms=tuple(arms))
    return node


def greedy_order(
    graph: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
) -> tuple[tuple[Node, ...], int]:
    """Return the nodes of a level in the best greedy order, and the estimated peak in bytes."""
    nodes = tuple(nodes)
    blocks = blocks_of(graph, nodes, wanted, extra)
    flow = constrained_data_flow(graph, nodes)
    best = tuple(range(len(nodes)))
    lowest = blocks.peak(best)
    for _ in range(MAX_REPEATS):
        orders = [make(blocks, flow, best) for make in ORDERS]
        peaks = [blocks.peak(order) for order in orders]
        if min(peaks)[0] >= lowest[0]:
            break
        lowest = min(peaks)
        best = tuple(orders[peaks.index(lowest)])
    return tuple(nodes[i] for i in best), lowest[0]


def data_flow(nodes: Sequence[Node], also: Sequence[tuple[int, int]] = ()) -> DataFlow:
    """Return the dependences between nodes: values read, the pairs (first, then) in `also`, and side effects."""
    maker = producer_positions(nodes)
    before = [{maker[value] for value in reads_inside(node) if value in maker} - {i} for i, node in enumerate(nodes)]
    _add_effect_edges(nodes, before)
    for first, then in also:
        before[then].add(first)
    after: list[list[int]] = [[] for _ in nodes]
    for i, nodes_before in enumerate(before):
        for j in sorted(nodes_before):
            after[j].append(i)
    return DataFlow(tuple(tuple(sorted(nodes_before)) for nodes_before in before), tuple(map(tuple, after)))


def _add_effect_edges(nodes: Sequence[Node], before: list[set[int]]) -> None:
    """Add dependences to `before` to keep the order of nodes with side effects.

    A node with neither operands nor results is a barrier, such as the suspension point between two calls of a resumable
    program: no node moves across a barrier.
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


def constrained_data_flow(graph: Graph, nodes: Sequence[Node]) -> DataFlow:
    """Return the data flow, with each in-place update after all readers of the old content.

    The plain data flow is returned if the additional dependences would be cyclic.
    """
    flow = data_flow(nodes)
    maker = producer_positions(nodes)
    readers: dict[Value, list[int]] = {target: [] for target in graph.updated_values}
    for i, node in enumerate(nodes):
        for value in reads_inside(node) & readers.keys():
            readers[value].append(i)
    pairs: list[tuple[int, int]] = []
    for target, source in graph.updates:
        writer = maker.get(source)
        if writer is not None and target in nodes[writer].uses:
            later = _reachable_from(flow, writer)
            pairs += [(i, writer) for i in readers[target] if i != writer and i not in later]
    if not pairs:
        return flow
    limited = data_flow(nodes, pairs)
    return limited if _is_acyclic(limited) else flow


def _reachable_from(flow: DataFlow, start: int) -> set[int]:
    """Return the nodes reachable from `start`."""
    reachable, todo = set(), [start]
    while todo:
        for i in flow.after[todo.pop()]:
            if i not in reachable:
                reachable.add(i)
                todo.append(i)
    return reachable


def _is_acyclic(flow: DataFlow) -> bool:
    """True if the data flow has no cycle."""
    waiting = [len(predecessors) for predecessors in flow.before]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    for i in ready:
        for j in flow.after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    return len(ready) == len(waiting)
