"""Topological order of an ONNX graph's nodes, and the names read by nodes and sub-graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.frontends.onnx.model_file import graphs_of

if TYPE_CHECKING:
    import onnx


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return the names read but not defined by a sub-graph, in order of first use."""
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    defined.update(name for node in graph.node for name in node.output)
    free: dict[str, None] = {}
    for node in graph.node:
        free.update((name, None) for name in names_read_by(node) if name not in defined)
    free.update((value.name, None) for value in graph.output if value.name not in defined)
    return tuple(free)


def names_read_by(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the distinct names read by a node, including the node's sub-graphs."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in graphs_of(node):
        names.update(dict.fromkeys(free_names(graph)))
    return tuple(names)


def node_title(node: onnx.NodeProto) -> str:
    """Return the node's text for messages: the operator, and the name or first output."""
    return f"{node.op_type} {node.name or next((name for name in node.output if name), '')!r}"


def sort_nodes(
    nodes: Sequence[onnx.NodeProto], known: Collection[str], outer: Collection[str], where: str
) -> list[onnx.NodeProto]:
    """Return `nodes` in topological order; the file order is kept where possible.

    `known` are the inputs and initialisers of the graph; `outer` are the names of the enclosing graphs. Raises
    ModelError for an undefined or doubly defined name, and for a cycle.
    """
    producer = _producers_of(nodes, known, where)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for name in names_read_by(node):
            if name in producer:
                waiting[i] += 1
                readers[producer[name]].append(i)
            elif name not in known and name not in outer:
                raise ModelError(f"{where}: node {node_title(node)} reads {name!r}, which nothing defines")
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise ModelError(f"{where}: {_cycle_message(nodes, producer, waiting)}")
    return [nodes[i] for i in order]


def _producers_of(nodes: Sequence[onnx.NodeProto], known: Collection[str], where: str) -> dict[str, int]:
    """Return the position of the node defining each name. Raises ModelError for a doubly defined name."""
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer or name in known:
                raise ModelError(f"{where}: {name!r} is defined twice, the second time by node {node_title(node)}")
            producer[name] = i
    return producer


def _cycle_message(nodes: Sequence[onnx.NodeProto], producer: dict[str, int], waiting: Sequence[int]) -> str:
    """Return a message naming the nodes of one cycle, found from an unsorted node back along unsorted producers."""
    current = next(i for i, count in enumerate(waiting) if count)
    visited: dict[int, None] = {}
    while current not in visited:
        visited[current] = None
        current = next(
            producer[name] for name in names_read_by(nodes[current]) if name in producer and waiting[producer[name]]
        )
    path = list(visited)
    members = path[path.index(current) :]
    return "the nodes " + " <- ".join(node_title(nodes[i]) for i in [*members, current]) + " form a cycle"
