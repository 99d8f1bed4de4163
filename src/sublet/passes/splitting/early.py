"""Updates that run as soon as they can: each right behind the gradient of its weight, which is not kept to the end.

What serves one update alone comes along. Where a gradient is a sum, as that of a weight that every step of a recurrent
network reads, each term is added when it can be made, and what it is made of need not be kept either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import makers, needs, results
from sublet.ops import lookup

Readers = Mapping[Value, Sequence[Node]]


def early_order(graph: Graph, updates: Set[str]) -> list[Node]:
    """The nodes of the root level, these updates and what serves one of them as early as they can; others as given.

    What writes over an operand runs as soon as it may, behind all that reads those bytes; what makes bytes anew stays
    where it is, but for a reader that now runs before that.
    """
    reading: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in needs(node):
            reading.setdefault(value, []).append(node)
    owner = _owners(graph, updates, reading)
    moved = [node for node in graph.nodes if node.name in owner]
    place = _places(graph, moved, updates, reading)
    after: dict[int, list[Node]] = {}
    for node in moved:
        after.setdefault(place[node.name], []).append(node)
    made = list(after.get(-1, ()))
    for i, node in enumerate(graph.nodes):
        made += [] if node.name in owner else [node]
        made += after.get(i, ())
    return made


def _owners(graph: Graph, updates: Set[str], reading: Readers) -> dict[str, str]:
    """By node the update that alone it serves; an update serves itself."""
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


def _places(graph: Graph, moved: Sequence[Node], updates: Set[str], reading: Readers) -> dict[str, int]:
    """By node the position behind which it stands: never one later than its own."""
    target = {source: target for target, source in graph.updates}
    maker = makers(graph.nodes)
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    place = dict(position)

    def soonest(node: Node) -> int:
        waited = [place[graph.nodes[maker[value]].name] for value in needs(node) if value in maker]
        over = [target[value] for value in node.defs if value in target]
        waited += [place[other.name] for value in over for other in reading.get(value, ()) if other != node]
        return max(waited, default=-1)

    for node in moved:
        place[node.name] = min(soonest(node), position[node.name])
    for node in reversed(moved):
        if node.name not in updates and not _over_an_operand(node):
            asked = [place[other.name] for value in node.defs for other in reading.get(value, ())]
            place[node.name] = min(position[node.name], *asked)
    for node in moved:  # what reads the bytes that it is written over may have gone back
        place[node.name] = min(max(place[node.name], soonest(node)), position[node.name])
    return place


def _over_an_operand(node: Node) -> bool:
    return not node.subgraphs and bool(lookup(node.op).inplace(node))
