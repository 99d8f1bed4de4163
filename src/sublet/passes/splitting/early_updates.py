"""Early updates: run each update right after the gradient of the weight, so the gradient is not kept to the end.

Nodes serving a single update move along. If a gradient is a sum, such as the gradient of a weight read by every step of
a recurrent network, each term is added as soon as computed, and the operands of the term die early too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sublet.ir.dataflow import producer_positions, required_values, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup

Readers = Mapping[Value, Sequence[Node]]
"""The nodes reading each value."""


def early_order(graph: Graph, updates: Set[str]) -> list[Node]:
    """Return the nodes of the root level with `updates`, and nodes serving a single update, as early as possible.

    A node overwriting an operand runs as soon as legal, after all readers of the overwritten bytes. A node defining new
    bytes stays in place, unless a reader now runs earlier.
    """
    reading: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in required_values(node):
            reading.setdefault(value, []).append(node)
    owner = _served_updates(graph, updates, reading)
    moved = [node for node in graph.nodes if node.name in owner]
    place = _early_positions(graph, moved, updates, reading)
    after: dict[int, list[Node]] = {}
    for node in moved:
        after.setdefault(place[node.name], []).append(node)
    made = list(after.get(-1, ()))
    for i, node in enumerate(graph.nodes):
        made += [] if node.name in owner else [node]
        made += after.get(i, ())
    return made


def _served_updates(graph: Graph, updates: Set[str], reading: Readers) -> dict[str, str]:
    """Return, by node, the single update served by the node. An update serves itself."""
    wanted = set(results(graph))
    owner: dict[str, str] = {}
    for node in reversed(graph.nodes):
        served = {owner.get(other.name) for value in node.defs for other in reading.get(value, ())}
        if node.name in updates:
            owner[node.name] = node.name
        elif len(served) == 1 and wanted.isdisjoint(node.defs):
            (only,) = served
            if only is not None:
                owner[node.name] = only
    return owner


def _early_positions(graph: Graph, moved: Sequence[Node], updates: Set[str], reading: Readers) -> dict[str, int]:
    """Return, by node, the position to stand after, never later than the original position."""
    target = {source: target for target, source in graph.updates}
    maker = producer_positions(graph.nodes)
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    place = dict(position)

    def soonest(node: Node) -> int:
        """Return the position of the last node that `node` must wait for."""
        waited = [place[graph.nodes[maker[value]].name] for value in required_values(node) if value in maker]
        over = [target[value] for value in node.defs if value in target]
        waited += [place[other.name] for value in over for other in reading.get(value, ()) if other != node]
        return max(waited, default=-1)

    for node in moved:
        place[node.name] = min(soonest(node), position[node.name])
    for node in reversed(moved):
        if node.name not in updates and not _may_overwrite_operand(node):
            asked = [place[other.name] for value in node.defs for other in reading.get(value, ())]
            place[node.name] = min(position[node.name], *asked)
    for node in moved:  # readers of the overwritten bytes may have moved back
        place[node.name] = min(max(place[node.name], soonest(node)), position[node.name])
    return place


def _may_overwrite_operand(node: Node) -> bool:
    """True if the node may overwrite an operand."""
    return not node.subgraphs and bool(lookup(node.op).inplace(node))
