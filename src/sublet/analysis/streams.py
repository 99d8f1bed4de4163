"""Assigns the nodes of a graph to a given number of streams, and says who waits for whom."""

from __future__ import annotations

from sublet.analysis.schedule import Schedule, Step
from sublet.ir.graph import Graph, Node, While, captures


def streamed(graph: Graph, streams: int, check: int = 0) -> Schedule:
    """The graph's own order spread over at most `streams` streams, sub-graphs too.

    A node goes on the stream that ran the last of the nodes it needs, if nothing came after it there,
    else on the stream that has been left alone longest. It waits for what it needs from other streams.
    The first `check` nodes of a loop's body, its evaluation nodes, all come before the others.
    """
    steps: list[Step] = []
    stream_of: dict[str, int] = {}
    last: list[str] = [""] * streams
    position: dict[str, int] = {}
    for node, needs in dependencies(graph, check):
        ends = [name for name in reversed(needs) if last[stream_of[name]] == name]
        idle = min(range(streams), key=lambda s: position.get(last[s], -1))
        stream = stream_of[ends[0]] if ends else idle
        waits = tuple(name for name in needs if stream_of[name] != stream)
        position[node.name] = len(steps)
        stream_of[node.name] = stream
        last[stream] = node.name
        steps.append(Step(node.name, stream, waits))
    bodies = {
        node.name: tuple(streamed(sub, streams, _evaluation_nodes(node)) for sub in node.subgraphs)
        for node in graph.nodes
        if node.subgraphs
    }
    return Schedule(tuple(steps), bodies)


def _evaluation_nodes(node: Node) -> int:
    return node.check if isinstance(node, While) else 0


def dependencies(graph: Graph, check: int) -> list[tuple[Node, list[str]]]:
    """Each node with the names of the nodes of this graph it needs, in graph order."""
    producer = {value: i for i, node in enumerate(graph.nodes) for value in node.defs}
    found = []
    for i, node in enumerate(graph.nodes):
        reads = [*node.uses, *(value for sub in node.subgraphs for value in captures(sub))]
        if isinstance(node, While) and node.condition in producer:
            reads.append(node.condition)
        needs = {producer[value] for value in reads if value in producer}
        if i >= check:
            needs.update(range(check))
        found.append((node, [graph.nodes[j].name for j in sorted(needs)]))
    return found
