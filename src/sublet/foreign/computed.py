"""Constants that nodes of an ONNX file compute, as nodes again: a tool that places them writes them when they run.

Reading a model makes weights of what depends on no input. That is no mistake of a plan which reuses their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import reads_inside

if TYPE_CHECKING:
    import onnx

CONSTANT = "onnx.Constant"


def with_computed(graph: Graph, model: onnx.ModelProto, placed: Collection[str]) -> Graph:
    """The graph in which those of its weights that a tool `placed`, and a node of the file defines, are so defined."""
    position = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    moved = {value: position[value.name] for value in graph.weights if value.name in position and value.name in placed}
    moved = {value: at for value, at in moved.items() if value in graph.constants}
    if not moved:
        return graph
    taken = {node.name for node in graph.walk()}
    due = _due(graph, position, moved)
    nodes: list[Node] = []
    for i, node in enumerate((*graph.nodes, None)):
        for value in sorted((value for value in moved if due[value] == i), key=lambda value: moved[value]):
            name = _free(f"{model.graph.node[moved[value]].op_type} {value.name}", taken)
            nodes.append(Node(name, CONSTANT, (), (value,)))
        nodes += [] if node is None else [node]
    return replace(graph, nodes=tuple(nodes), weights=tuple(value for value in graph.weights if value not in moved))


def _due(graph: Graph, position: Mapping[str, int], moved: Mapping[Value, int]) -> dict[Value, int]:
    """Before which node of the graph each constant is computed: the first that comes later in the file, or reads it."""
    due = dict.fromkeys(moved, len(graph.nodes))
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        at = max((position[value.name] for value in node.defs if value.name in position), default=-1)
        for value in moved:
            if at > moved[value]:
                due[value] = i
    for i in reversed(range(len(graph.nodes))):
        for value in (*graph.nodes[i].uses, *reads_inside(graph.nodes[i])):
            if value in due:
                due[value] = min(due[value], i)
    return due


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
