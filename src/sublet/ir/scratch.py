"""Scratch memory: memory requested by kernels, added to the graph and planned like any tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import map_subgraphs
from sublet.ir.graph import Graph, Node, Value


def with_scratch(graph: Graph, nbytes: Mapping[str, int]) -> Graph:
    """Return the graph with `nbytes[name]` bytes of scratch memory for each named node.

    The result is deterministic: equal sizes give equal graphs, names of the scratch values included.
    """
    taken = {value.name for value in graph.values()}
    return _add_scratch(graph, nbytes, taken) if nbytes else graph


def without_scratch(graph: Graph) -> Graph:
    """Return the graph without scratch memory, sub-graphs included."""
    nodes = (replace(node, scratch=None) if node.scratch is not None else node for node in graph.nodes)
    return replace(graph, nodes=tuple(map_subgraphs(node, without_scratch) for node in nodes))


def _add_scratch(graph: Graph, nbytes: Mapping[str, int], taken: set[str]) -> Graph:
    """Return one graph with scratch memory; add the names of the new values to `taken`."""
    nodes: list[Node] = []
    for node in graph.nodes:
        scratch = nbytes.get(node.name, 0)
        if scratch and not node.subgraphs:
            name = f"{node.name}.scratch"
            while name in taken:
                name += "_"
            taken.add(name)
            nodes.append(replace(node, scratch=Value(name, TensorSpec(DType.U8, (scratch,)))))
        else:
            nodes.append(map_subgraphs(node, lambda sub: _add_scratch(sub, nbytes, taken)))
    return replace(graph, nodes=tuple(nodes))
