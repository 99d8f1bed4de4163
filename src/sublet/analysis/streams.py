"""Stream assignment: the stream of every node of a graph, and the nodes to wait for."""

from __future__ import annotations

from collections import OrderedDict

from sublet.base.errors import ProblemError
from sublet.ir.dataflow import producer_positions, required_values
from sublet.ir.graph import Graph, Node, While
from sublet.plan.schedule import Schedule, ScheduleStep

MAX_NODES = 32_768
"""Nodes of a program with several streams. The happens-before relation takes a bit for each pair of nodes: 128 MiB."""


def assign_streams(graph: Graph, streams: int, check: int = 0) -> Schedule:
    """Return the graph's order spread over at most `streams` streams, sub-graphs included.

    A node follows the latest needed node still last on a stream, else goes to the stream idle for longest. The node
    waits for needed nodes on other streams. The first `check` nodes of a loop body compute the condition and precede
    all others. Raises ProblemError for more than MAX_NODES nodes in several streams.
    """
    count = _count_nodes(graph)
    if streams > 1 and count > MAX_NODES:
        raise ProblemError(
            f"graph {graph.name}: {count} nodes exceed the limit of {MAX_NODES} nodes in several "
            "streams; plan it with one (--streams 1)"
        )
    return _assign_level(graph, streams, check)


def _count_nodes(graph: Graph) -> int:
    """Return the number of nodes, sub-graphs included."""
    return len(graph.nodes) + sum(_count_nodes(sub) for node in graph.nodes for sub in node.subgraphs)


def _assign_level(graph: Graph, streams: int, check: int) -> Schedule:
    """Return the schedule of a graph and, recursively, of the sub-graphs."""
    useful = max(1, min(streams, len(graph.nodes)))
    last: OrderedDict[int, str] = OrderedDict.fromkeys(range(useful), "")  # last node by stream, longest idle first
    steps: list[ScheduleStep] = []
    stream_of: dict[str, int] = {}
    for node, first in dependencies(graph, check):
        ends = [name for name in reversed(first) if last[stream_of[name]] == name]
        stream = stream_of[ends[0]] if ends else next(iter(last))
        waits = tuple(name for name in first if stream_of[name] != stream)
        stream_of[node.name] = stream
        last[stream] = node.name
        last.move_to_end(stream)
        steps.append(ScheduleStep(node.name, stream, waits))
    bodies = {
        node.name: tuple(_assign_level(sub, streams, _count_condition_nodes(node)) for sub in node.subgraphs)
        for node in graph.nodes
        if node.subgraphs
    }
    return Schedule(tuple(steps), bodies)


def _count_condition_nodes(node: Node) -> int:
    """Return the number of nodes computing the condition of a loop; 0 for a node without condition."""
    return node.check if isinstance(node, While) else 0


def dependencies(graph: Graph, check: int) -> list[tuple[Node, list[str]]]:
    """Return every node with the names of the needed nodes of the same graph, in graph order."""
    made = producer_positions(graph.nodes)
    needed = []
    for i, node in enumerate(graph.nodes):
        first = {made[value] for value in required_values(node) if value in made}
        if i >= check:
            first.update(range(check))
        needed.append((node, [graph.nodes[j].name for j in sorted(first)]))
    return needed
