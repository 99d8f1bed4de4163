"""Sinking of updates: run nodes that only update inputs or weights last, unless memory use grows.

Requires a legal graph. Ensures that a run failing before the sunk nodes, for example by a label out of range or an
interrupt, leaves every weight unchanged. An order of less memory consumes each gradient early; where the peak lies
elsewhere, consuming early saves no bytes. A node that also computes a value for readers, such as a batch
normalisation with running statistics, stays in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sublet.ir.dataflow import reads_inside, results
from sublet.ir.graph import Graph, Node
from sublet.passes.live_bytes import blocks_of
from sublet.passes.rewriting import is_pure


def with_late_updates(graph: Graph, measure: Callable[[Graph], tuple[int, ...]]) -> Graph:
    """Return the graph with the updates last, or unchanged if any number returned by `measure` (bytes) would grow."""
    updating = _update_only_nodes(graph)
    nodes = tuple(sorted(graph.nodes, key=lambda node: node.name in updating))
    if nodes == graph.nodes or _estimated_peak(graph, nodes) > _estimated_peak(graph, graph.nodes):
        return graph
    candidate = replace(graph, nodes=nodes)
    return candidate if all(a <= b for a, b in zip(measure(candidate), measure(graph), strict=True)) else graph


def _update_only_nodes(graph: Graph) -> set[str]:
    """Return the names of the nodes defining updates and read by no node but update nodes."""
    sources = {source for _, source in graph.updates}
    needed = {*graph.outputs}
    names: set[str] = set()
    for node in reversed(graph.nodes):
        if not node.subgraphs and is_pure(node) and sources.intersection(node.defs) and needed.isdisjoint(node.defs):
            names.add(node.name)
        else:
            needed |= reads_inside(node)
    return names


def _estimated_peak(graph: Graph, nodes: tuple[Node, ...]) -> int:
    """Return the estimated peak in bytes of the root level in this order, without the bytes of sub-graphs."""
    return blocks_of(graph, nodes, results(graph), {}).peak(range(len(nodes)))[0]
