"""Assigns the nodes of a graph to a given number of streams, and says who waits for whom."""

from __future__ import annotations

from collections import OrderedDict

from sublet.base.errors import ProblemError
from sublet.ir.graph import Graph, Node, While
from sublet.ir.walk import makers, needs
from sublet.plan.schedule import Schedule, Step

MAX_NODES = 32_768
"""Nodes of a program with several streams: who comes before whom is held for all pairs, in bits."""


def streamed(graph: Graph, streams: int, check: int = 0) -> Schedule:
    """The graph's own order spread over at most `streams` streams, sub-graphs too.

    A node goes on the stream that ran the last of the nodes it needs, if nothing came after it there,
    else on the stream that has been left alone longest. It waits for what it needs from other streams.
    The first `check` nodes of a loop's body, its evaluation nodes, all come before the others.
    Raises ProblemError for more than MAX_NODES nodes in several streams.
    """
    count = _count_nodes(graph)
    if streams > 1 and count > MAX_NODES:
        raise ProblemError(
            f"graph {graph.name}: {count} nodes are more than the {MAX_NODES} that can be planned in several "
            "streams; plan it with one (--streams 1)"
        )
    return _streamed(graph, streams, check)


def _count_nodes(graph: Graph) -> int:
    return len(graph.nodes) + sum(_count_nodes(sub) for node in graph.nodes for sub in node.subgraphs)


def _streamed(graph: Graph, streams: int, check: int) -> Schedule:
    useful = max(1, min(streams, len(graph.nodes)))
    last: OrderedDict[int, str] = OrderedDict.fromkeys(range(useful), "")  # node by stream, longest alone first
    steps: list[Step] = []
    stream_of: dict[str, int] = {}
    for node, first in dependencies(graph, check):
        ends = [name for name in reversed(first) if last[stream_of[name]] == name]
        stream = stream_of[ends[0]] if ends else next(iter(last))
        waits = tuple(name for name in first if stream_of[name] != stream)
        stream_of[node.name] = stream
        last[stream] = node.name
        last.move_to_end(stream)
        steps.append(Step(node.name, stream, waits))
    bodies = {
        node.name: tuple(_streamed(sub, streams, _evaluation_nodes(node)) for sub in node.subgraphs)
        for node in graph.nodes
        if node.subgraphs
    }
    return Schedule(tuple(steps), bodies)


def _evaluation_nodes(node: Node) -> int:
    return node.check if isinstance(node, While) else 0


def dependencies(graph: Graph, check: int) -> list[tuple[Node, list[str]]]:
    """Each node with the names of the nodes of this graph it needs, in graph order."""
    made = makers(graph.nodes)
    found = []
    for i, node in enumerate(graph.nodes):
        first = {made[value] for value in needs(node) if value in made}
        if i >= check:
            first.update(range(check))
        found.append((node, [graph.nodes[j].name for j in sorted(first)]))
    return found
