"""The order of a graph's nodes: who reads what, sorted so that definitions come first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.frontends.onnx.file import graphs_of

if TYPE_CHECKING:
    import onnx


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Names a sub-graph reads but does not define, in order of first use."""
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    defined.update(name for node in graph.node for name in node.output)
    free: dict[str, None] = {}
    for node in graph.node:
        free.update((name, None) for name in reads(node) if name not in defined)
    free.update((value.name, None) for value in graph.output if value.name not in defined)
    return tuple(free)


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names a node reads, itself or in its sub-graphs, each once."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in graphs_of(node):
        names.update(dict.fromkeys(free_names(graph)))
    return tuple(names)


def title(node: onnx.NodeProto) -> str:
    """How messages call a node: its op, and its name or first output."""
    return f"{node.op_type} {node.name or next((name for name in node.output if name), '')!r}"


def sorted_nodes(
    nodes: Sequence[onnx.NodeProto], known: Collection[str], outer: Collection[str], where: str
) -> list[onnx.NodeProto]:
    """`nodes` in an order in which every value is defined before it is read; the file's, if it will do.

    `known` are names defined beside the nodes in their graph (inputs, initialisers), `outer` those of
    the graphs around. Raises ModelError for a name that is defined twice or never, and for a cycle.
    """
    producer = _producers(nodes, known, where)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for name in reads(node):
            if name in producer:
                waiting[i] += 1
                readers[producer[name]].append(i)
            elif name not in known and name not in outer:
                raise ModelError(f"{where}: node {title(node)} reads {name!r}, which nothing defines")
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
        raise ModelError(f"{where}: {_cycle(nodes, producer, waiting)}")
    return [nodes[i] for i in order]


def _producers(nodes: Sequence[onnx.NodeProto], known: Collection[str], where: str) -> dict[str, int]:
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer or name in known:
                raise ModelError(f"{where}: {name!r} is defined twice, the second time by node {title(node)}")
            producer[name] = i
    return producer


def _cycle(nodes: Sequence[onnx.NodeProto], producer: dict[str, int], waiting: Sequence[int]) -> str:
    """The nodes on one cycle, as a message: from an unsorted node back along unsorted producers."""
    here = next(i for i, count in enumerate(waiting) if count)
    seen: dict[int, None] = {}
    while here not in seen:
        seen[here] = None
        here = next(producer[name] for name in reads(nodes[here]) if name in producer and waiting[producer[name]])
    path = list(seen)
    members = path[path.index(here) :]
    return "the nodes " + " <- ".join(title(nodes[i]) for i in [*members, here]) + " form a cycle"
