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

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sublet.ir.dataflow import producer_positions, reads_inside, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.ops.op import shares_of
from sublet.passes.live_bytes import LiveBlocks, blocks_of

# Greedy list schedules of one level. Each scheduler is a function (blocks, data flow, order) -> order.
#
# A forward schedule picks the ready node with the least growth of live bytes. A backward schedule picks the candidate
# for the last position with the fewest live bytes before the node. The given order breaks ties.

Priority = tuple[int, ...]
"""A priority. The smallest is scheduled first; the position breaks ties."""


@dataclass(frozen=True)
class DataFlow:
    """The predecessors (`before`) and successors (`after`) of each node, by position."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def least_growth_first(growth: int, place: int) -> Priority:
    """Return a priority by growth of live bytes alone."""
    return growth, place


def shrinking_first(growth: int, place: int) -> Priority:
    """Return a priority putting nodes that free bytes first, and the remaining nodes in the given order."""
    return (0, growth, place) if growth < 0 else (1, 0, place)


def forward_scheduler(
    key: Callable[[int, int], Priority],
) -> Callable[[LiveBlocks, DataFlow, Sequence[int]], list[int]]:
    """Return a scheduler building the order from the first node on."""

    def order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
        place = _positions(current)
        waiting = [len(readers) for readers in blocks.readers]
        pending = [set(readers) for readers in blocks.readers]
        growth = [
            blocks.bytes_defined(i, lambda b: bool(blocks.readers[b]) or b in blocks.kept)
            - sum(blocks.nbytes[b] for b in read if waiting[b] == 1 and b not in blocks.kept)
            for i, read in enumerate(blocks.read)
        ]

        def update_growth(i: int) -> list[int]:
            """Update the growths after node `i` runs; return the nodes with a smaller growth."""
            changed = []
            for block in blocks.read[i]:
                waiting[block] -= 1
                pending[block].discard(i)
                if waiting[block] == 1 and block not in blocks.kept:
                    (last,) = pending[block]
                    growth[last] -= blocks.nbytes[block]
                    changed.append(last)
            return changed

        return _list_schedule(flow.before, flow.after, lambda i: key(growth[i], place[i]), update_growth)

    return order


def backward_scheduler(
    key: Callable[[int, int], Priority],
) -> Callable[[LiveBlocks, DataFlow, Sequence[int]], list[int]]:
    """Return a scheduler building the order from the last node back."""

    def order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
        place = _positions(current)
        alive = [block in blocks.kept for block in range(len(blocks.nbytes))]
        growth = [
            sum(blocks.nbytes[b] for b in read if not alive[b]) - blocks.bytes_defined(i, lambda _: True)
            for i, read in enumerate(blocks.read)
        ]

        def update_growth(i: int) -> list[int]:
            """Update the growths after node `i` is placed; return the nodes with a smaller growth."""
            changed = []
            for block in blocks.read[i]:
                if not alive[block]:
                    alive[block] = True
                    for reader in blocks.readers[block]:
                        growth[reader] -= blocks.nbytes[block]
                        changed.append(reader)
            return changed

        backward = _list_schedule(flow.after, flow.before, lambda i: key(growth[i], -place[i]), update_growth)
        return backward[::-1]

    return order


def _positions(current: Sequence[int]) -> list[int]:
    """Return the position of each node in the given order."""
    place = [0] * len(current)
    for position, i in enumerate(current):
        place[i] = position
    return place


def _list_schedule(
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    key: Callable[[int], Priority],
    ran: Callable[[int], Sequence[int]],
) -> list[int]:
    """Return an order always taking the ready node with the smallest key.

    `before` and `after` are predecessors and successors. `ran(i)` returns the nodes whose keys fall when node `i` runs.
    """
    waiting = [len(predecessors) for predecessors in before]
    ready = [(key(i), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    done = [False] * len(before)
    order: list[int] = []
    while ready:
        queued, i = heapq.heappop(ready)
        if done[i] or queued != key(i):
            continue  # stale entry: the queue holds the node again with the new key
        done[i] = True
        order.append(i)
        for j in ran(i):
            if not done[j] and waiting[j] == 0:
                heapq.heappush(ready, (key(j), j))
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (key(j), j))
    return order


def depth_first_order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
    """Return a depth-first order: the operands of a node directly before the node, the largest producers first.

    Roots are the nodes without successors, in the given order.
    """
    place = _positions(current)
    made = [sum(blocks.nbytes[b] for b in born) for born in blocks.born]
    seen: set[int] = set()
    order: list[int] = []
    for root in (i for i in current if not flow.after[i]):
        todo = [(root, False)]
        while todo:
            i, opened = todo.pop()
            if opened:
                order.append(i)
            elif i not in seen:
                seen.add(i)
                todo.append((i, True))
                needed = sorted(flow.before[i], key=lambda j: (made[j], -place[j]))
                todo += [(j, False) for j in needed if j not in seen]
    return order


ORDERS = (
    forward_scheduler(shrinking_first),
    backward_scheduler(shrinking_first),
    forward_scheduler(least_growth_first),
    backward_scheduler(least_growth_first),
    depth_first_order,
)


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


def is_movable(node: Node) -> bool:
    """True if the outputs of the node, including sub-graphs, are all its effects."""
    if node.subgraphs:
        return all(is_movable(inner) for sub in node.subgraphs for inner in sub.nodes)
    return lookup(node.op).pure or lookup(node.op).movable


def _add_effect_edges(nodes: Sequence[Node], before: list[set[int]]) -> None:
    """Add dependences to `before` to keep the order of nodes with side effects.

    A node with neither operands nor results is a barrier, such as the suspension point between two calls of a resumable
    program: no node moves across a barrier.
    """
    last = barrier = -1
    for i, node in enumerate(nodes):
        if barrier >= 0:
            before[i].add(barrier)
        if not is_movable(node):
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
    readers: dict[Value, list[int]] = {}
    for i, node in enumerate(nodes):
        for value in reads_inside(node) if graph.updates else ():
            readers.setdefault(value, []).append(i)
    pairs: list[tuple[int, int]] = []
    for old, writer in _contents_overwritten(graph, nodes):
        later = _reachable_from(flow, writer)
        pairs += [(i, writer) for i in readers.get(old, ()) if i != writer and i not in later]
    if not pairs:
        return flow
    limited = data_flow(nodes, pairs)
    return limited if _is_acyclic(limited) else flow


def _contents_overwritten(graph: Graph, nodes: Sequence[Node]) -> Iterator[tuple[Value, int]]:
    """Yield each content of an updated value, and the position of the node that overwrites the content."""
    maker = producer_positions(nodes)
    for target, source in graph.updates:
        content = source
        while content in maker:
            writer = maker[content]
            if target in nodes[writer].uses:
                yield target, writer
                break
            old = _operand_overwritten(nodes[writer], content)
            if old is None:
                break
            yield old, writer
            content = old


def _operand_overwritten(node: Node, result: Value) -> Value | None:
    """Return the operand that a node may overwrite with a result, None for other nodes."""
    if node.subgraphs:
        return None
    shares = shares_of(node, lookup(node.op).inplace)
    return next((node.inputs[each.input] for each in shares if node.outputs[each.output] == result), None)


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
