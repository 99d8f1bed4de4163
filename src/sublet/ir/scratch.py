"""Scratch memory: what kernels need while they run is part of the graph, and planned like any tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.tensor import DType, TensorSpec


def with_scratch(graph: Graph, nbytes: Mapping[str, int]) -> Graph:
    """The graph with scratch memory for nodes, by name: so many bytes each. The same again for the same numbers."""
    taken = {value.name for value in graph.values()}
    return _level(graph, nbytes, taken) if nbytes else graph


def _level(graph: Graph, nbytes: Mapping[str, int], taken: set[str]) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        scratch = nbytes.get(node.name, 0)
        if isinstance(node, While):
            nodes.append(replace(node, body=_level(node.body, nbytes, taken)))
        elif isinstance(node, CaseOf):
            nodes.append(replace(node, arms=tuple(_level(arm, nbytes, taken) for arm in node.arms)))
        elif scratch:
            name = f"{node.name}.scratch"
            while name in taken:
                name += "_"
            taken.add(name)
            nodes.append(replace(node, scratch=Value(name, TensorSpec(DType.U8, (scratch,)))))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
