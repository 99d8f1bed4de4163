"""Nodes for constants computed by an ONNX file, for plans with an arena place for the constants.

The ONNX front end folds every node without a dependence on an input into a weight. A tool may instead run the node and
write the result into the arena. The arena bytes are then live only from the node on, so a plan may use them before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    import onnx

CONSTANT = "onnx.Constant"


def with_constant_nodes(graph: Graph, model: onnx.ModelProto, placed_names: Collection[str]) -> Graph:
    """Return the graph with an `onnx.Constant` node for each folded weight with an arena place.

    A weight is replaced if the tool placed it (its name is in `placed_names`), a node of `model` defines it, and the
    graph knows its content. Return `graph` itself if no weight qualifies.
    """
    position = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    candidates = (value for value in graph.weights if value.name in position and value.name in placed_names)
    moved = {value: position[value.name] for value in candidates}
    moved = {value: at for value, at in moved.items() if value in graph.constants}
    if not moved:
        return graph
    used_names = {node.name for node in graph.walk()}
    due = _insertion_positions(graph, position, moved)
    nodes: list[Node] = []
    for i, node in enumerate((*graph.nodes, None)):
        for value in sorted((value for value in moved if due[value] == i), key=lambda value: moved[value]):
            name = _unused_name(f"{model.graph.node[moved[value]].op_type} {value.name}", used_names)
            nodes.append(Node(name, CONSTANT, (), (value,)))
        nodes += [] if node is None else [node]
    return replace(graph, nodes=tuple(nodes), weights=tuple(value for value in graph.weights if value not in moved))


def _insertion_positions(graph: Graph, position: Mapping[str, int], moved: Mapping[Value, int]) -> dict[Value, int]:
    """Return the insertion index of each constant: the new node goes before the graph node of this index.

    The index is the smaller of two: the first node with a later position in the file, and the first reader of the
    constant; the number of nodes if neither exists.
    """
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


def _unused_name(name: str, used_names: set[str]) -> str:
    """Return `name` with underscores appended until unused, and add the result to `used_names`."""
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name
