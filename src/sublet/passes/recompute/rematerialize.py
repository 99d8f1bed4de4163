"""Rematerialization: the recomputed nodes as data, and the function applying the data to a graph.

Requires a legal graph. Ensures the same results, bit by bit if the same kernel is deterministic. Each pair (node,
reader) puts a clone of the node right before the reader; the reader and all later readers read the clone. The value is
dead between the last reader before the clone and the clone.

    %y = nn.relu(%x)                     %y = nn.relu(%x)
    %z = nn.conv(%y, %w)                 %z = nn.conv(%y, %w)
    ...                           ->     ...
    %d = gradient(%g, %y)                %y.again = nn.relu(%x) again
                                         %d = gradient(%g, %y.again)

Clones before the same reader stand in the order of the original nodes, so a clone reads the clones of its operands.
Nodes without readers are removed: if the first reader reads a clone, the node has moved. A result of the program is
always computed by the original node. Random commands are functions of a key and return the same numbers again.

A clone reading an input or weight never stands after the node computing the new content: the new content may overwrite
the old. A batch normalisation reads the running statistics only to update the statistics; a clone, whose updated
statistics have no reader, reads the scale instead.

A pair may also name the offload of a value: the clone then reloads the value from slow memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sublet.base.errors import PlanError
from sublet.base.names import NameGenerator
from sublet.ir.dataflow import all_names, producer_positions, reads_inside, rename_values_in_node, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.recipe import OFFLOAD_SUFFIX
from sublet.ops import lookup
from sublet.ops.nn.conversion import OFFLOAD, RELOAD

# Offloading of values to a slow memory and back, represented for the search as a node with clones.
#
#     %y = nn.relu(%x)                     %y = nn.relu(%x)
#     %z = nn.conv(%y, %w)                 %y.offload = nn.offload(%y)
#     ...                           ->     %z = nn.conv(%y, %w)
#     %d = gradient(%g, %y)                ...
#                                          %y.again = nn.reload(%y.offload) again
#                                          %d = gradient(%g, %y.again)
#
# The search treats the offload like any node: a clone of the offload is the reload. The clone reads the result of the
# offload and redefines the operand. A pair (node, reader) names the offload by the name of the value plus `OFFLOADED`.

MIN_UNREAD_NODES = 4
"""Minimum number of nodes between two accesses of a value worth offloading."""


def is_offload(node: Node) -> bool:
    """True if the node offloads a value to slow memory."""
    return node.op == OFFLOAD


def offload_pair(node: Node) -> tuple[Value, Value]:
    """Return the operand of an offload and its result, the copy in slow memory."""
    return node.uses[0], node.defs[0]


def offloaded_values(graph: Graph) -> frozenset[Value]:
    """Return the values of a graph in slow memory, if the target has a slow memory."""
    return frozenset(offload_pair(node)[1] for node in graph.nodes if is_offload(node))


def offload_candidates(graph: Graph, min_bytes: int) -> list[str]:
    """Return the values of the root level worth offloading.

    A candidate is computed by a node, has at least `min_bytes` bytes and, together with its views, has a long gap
    without readers.
    """
    used_names = {node.name for node in graph.walk()} | {value.name for value in graph.values()}
    base: dict[Value, Value] = {}
    accesses: dict[Value, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in reads_inside(node):
            accesses.setdefault(base.get(value, value), []).append(i)
        viewed = () if node.subgraphs else lookup(node.op).views(node)
        for share in viewed:
            whole, part = node.inputs[share.input], node.outputs[share.output]
            if whole is not None and part is not None:
                base[part] = base.get(whole, whole)
        for value in node.defs:
            accesses.setdefault(base.get(value, value), []).append(i)
    return [
        value.name
        for node in graph.nodes
        for value in node.defs
        if value not in base and value.plannable and value.nbytes >= max(1, min_bytes)
        if value.name + OFFLOAD_SUFFIX not in used_names
        if max((later - before for before, later in pairwise(accesses[value])), default=0) > MIN_UNREAD_NODES
    ]


def with_offloads(graph: Graph, values: Collection[str]) -> Graph:
    """Return the graph with an offload of each of the named values right after the defining node."""
    wanted = set(values)
    if not wanted:
        return graph
    names = NameGenerator(value.name for value in graph.values())
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(node)
        for value in node.defs:
            if value.name in wanted:
                away = replace(value, name=names.fresh(value.name + OFFLOAD_SUFFIX))
                nodes.append(Node(value.name + OFFLOAD_SUFFIX, OFFLOAD, (value,), (away,), {}))
    return replace(graph, nodes=tuple(nodes))


def values_to_offload(graph: Graph, nodes: Iterable[str]) -> list[str]:
    """Return the values whose offloads are named in `nodes`, without names of existing nodes."""
    known = {node.name for node in graph.nodes}
    values = {value.name for node in graph.nodes for value in node.defs}
    others = dict.fromkeys(name for name in nodes if name not in known)
    found = (name.removesuffix(OFFLOAD_SUFFIX) for name in others if name.endswith(OFFLOAD_SUFFIX))
    return [name for name in found if name in values]


Rematerializations = Sequence[tuple[str, str]]
"""Pairs (node, reader) of names of the root level: recompute the node before the reader."""

UPDATE_ONLY_OPERANDS: Mapping[str, tuple[tuple[int, int, int], ...]] = {"nn.batch_norm": ((3, 1, 1), (4, 1, 2))}
"""By op, (operand, replacing operand of the same spec, output): the operand influences only this output."""


def with_rematerialization(graph: Graph, again: Rematerializations) -> Graph:
    """Return the graph with the given nodes rematerialized. The result is deterministic.

    Raises PlanError for a pair that is impossible, given twice, or without an effect.
    """
    if not again:
        return graph
    nodes, live_pairs = _insert_clones(graph, again)
    if len(live_pairs) != len(again):
        name, reader = next((pair for pair in again if pair not in live_pairs), again[0])
        raise PlanError(f"{name!r} computed again before {reader!r} is not read, or is listed twice: remove it")
    return replace(graph, nodes=tuple(nodes))


def effective_pairs(graph: Graph, again: Rematerializations) -> Rematerializations:
    """Return the pairs with a clone read by a live node. Raises PlanError for an impossible pair."""
    return _insert_clones(graph, again)[1]


def _insert_clones(graph: Graph, again: Rematerializations) -> tuple[Sequence[Node], Rematerializations]:
    """Return the nodes with clones, and the pairs with a live clone."""
    graph = with_offloads(graph, values_to_offload(graph, (name for name, _ in again)))
    places = _positions_by_reader(graph, again)
    names = NameGenerator(all_names(graph))
    now: dict[Value, Value] = {}
    made: list[Node] = []
    pairs: dict[str, tuple[str, str]] = {}
    for i, node in enumerate(graph.nodes):
        for j in sorted(places.get(i, ())):
            clone = _clone_node(graph.nodes[j], now, names)
            pairs[clone.name] = graph.nodes[j].name, node.name
            made.append(clone)
            now.update(_renewed_values(graph.nodes[j], clone))
        made.append(rename_values_in_node(node, now) if now else node)
    nodes = _without_dead_clones(made, set(results(graph)), {name for name, _ in again})
    return nodes, [pairs[node.name] for node in nodes if node.name in pairs]


def latest_clone_positions(graph: Graph) -> list[int]:
    """Return for each node of the root level the last position with a legal clone before it; -1 if none."""
    maker = producer_positions(graph.nodes)
    end = len(graph.nodes)
    closed = {target: maker.get(source, end) for target, source in graph.updates}
    return [_latest_clone_position(node, closed, end - 1) for node in graph.nodes]


def _latest_clone_position(node: Node, closed: Mapping[Value, int], last: int) -> int:
    """Return the last legal position of a clone of the node, given `closed`, the position of the update by value."""
    if (
        node.subgraphs
        or not lookup(node.op).pure
        or not any(node.outputs)
        or not all(v.plannable for v in (*node.uses, *node.defs))
    ):
        return -1
    read = _clone_operands(node)
    return min([last, *(closed[value] for value in read if value is not None and value in closed)])


def _clone_operands(node: Node) -> tuple[Value | None, ...]:
    """Return the operands of a clone of the node."""
    if is_offload(node):
        return (offload_pair(node)[1],)
    read = list(node.inputs)
    for position, other, _ in UPDATE_ONLY_OPERANDS.get(node.op, ()):
        if position < len(read):
            read[position] = read[other]
    return tuple(read)


def values_read_by_clone(node: Node) -> set[Value]:
    """Return the values read by a clone of the node."""
    return {value for value in _clone_operands(node) if value is not None}


def outputs_not_renewed(node: Node) -> set[Value]:
    """Return the outputs not renewed by a clone, because a clone computes a different content."""
    return {value for _, _, k in UPDATE_ONLY_OPERANDS.get(node.op, ()) if (value := node.outputs[k]) is not None}


def _positions_by_reader(graph: Graph, again: Rematerializations) -> dict[int, set[int]]:
    """Return the positions of the nodes to clone by the position of the reader. Raises PlanError."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    latest = latest_clone_positions(graph)
    positions: dict[int, set[int]] = {}
    for name, reader in again:
        if name not in position or reader not in position:
            raise PlanError(f"{name!r} cannot be computed again before {reader!r}: the graph has no such nodes")
        j, i = position[name], position[reader]
        if not j < i <= latest[j]:
            why = (
                "it comes before the node"
                if i <= j
                else "it has side effects, or its inputs are updated before the reader"
            )
            raise PlanError(f"{name!r} cannot be computed again before {reader!r}: {why}")
        positions.setdefault(i, set()).add(j)
    return positions


@dataclass(frozen=True)
class _CloneValues:
    """Factory of the values of clones."""

    names: NameGenerator

    def fresh_value(self, value: Value | None) -> Value | None:
        """Return a value with a fresh name."""
        return None if value is None else replace(value, name=self.names.fresh(f"{value.name}.again"))


def _clone_node(node: Node, now: Mapping[Value, Value], names: NameGenerator) -> Node:
    """Return a clone of the node, reading the current replacements `now`. The clone of an offload is a reload."""
    fresh = _CloneValues(names)
    inputs = tuple(None if value is None else now.get(value, value) for value in _clone_operands(node))
    outputs = tuple(fresh.fresh_value(value) for value in (node.inputs if is_offload(node) else node.outputs))
    node = replace(node, op=RELOAD) if is_offload(node) else node
    scratch = None if node.scratch is None else fresh.fresh_value(node.scratch)
    name = next(value.name for value in outputs if value is not None)
    return replace(node, name=name, inputs=inputs, outputs=outputs, scratch=scratch, again=True)


def _renewed_values(node: Node, clone: Node) -> dict[Value, Value]:
    """Return the values of the clone by the values of the node."""
    moved = outputs_not_renewed(node)
    pairs = zip(node.inputs if is_offload(node) else node.outputs, clone.outputs, strict=True)
    return {old: new for old, new in pairs if old is not None and new is not None and old not in moved}


def _without_dead_clones(nodes: Sequence[Node], needed: set[Value], several: Collection[str]) -> list[Node]:
    """Return the nodes without dead clones and dead originals of clones."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if (node.again or node.name in several) and needed.isdisjoint(node.outputs):
            continue
        needed |= reads_inside(node)
        kept.append(node)
    return kept[::-1]
